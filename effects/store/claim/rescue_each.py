"""Rescue, one job at a time where a batch fails: what is wrong with one job keeps back no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from effects.errors import StoreConflict
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.model.settlement import Settlement
from effects.store.claim.invalid_rows import as_text, concerns_a_job, end_invalid, is_value_fault
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.queue.liveness import lost_ids, rescue
from effects.store.queue.settle import LedgerFailed, Settled
from effects.store.queue.table_ledger import bare_ledgers
from effects.text.scrub import class_name

_log = logging.getLogger("effects.worker")


def rescue_valid(
    store: Store,
    registry: Registry,
    ledgers: Mapping[str, Ledger],
    lease_seconds: float,
    *,
    brisk: AbstractContextManager[None] | None = None,
) -> Settled:
    """`rescue`; where it fails at a job, one job at a time.

    A job at which it fails again is taken back without the code of its package's ledger. Where a value is at fault
    even then, it is ended: it may have run. Any other failure is logged and leaves the job to the next round, as does a
    transaction that is in the way.

    Args:
        brisk: entered while jobs are taken back one at a time, so that a held lock is hardly waited for.

    Raises:
        StoreUnavailable, StoreRejected: errors that do not concern a job.
    """
    try:
        return rescue(store, registry, ledgers, lease_seconds)
    except Exception as error:
        if not concerns_a_job(store, error):
            raise
    accepted: list[Settlement] = []
    bare = bare_ledgers(ledgers)

    def take_back(job_id: int, recording: Mapping[str, Ledger]) -> None:
        accepted.extend(rescue(store, registry, recording, lease_seconds, only=job_id).accepted)

    with brisk or nullcontext():
        for ids in _pages_of_lost(store, registry, lease_seconds):
            for job_id in ids:
                failure = _error_of(store, partial(take_back, job_id, ledgers))
                if failure is not None and not isinstance(failure, StoreConflict):
                    _take_back_or_end(store, ledgers, job_id, failure, partial(take_back, job_id, bare))
            if accepted:  # the rest is for the next rounds
                break
    return Settled(accepted, [])


def _pages_of_lost(store: Store, registry: Registry, lease_seconds: float) -> Iterator[list[int]]:
    """The ids of lost jobs, 100 at a time: jobs that cannot be taken back hide none that come after them."""
    after = 0
    while True:
        with store.read() as connection:
            ids = lost_ids(store, connection, registry, lease_seconds, after)
        if not ids:
            return
        yield ids
        after = ids[-1]


def _take_back_or_end(
    store: Store, ledgers: Mapping[str, Ledger], job_id: int, error: Exception, take_back_bare: Callable[[], None]
) -> None:
    """Take back the job at which rescue fails, or end it if a value in it is the reason."""
    job_type = _type_of(store, job_id)
    bare_error = _error_of(store, take_back_bare)
    if bare_error is not None and is_value_fault(bare_error):
        invalid_error = _error_of(store, partial(end_invalid, store, ledgers, job_id, bare_error))
        if invalid_error is None:
            return
        error = invalid_error
    cause = error.__cause__ if isinstance(error, LedgerFailed) else error
    _log.error("rescue.failed", extra={"job": job_id, "type": job_type, "error": class_name(cause)})


def _error_of(store: Store, step: Callable[[], object]) -> Exception | None:
    """Why this step failed at its job; None if it did not. Errors that do not concern the job are raised."""
    try:
        step()
    except Exception as error:
        if not concerns_a_job(store, error):
            raise
        return error
    return None


def _type_of(store: Store, job_id: int) -> str | None:
    with store.read() as connection:
        return as_text(store.value(connection, _job_type, id=job_id))


def _job_type(sql: Sql) -> str:
    """As bytes on SQLite: it may not be valid UTF-8."""
    job_type = "job_type" if sql.postgresql else "CAST(job_type AS BLOB)"
    return f"SELECT {job_type} FROM {sql.jobs} WHERE id = :id"
