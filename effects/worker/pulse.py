"""The worker's heartbeat and the rescue of other workers' jobs, each on a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable

from effects.app import Effects
from effects.errors import StoreUnavailable
from effects.store.liveness import RESCUE_BATCH, WorkerIdentity, heartbeat, register, rescue, seconds_up
from effects.worker.outage import Outage

_log = logging.getLogger("effects.worker")


class Pulse(threading.Thread):
    """Renews the worker's row every `heartbeat_seconds` and passes on cancel requests.

    Args:
        identity: makes a new identity; a worker that was declared dead comes back as another.
        disowned: called when this worker finds that it was declared dead: it owns nothing any more.
        cancelled: told of the running jobs that somebody asked to cancel.
    """

    def __init__(
        self,
        app: Effects,
        outage: Outage,
        identity: Callable[[], WorkerIdentity],
        *,
        disowned: Callable[[], None],
        cancelled: Callable[[set[int]], None],
    ) -> None:
        super().__init__(name="effects-pulse", daemon=True)
        self._app, self._outage, self._identity = app, outage, identity
        self._disowned, self._cancelled = disowned, cancelled
        self._ending = threading.Event()
        self._beat_at = time.monotonic()
        self.worker = identity()

    def first(self) -> None:
        """Write the worker's row; before that nothing may be claimed.

        Raises:
            StoreUnavailable: the database is away.
        """
        asked_at = time.monotonic()  # as for a heartbeat
        register(self._app.store, self.worker)
        self._beat_at = asked_at

    @property
    def fresh(self) -> bool:
        """Whether the last heartbeat is younger than half the lease; only then an effect may start."""
        return time.monotonic() - self._beat_at < self._app.settings.lease_seconds / 2

    def run(self) -> None:
        while not self._ending.wait(self._app.settings.heartbeat_seconds):
            try:
                self._outage.ride_out(self._beat, give_up=self._ending.is_set)
            except Exception as error:  # without a pulse this worker would start nothing, for ever
                _log.error("heartbeat.failed", extra={"error": type(error).__name__})

    def _beat(self) -> None:
        asked_at = time.monotonic()  # before the statement: a slow answer must not make the lease look younger
        silent_seconds = asked_at - self._beat_at
        alive, cancelled = heartbeat(self._app.store, self.worker.id)
        if not alive or silent_seconds > self._app.settings.lease_seconds:
            _log.error(
                "worker.disowned",
                extra={"worker": self.worker.id, "silent_seconds": round(silent_seconds, 1)},
            )
            self._disowned()
            self.worker = self._identity()
            register(self._app.store, self.worker)
        self._beat_at = asked_at
        if cancelled:
            self._cancelled(cancelled)

    def stop(self) -> None:
        self._ending.set()


class Rescuer(threading.Thread):
    """Takes back, every quarter of a lease or so, the jobs of workers that are gone.

    After a database outage every worker looks silent. So nobody rescues until a full lease after this
    worker's last outage, nor within a lease of the server's start.
    """

    def __init__(self, app: Effects, outage: Outage, *, rescued: Callable[[], None]) -> None:
        super().__init__(name="effects-rescuer", daemon=True)
        self._app, self._outage, self._rescued = app, outage, rescued
        self._ending = threading.Event()

    def run(self) -> None:
        interval = min(30.0, self._app.settings.lease_seconds / 4)
        while not self._ending.is_set():
            self.try_round()
            self._ending.wait(interval * (0.75 + random.random() / 2))  # noqa: S311 - jitter

    def try_round(self) -> None:
        """A round, whose failure is logged: the next one may fare better, and the worker must go on."""
        try:
            self.round()
        except StoreUnavailable as error:
            self._outage.began(error)
        except Exception as error:
            _log.error("rescue.failed", extra={"error": type(error).__name__})

    def round(self) -> int:
        """Rescue until a batch comes back short; the number of jobs taken back."""
        total = 0
        while not self._ending.is_set() and not self._too_early():
            app = self._app
            settled = rescue(app.store, app.job_types, app.ledgers, app.settings.lease_seconds)
            for one in settled.accepted:
                fields = {"job": one.job.id, "type": one.job.job_type, "lost": one.job.lost_count + 1}
                _log.warning("job.rescued", extra={**fields, "status": one.status})
            total += len(settled.accepted)
            if len(settled.accepted) < RESCUE_BATCH:
                break
        if total:
            self._rescued()
        return total

    def _too_early(self) -> bool:
        lease = self._app.settings.lease_seconds
        if self._outage.under_way or time.monotonic() - self._outage.ended_at < lease:
            return True
        with self._app.store.read() as connection:
            return seconds_up(self._app.store, connection) < lease

    def stop(self) -> None:
        self._ending.set()
