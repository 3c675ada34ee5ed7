"""The transports of one Effects by name: opened when first needed, checked when a worker starts."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from effects import ConfigurationError
from effects_email.settings import DEFAULT_TRANSPORT, TRANSPORT_VARIABLE
from effects_email.transport.base import Transport
from effects_email.transport.rests import Rests
from effects_email.transport.url import is_on_loop, open_transport


class Transports:
    """Opens each once. Which one rests (`rests`) is this process's knowledge: another finds out for itself."""

    def __init__(self, urls: Mapping[str, str]) -> None:
        self.rests = Rests()
        self._urls = dict(urls)
        self._open: dict[str, Transport] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Transport:
        """
        Raises:
            ConfigurationError: not set, or its URL is wrong; the message names the variable, not the URL.
        """
        with self._lock:
            if name not in self._open:
                if name not in self._urls:
                    raise ConfigurationError(f"the mail transport {name!r} is not set: give {_variable(name)}")
                self._open[name] = open_transport(name, self._urls[name])
            return self._open[name]

    def on_loop(self) -> set[str]:
        """The names of those that send from an event loop."""
        return {name for name, url in self._urls.items() if is_on_loop(url)}

    def check(self) -> None:
        """Open all configured transports, without connecting.

        Raises:
            ConfigurationError: a URL is wrong.
        """
        for name in self._urls:
            self.get(name)

    def rates(self) -> dict[str, int]:
        """Messages a second that a provider lets a new account send, by the name of its transport."""
        declared = {name: self.get(name).rate_per_second for name in self._urls}
        return {name: rate for name, rate in declared.items() if rate is not None}

    def close(self) -> None:
        """Close what is idle; a later `get` opens again."""
        with self._lock:
            transports, self._open = list(self._open.values()), {}
        for transport in transports:
            transport.close()


def _variable(name: str) -> str:
    return "EFFECTS_SMTP_URL" if name == DEFAULT_TRANSPORT else f"{TRANSPORT_VARIABLE}{name.upper()}"
