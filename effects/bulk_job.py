"""The job that carries a bulk action out, chunk by chunk."""

from __future__ import annotations

import time

import msgspec
from sqlalchemy.exc import DBAPIError

from effects.app import Effects
from effects.errors import BulkNotFound, StoreUnavailable
from effects.model.attempt import Attempt
from effects.model.job_type import JobType
from effects.model.outcome import Cancelled, Done, Outcome, Refused, Snooze
from effects.store.bulk import records
from effects.store.bulk.chunks import CHUNK, BulkChunk, ChunkActor
from effects.walk import Page, walk

SLICE_SECONDS = 5.0  # of one attempt of the job; then others have their turn
BUSY_SECONDS = 2.0  # before a look at a row that another attempt has
OUTAGE_SECONDS = 5.0


class BulkPayload(msgspec.Struct, frozen=True):
    bulk_id: int


class BulkJob(JobType[BulkPayload]):
    """Works through a bulk action, chunk by chunk."""

    name = "effects.bulk"
    payload = BulkPayload
    priority = 0  # before the jobs that it cancels
    time_limit_seconds = 120.0

    def __init__(self, app: Effects) -> None:
        self._app = app

    def perform(self, payload: BulkPayload, attempt: Attempt) -> Outcome:
        if attempt.cancel_requested:
            return Cancelled("its job was cancelled")
        until = time.monotonic() + SLICE_SECONDS
        work = _Slice(self._app, payload.bulk_id, attempt.job.id)
        try:
            walk(work.step, go_on=lambda: (work.is_due or time.monotonic() < until) and not attempt.cancel_requested)
        except StoreUnavailable:
            return Snooze(OUTAGE_SECONDS, "the database was unavailable, or another transaction in the way")
        if work.is_over:
            return self._end(payload.bulk_id)
        return Snooze(0.0, "there is more to do")

    def _end(self, bulk_id: int) -> Outcome:
        """Read what the row says: that there was no chunk has three reasons."""
        try:
            with self._app.store.read() as connection:
                bulk = records.read_bulk(self._app.store, connection, bulk_id)
        except BulkNotFound as error:
            return Refused(str(error), code="not_found")
        if bulk.status == "cancelled":
            return Cancelled(f"bulk {bulk_id} was cancelled")
        if bulk.status == "done":
            counts = {"done": bulk.done, "refused": bulk.refused, "no_longer_match": bulk.no_longer_match}
            return Done(detail={"bulk": bulk_id, **counts})
        return Snooze(BUSY_SECONDS, f"another attempt works on bulk {bulk_id}")


class _Slice:
    """The steps of one attempt. `is_over`: there was no further chunk for it. `is_due`: it owes a chunk, however late:
    the next slice would begin to narrow down at full size again.
    """

    def __init__(self, app: Effects, bulk_id: int, job_id: int) -> None:
        self._app = app
        self._actor = ChunkActor(app.store, app.job_types, app.ledgers, bulk_id=bulk_id, job_id=job_id)
        self.is_over, self.is_due = False, True

    def step(self, size: int | None) -> Page:
        """Act on a chunk. After one that the database refuses, on fewer, until the one job that it refuses is alone."""
        size = size or CHUNK
        try:
            chunk = self._actor.act(size)
        except DBAPIError:  # about a row: all others are translated
            if size > 1:
                self.is_due = True
                return Page(0, size // 2)
            chunk = self._actor.pass_over()
        self.is_due = False
        return self._page(chunk)

    def _page(self, chunk: BulkChunk | None) -> Page:
        if chunk is None:
            self.is_over = True
            return Page(0)
        self._app.notifier.send(chunk.queues)
        self.is_over = chunk.ended
        return Page(chunk.done, None if chunk.ended else CHUNK)
