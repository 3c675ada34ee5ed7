"""Whether this process may open connections to others: in production always, in a test only where it says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

NetworkRule: TypeAlias = Callable[[str], bool]


class NetworkRefused(AssertionError):
    """A test was about to leave this process; nothing was looked up and nothing was sent."""


_rule: NetworkRule | None = None


def check_network(host: str) -> None:
    """Ask before a host is looked up or connected to. Every transport of effects and of its packages does.

    Raises:
        NetworkRefused: this process is a test's, whose rule does not admit the host.
    """
    if _rule is not None and not _rule(host):
        raise NetworkRefused(
            f"a test was about to connect to {host}: capture the job type (`toolkit.capture`), or, for a server of the "
            "test's own on this machine, Toolkit(…, allow_loopback=True)"
        )


def replace_network_rule(rule: NetworkRule | None) -> NetworkRule | None:
    """Set which hosts may be connected to and return the previous rule; None admits all."""
    global _rule
    before, _rule = _rule, rule
    return before
