"""Which transport a try goes by, and whether the next one of its list may follow: only where it surely did not send.

One try, one transport. Where that one surely did not send the message and a later one of the list does not rest, the
job comes back at once, at no cost of an attempt, and goes by that one. From the first try on that may have delivered
it, a message stays with the transport that may have: that one alone can be asked, and knows the key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from effects import Pause
from effects.extend.process import RateLimitedLogger, own_logger
from effects_email.classify import (
    CONFIG_SECONDS,
    LOGIN_SECONDS,
    PASSED_ON,
    THROTTLE_SECONDS,
    Weight,
    is_of_login,
    leading,
    outcome_word,
)
from effects_email.loading import Message
from effects_email.transport.base import About, Kind, SendResult, Verdict
from effects_email.transport.registry import Transports

_WAIT_SECONDS = 1.0  # at least, while every transport of a list rests
# Of the verdicts that say: not sent, and perhaps later. The others are final, or leave it open.
_NOT_SENT: tuple[Kind, ...] = ("transport_down", "config", "throttle", "retry")
_NOT_OF_TRANSPORT: tuple[About | None, ...] = ("recipient", "message")  # another one would be answered the same
_CONFLICT = 409  # an earlier request with this key may be under way
_log = own_logger("effects.email")


def surely_not_sent(verdict: Verdict, weight: Weight) -> bool:
    """Whether this verdict of a whole message says that it went to no one, and is not the message's own fault."""
    if weight == "own":
        return False
    if weight == "rest":  # refused, as several others alike: the transport refuses everything
        return True
    code = verdict.reply.code if verdict.reply is not None else None
    return verdict.kind in _NOT_SENT and verdict.about not in _NOT_OF_TRANSPORT and code != _CONFLICT


class TransportChains:
    """Args:
    chains: the transports that follow one, with it at the head, by its name.
    """

    def __init__(self, transports: Transports, chains: Mapping[str, Sequence[str]]) -> None:
        self._transports, self._rests = transports, transports.rests
        self._chains = chains
        self._logger = RateLimitedLogger(_log, "email.failover")

    def check(self) -> None:
        """Open all configured transports, without connecting.

        Raises:
            ConfigurationError: a URL is wrong, or a list names a transport that is not set.
        """
        self._transports.check()
        for name in (name for chain in self._chains.values() for name in chain):
            self._transports.get(name)

    def chain(self, transport: str) -> Sequence[str]:
        """The transports of a message that is for this one."""
        return self._chains.get(transport, (transport,))

    def choose(self, message: Message) -> str | None:
        """The transport of its next try; None while all of its list rest."""
        chain = self.chain(message.transport)
        if message.unknown:
            return message.last_transport
        if len(chain) == 1:
            return chain[0]
        start = 0
        if message.passed_on and message.used_transport in chain[:-1]:
            start = chain.index(message.used_transport) + 1
        return next((name for name in (*chain[start:], *chain[:start]) if self._rests.may_try(name)), None)

    def wait(self, message: Message) -> Pause:
        """While every transport of its list rests."""
        seconds = self._seconds_left(message)
        return Pause(seconds, "every transport of its list rests", code="transports_rest", parent=True)

    def note(self, message: Message, transport: str, send_result: SendResult) -> float:
        """Remember whether the transport worked; seconds that it is to be left alone.

        Where another one can take its place, a wire that failed after the connection rests it too: each message would
        wait for its time limit. So does a login that is refused.
        """
        verdict = send_result.verdict
        has_others = len(self.chain(message.transport)) > 1
        is_fault = verdict.kind in ("retry", "unknown") and (verdict.reply is None or verdict.reply.code is None)
        if verdict.kind == "transport_down" or (has_others and is_fault):
            return self._rests.down(transport)
        if has_others and is_of_login(verdict):
            return self._rests.down(transport, LOGIN_SECONDS)
        self._rests.up(transport)
        return 0.0

    def follow(
        self, message: Message, transport: str, send_result: SendResult, weight: Weight, detail: Mapping[str, Any]
    ) -> Pause | None:
        """What follows where another transport of the list may send the message; None where nothing of that kind.

        The transport rests, where it is to blame. `PASSED_ON` in the detail: the next one is tried at once.
        """
        verdict, chain = leading(send_result), self.chain(message.transport)
        if len(chain) == 1 or message.unknown or not surely_not_sent(verdict, weight):
            return None
        if weight == "rest" or verdict.kind == "throttle":
            seconds = verdict.after_seconds or THROTTLE_SECONDS
            self._rests.rest(transport, CONFIG_SECONDS if weight == "rest" else seconds)
        later = chain[chain.index(transport) + 1 :] if transport in chain else ()
        free = next((name for name in later if self._rests.is_free(name)), None)
        if free is not None:
            self._logger.error(f"transport {transport}: {verdict.reason}; {free} is next")
            said = {**detail, "outcome": PASSED_ON}
            return Pause(0.0, f"{verdict.reason}; {free} is next", code=verdict.code, detail=said)
        if verdict.kind == "retry" or weight == "hold":
            return None
        said = {**detail, "outcome": outcome_word(verdict, weight)}
        return Pause(self._seconds_left(message), verdict.reason, code=verdict.code, detail=said, parent=True)

    def _seconds_left(self, message: Message) -> float:
        return max(_WAIT_SECONDS, self._rests.seconds_left(self.chain(message.transport)))
