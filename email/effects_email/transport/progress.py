"""How far one try of a message has come, how long each phase took, and how long the present one may still wait."""

from __future__ import annotations

import time
from dataclasses import dataclass

from effects_email.transport.base import Stage

_PHASES: dict[Stage, str] = {
    "connect": "connect", "banner": "connect", "ehlo": "connect", "tls": "tls", "starttls": "tls", "auth": "auth",
    "mail": "envelope", "rcpt": "envelope", "data": "envelope", "body": "body", "dot": "answer",
}  # fmt: skip
_BEFORE_DOT_SECONDS = 60.0  # at least, where the whole time allows it


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds that a stage may last. After the dot RFC 5321 asks for 10 minutes: shorter waits make duplicates."""

    connect_seconds: float = 15.0
    stage_seconds: float = 30.0
    answer_seconds: float = 600.0


class SendProgress:
    """One try under one deadline. What comes before the dot must leave time for the answer after it.

    Args:
        seconds: for everything.
    """

    __slots__ = ("_before_dot", "_late_at", "_phase", "_since", "_timeouts", "_total", "_until", "phases", "stage")

    def __init__(self, seconds: float, timeouts: Timeouts) -> None:
        now = time.monotonic()
        self.stage: Stage = "connect"
        self.phases: dict[str, float] = {}
        self._timeouts = timeouts
        self._total = now + seconds
        self._before_dot = now + max(min(seconds / 2, _BEFORE_DOT_SECONDS), seconds - timeouts.answer_seconds)
        self._late_at = self._before_dot - min(timeouts.connect_seconds, (self._before_dot - now) / 2)
        self._phase: str | None = None
        self._since = self._until = now

    def enter(self, stage: Stage) -> None:
        """A stage begins, and with it its time."""
        now = self.note(_PHASES[stage])
        self.stage = stage
        if stage == "dot":
            self._until = min(now + self._timeouts.answer_seconds, self._total)
        else:
            limits = self._timeouts
            limit = limits.connect_seconds if stage in ("connect", "tls") else limits.stage_seconds
            self._until = min(now + limit, self._before_dot)

    def allow(self, seconds: float) -> None:
        """Set the limit of the present stage."""
        self._until = time.monotonic() + seconds

    def note(self, phase: str | None) -> float:
        """Another phase begins (None: none does); returns the time."""
        now = time.monotonic()
        if self._phase is not None:
            self.phases[self._phase] = self.phases.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return now

    def in_phase(self) -> float:
        """Seconds since the present phase began."""
        return time.monotonic() - self._since

    def end(self) -> dict[str, float]:
        """The last phase ends; the seconds of each."""
        self.note(None)
        return self.phases

    def remaining(self) -> float:
        """Seconds that the present stage may still wait.

        Raises:
            TimeoutError: none.
        """
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def remaining_in_all(self) -> float:
        """Seconds left for what comes before the dot; 0 or less when they are used up."""
        return self._before_dot - time.monotonic()

    @property
    def is_late(self) -> bool:
        """Whether less is left than a connection may take, and less than half of what there was before the dot."""
        return time.monotonic() > self._late_at
