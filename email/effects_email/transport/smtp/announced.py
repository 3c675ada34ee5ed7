"""A transaction whose envelope went out with the end of the message before it (RFC 2920, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable

from effects.extend import point
from effects_email.transport.replies.faults import fault_of
from effects_email.transport.smtp.transaction import OUT_OF_STEP, Transaction

# As which Postfix and Exim refuse commands that came before they were asked for.
_TOO_EARLY = 554


class AnnouncedTransaction(Transaction):
    """`run` marks the message while the one before it is answered, then goes on with the answers to its envelope.

    They are believed only once it is seen that they are its own: a reply too many, or one that is missing, would be
    another's. 354 in its place shows it, else the answer to an EHLO. Nothing has been sent until then,
    so that all else leaves no verdict: `stale` is true, and the message is to have another session.
    """

    def run(self, release: Callable[[], None]) -> None:
        point("email.behind")
        self._release(release)
        point("email.released")
        self._progress.note("envelope")
        if not self._turn.comes(self._progress):
            self._void()
            return
        self._client.dirty = True
        self._guarded(self._finish)
        if self._going_ahead or self._guarded(self._is_in_step):
            self._turn.order.in_step()

    def _is_in_step(self) -> bool:
        """Whether the envelope's refusal is what the server says of it; else nothing is known of it."""
        if not self.usable:  # it is closing, or broken
            self._void()
            return False
        codes = {verdict.reply.code for verdict in self.verdicts.values() if verdict.reply is not None}
        begun, code = self._client.begin_again()
        if begun and codes.isdisjoint((*OUT_OF_STEP, _TOO_EARLY)) and self._client.is_silent:
            self._client.dirty = False
            return True
        if code != 421:
            self._turn.order.out_of_step("refused")
        self._void()
        return False

    def _broken(self, error: Exception) -> None:
        if self._going_ahead:
            super()._broken(error)
            return
        if fault_of(error) == "closed":
            self._turn.order.hung_up()
        else:
            self._turn.order.out_of_step(fault_of(error))
        self._void()

    def _void(self) -> None:
        self.verdicts, self.left, self._taken = {}, [], []
        self.usable = False
        self._dead = True
