"""The dispatcher: claims for the lanes that have room, and rests until there is a reason to look again."""

from __future__ import annotations

import random
import threading
import time

from effects.store.claim import Claimed
from effects.worker.claimer import Claimer
from effects.worker.intake import Intake
from effects.worker.lane import LaneThreads
from effects.worker.lanes import Lanes
from effects.worker.pulse import Pulse
from effects.worker.settler import Settler

TOKEN_SECONDS_MIN = 0.05  # tokens of a rate are claimed in batches: no claim for each that comes
TOKEN_SECONDS_DRAIN = 5.0  # a drain waits for tokens that come within this


class Dispatcher:
    """Runs in the thread that called the worker's `run` or `drain`; the only one that claims.

    Args:
        stopping: once it is set nothing more is claimed.
        wake: ends a rest.
        poll_seconds: the longest rest.
    """

    def __init__(
        self,
        lanes: Lanes,
        claimer: Claimer,
        intake: Intake,
        settler: Settler,
        pulse: Pulse,
        *,
        stopping: threading.Event,
        wake: threading.Event,
        poll_seconds: float,
    ) -> None:
        self._lanes, self._claimer, self._intake, self._settler, self._pulse = lanes, claimer, intake, settler, pulse
        self._stopping, self._wake, self._poll_seconds = stopping, wake, poll_seconds

    def round(self) -> bool:
        """Claim for every lane that has room; whether anything was claimed or remains to be looked at."""
        self._wake.clear()
        progress = False
        for lane in self._lanes:
            for settlement in lane.overdue():
                self._settler.add(settlement)
            room = lane.room() if lane.asked else 0
            if room > 0 and self._pulse.fresh and not self._stopping.is_set():
                lane.asked = False  # before the claim: whoever asks while it runs is heard
                claimed = self._claim(lane, room)
                if claimed.more:  # not `|=`, which would forget whoever asked meanwhile
                    lane.asked = True
                progress |= bool(claimed.jobs) or lane.asked
        return progress

    def round_everywhere(self) -> bool:
        """A round that leaves out no lane: what an outcome's `apply` enqueued may be in any of them."""
        self._lanes.ask()
        return self.round()

    def _claim(self, lane: LaneThreads, room: int) -> Claimed:
        claimed = self._claimer.claim(lane.lane, self._pulse.worker.id, room, give_up=self._stopping.is_set)
        if claimed is None:
            return Claimed([], more=False)
        lane.paced = claimed.paced
        if claimed.wait_seconds is not None:  # of this round's keys; those of the round before may open earlier
            opens_at = time.monotonic() + max(TOKEN_SECONDS_MIN, claimed.wait_seconds)
            lane.opens_at = opens_at if lane.opens_at is None else min(opens_at, lane.opens_at)
        for attempt in self._intake.attempts(claimed.jobs):
            lane.accept(attempt)
        return claimed

    def rest(self) -> None:
        """Until somebody wakes us, the next known retry, the next poll, or the next look at time limits."""
        wait = self._poll_seconds * (0.5 + random.random() / 2)  # noqa: S311 - jitter
        retry_at = self._settler.next_retry()
        now = time.monotonic()
        deadlines = [attempt.deadline for attempt in self._lanes.running]
        known = [retry_at] if retry_at is not None else []
        self._wait_until(min([now + wait, self._lanes.opens_at, *deadlines, *known]))

    def await_token(self, give_up_at: float) -> bool:
        """Whether due jobs wait for nothing but tokens that come soon; then wait for the first."""
        soonest = self._lanes.opens_at
        if soonest > min(give_up_at, time.monotonic() + TOKEN_SECONDS_DRAIN):
            return False
        self._wait_until(soonest)
        return True

    def _wait_until(self, soonest: float) -> None:
        """Monotonic; if nobody has woken us by then, every lane looks again."""
        if not self._wake.wait(max(0.0, soonest - time.monotonic())):
            self._lanes.ask()

    def all_settled(self, give_up_at: float) -> bool:
        """Wait for what runs; False as soon as there is room to claim more, or the time is up."""
        while self._lanes.busy() or self._settler.pending:
            if self._stopping.is_set() or time.monotonic() >= give_up_at:
                return False
            self._wake.wait(0.02)
            if self._lanes.opens_at <= time.monotonic():
                self._lanes.ask()
            if self._wake.is_set():
                return False
        return True
