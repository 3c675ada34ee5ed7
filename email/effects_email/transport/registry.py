"""The transports of one Effects by name: opened when first needed, checked when a worker starts.

Which of them rest after a failure, and which may be tried again, is this process's knowledge alone.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from effects import ConfigurationError
from effects_email.oauth.keeper import TokenKeeper, TokenLogin
from effects_email.settings import DEFAULT_TRANSPORT, TRANSPORT_VARIABLE
from effects_email.transport.base import Transport
from effects_email.transport.url import is_on_loop, open_transport

DOWN_SECONDS = (15.0, 30.0, 60.0, 120.0, 240.0, 300.0)
TRIAL_SECONDS = 60.0  # that one message tries a transport whose rest is over, before another one may
_SAME = 0.9  # of the rest: the first try after it counts again


class Rests:
    """Transports by name: how often each was down in a row, until when it rests, and who tries it then."""

    def __init__(self) -> None:
        self._down: Counter[str] = Counter()
        self._until: dict[str, float] = {}
        self._trial: dict[str, float] = {}
        self._lock = threading.Lock()

    def down(self, name: str, waits: Sequence[float] = DOWN_SECONDS) -> float:
        """It is down: seconds that it should be left alone, the first of `waits`, then the next, and the last of them
        from then on. What other threads find within that time is the same finding.
        """
        with self._lock:
            now = time.monotonic()
            if now >= self._until.get(name, float("-inf")):
                self._down[name] += 1
            seconds = waits[min(self._down[name], len(waits)) - 1]
            self._rest(name, now + seconds * _SAME)
            return seconds

    def rest(self, name: str, seconds: float) -> None:
        """It answers and asks to be left alone, or refuses everything."""
        with self._lock:
            self._rest(name, time.monotonic() + seconds)

    def up(self, name: str) -> None:
        """It answered."""
        if name in self._until:
            with self._lock:
                self._down.pop(name, None), self._until.pop(name, None), self._trial.pop(name, None)

    def may_try(self, name: str) -> bool:
        """Whether a message may go by it now. Of a transport whose rest is over one message finds out; the others may
        not until that one has come back, or for a minute if it does not.
        """
        with self._lock:
            now = time.monotonic()
            if name not in self._until:
                return True
            if now < max(self._until[name], self._trial.get(name, 0.0)):
                return False
            self._trial[name] = now + TRIAL_SECONDS
            return True

    def is_free(self, name: str) -> bool:
        """Whether `may_try` would say yes; changes nothing."""
        return self.seconds_left([name]) == 0.0

    def seconds_left(self, names: Iterable[str]) -> float:
        """Until the first of them may be tried; 0 where one may be now."""
        with self._lock:
            now = time.monotonic()
            ends = [max(self._until.get(name, 0.0), self._trial.get(name, 0.0)) for name in names]
            return max(0.0, min(ends, default=0.0) - now)

    def _rest(self, name: str, until: float) -> None:
        self._until[name] = max(self._until.get(name, 0.0), until)
        self._trial.pop(name, None)


class Takings:
    """Transports that took a message since they last refused one, by the order of their answers.

    The database learns of it with the message's outcome, and of a refusal before that: of hundreds that are on their
    way at a time, a few refusals would seem to be in a row.
    """

    def __init__(self) -> None:
        self._took: set[str] = set()

    def took(self, name: str) -> None:
        """It took a message."""
        self._took.add(name)

    def refused(self, name: str) -> bool:
        """It refused one; whether it took one before that."""
        try:
            self._took.remove(name)
        except KeyError:
            return False
        return True


class Transports:
    """Opens each once. Which one rests (`Rests`) is this process's knowledge: another finds out for itself."""

    def __init__(self, urls: Mapping[str, str], keeper: TokenKeeper | None = None) -> None:
        self.rests, self.takings = Rests(), Takings()
        self._keeper = keeper
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
                self._open[name] = open_transport(name, self._urls[name], self._keeper)
            return self._open[name]

    def token_login(self, name: str) -> TokenLogin | None:
        """How a transport gets its access tokens; None for one that does not log in by them.

        Raises:
            ConfigurationError: as `get`.
        """
        login = getattr(self.get(name), "login", None)
        return login if isinstance(login, TokenLogin) else None

    def on_loop(self) -> set[str]:
        """The names of those that send from an event loop."""
        return {name for name, url in self._urls.items() if is_on_loop(url)}

    def names(self) -> list[str]:
        """Every transport that is set."""
        return list(self._urls)

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
