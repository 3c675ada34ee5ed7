"""A chunk of a bulk action: up to 200 jobs acted on, and the progress, in one transaction.

A crash before its commit leaves nothing of it; after it, the next chunk begins behind it. So each job is acted on once,
whatever dies and however many attempts run at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.errors import JobNotFound, JobStateError
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.store.bulk.operation import REJECTED, Operation, refusal_code
from effects.store.bulk.records import BulkCounts, RunningBulk, advance, lock_running
from effects.store.bulk.selection import groups_of, select_ids
from effects.store.db.store import Store
from effects.store.enqueue.insert import lock_groups

CHUNK = 200


class BulkChunk(msgspec.Struct, frozen=True):
    """What was done: jobs acted on, the queues to hint, and whether the bulk action has ended with it."""

    done: int
    queues: set[str]
    ended: bool


class ChunkActor:
    """Acts on chunks of one bulk action, for one of its jobs."""

    def __init__(
        self, store: Store, job_types: Registry, ledgers: Mapping[str, Ledger], *, bulk_id: int, job_id: int
    ) -> None:
        self._store, self._job_types, self._ledgers = store, job_types, ledgers
        self._bulk_id, self._job_id = bulk_id, job_id

    def act(self, size: int = CHUNK) -> BulkChunk | None:
        """Act on the next jobs, at most `size`. A job that refuses is counted by its reason, and stops nothing.

        Returns:
            None where the bulk action does not run, or another attempt has its row.

        Raises:
            DBAPIError: the database refuses one of them; nothing was done. Try fewer, or pass over a single one.
            StoreConflict: another transaction was in the way; nothing was done.
            StoreUnavailable: the database is unavailable. What was committed stays.
        """
        return self._work(size, pass_over=False)

    def pass_over(self) -> BulkChunk | None:
        """Count the next job as refused by the database, without an attempt at it."""
        return self._work(1, pass_over=True)

    def _work(self, size: int, *, pass_over: bool) -> BulkChunk | None:
        store = self._store
        with store.begin() as connection:
            bulk = lock_running(store, connection, self._bulk_id)
            if bulk is None:
                return None
            selected = select_ids(store, connection, bulk.selection, bulk.last_id, size)
            if pass_over:
                done, queues, refusals = 0, set[str](), Counter({REJECTED: len(selected.ids)})
            else:
                done, queues, refusals = self._act_on(connection, bulk, selected.ids)
            ended = selected.last_id >= bulk.selection.max_id
            counts = BulkCounts(last_id=selected.last_id, done=done, refusals=dict(+refusals), ended=ended)
            advance(store, connection, bulk, counts, job_id=self._job_id, actor=bulk.actor, reason=bulk.reason)
            point("bulk.before_commit")
        point("bulk.committed")
        return BulkChunk(done, queues, ended)

    def _act_on(
        self, connection: Connection, bulk: RunningBulk, job_ids: Sequence[int]
    ) -> tuple[int, set[str], Counter[str]]:
        operation = Operation(
            store=self._store, job_types=self._job_types, ledgers=self._ledgers, action=bulk.action, actor=bulk.actor,
            reason=bulk.reason, bulk_id=bulk.id,
        )  # fmt: skip
        # In their order, as an enqueue of many takes them: job by job, two transactions could wait for each other.
        lock_groups(self._store, connection, groups_of(self._store, connection, job_ids))
        done, queues, refusals = 0, set[str](), Counter[str]()
        for job_id in job_ids:
            try:
                acted = operation.act(job_id, connection)
            except (JobNotFound, JobStateError) as error:
                refusals[refusal_code(error)] += 1
            else:
                done += 1
                queues.update({acted.queue} if acted.queue is not None else ())
        return done, queues, refusals
