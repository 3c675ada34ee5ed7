"""Rows that no statement can work with: claim and rescue go round them. Each is found and ended, dead.

The constraints of `effects.store.schema.columns` keep such rows out. This is for those that came past them: a file
written with the checks off, an older table, an engine of the app that cannot decode every text. Their content is
printed nowhere. `rescue_valid` takes back lost jobs one at a time where a batch fails at one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from sqlalchemy import Connection, Row

from effects.errors import StoreConflict
from effects.kit.crashpoints import CrashPoint
from effects.kit.logs import own_logger
from effects.kit.text.scrub import class_name
from effects.model.job import Job
from effects.model.ledger import Ledger
from effects.model.registry import Registry
from effects.model.settlement import Settlement, Verdict
from effects.store.claim.claim import Claimed, claim
from effects.store.claim.lease import ClaimRequest, lease_and_undo
from effects.store.db.faults import Fault, fault_of, state_of
from effects.store.db.records import as_text
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.queue.liveness import lost_ids, rescue
from effects.store.queue.settle import Settled
from effects.store.queue.table_ledger import CORE_LEDGER, LedgerFailed, TableLedger, bare_ledgers
from effects.store.queue.unresolved import add_unresolved
from effects.store.schema.columns import COUNT_MAX, TOKEN_MAX
from effects.store.schema.job_tables import FACTS

PAGE = 512
ENDED_MAX = 100  # in one search; the next claim finds the next ones
LOSSES = 3  # trials in a row that lose their connections at a row: fewer may be a network that comes and goes
CODE = "row_invalid"
MESSAGE = "no statement can work with this row; what it holds is not shown"

# Of a conflict with another row, no row alone is at fault.
_BETWEEN_ROWS = ("23505", "23503", "23P01", "SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_PRIMARYKEY")
_PYTHON = (TypeError, ValueError, OverflowError, RecursionError)  # of reading a row; UnicodeError is a ValueError

_log = own_logger("effects.worker")


def claim_valid(store: Store, ledgers: Mapping[str, Ledger], request: ClaimRequest, worker: str, want: int) -> Claimed:
    """`claim`; rows at which it fails are ended, and the caller may claim again at once.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    try:
        return claim(store, request, worker, want)
    except Exception as error:
        trial = partial(lease_and_undo, store, request, worker)
        if not is_value_fault(error) or not end_due(store, ledgers, request, trial):
            raise
    return Claimed([], more=True)


# -- the search ------------------------------------------------------------------------------------------


def find_faulty(
    ids: Sequence[int], trial: Callable[[Sequence[int]], Exception | None]
) -> Iterator[tuple[int, Exception]]:
    """Those ids that fail alone, with their errors; by halves, so that one among many costs few trials."""
    error = trial(ids) if ids else None
    if error is None:
        return
    if len(ids) == 1:
        lost = fault_of(error) is Fault.LOST
        if is_value_fault(error) and (not lost or all(trial(ids) for _ in range(LOSSES - 1))):
            yield ids[0], error
        return
    middle = len(ids) // 2
    yield from find_faulty(ids[:middle], trial)
    yield from find_faulty(ids[middle:], trial)


def end_due(
    store: Store,
    ledgers: Mapping[str, Ledger],
    request: ClaimRequest,
    trial: Callable[[Sequence[int]], Exception | None],
) -> int:
    """End the rows of the queue that cannot be leased; how many. First where a claim looks first, then everywhere.

    Args:
        trial: `lease_and_undo`.
    """
    ended = 0
    for page in _pages(store, request):
        for job_id, error in find_faulty(page, trial):
            ended += _end_invalid(store, ledgers, job_id, error)
            if ended >= ENDED_MAX:
                return ended
        if ended:
            return ended
    return ended


def _pages(store: Store, request: ClaimRequest) -> Iterator[Sequence[int]]:
    """The ids of waiting jobs: the first due ones of the queue, then all of the known types.

    For a claim looks at the groups of every queue.
    """
    types = as_json(list(request.lease_seconds))
    with store.read() as connection:
        yield [row.id for row in store.all(connection, _first_due, queue=request.queue, types=types)]
    cursor: int | None = 0
    while cursor is not None:
        with store.read() as connection:
            page = [row.id for row in store.all(connection, _waiting, cursor=cursor, types=types)]
        yield page
        cursor = page[-1] if len(page) == PAGE else None


def _first_due(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE queue = :queue AND status <> 'running' AND run_at <= {sql.now}
    AND job_type {sql.any_of("types")} ORDER BY priority, run_at, id LIMIT {PAGE}"""


def _waiting(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.jobs} WHERE id > :cursor AND status <> 'running' AND job_type {sql.any_of("types")}
    ORDER BY id LIMIT {PAGE}"""


# -- the end of one --------------------------------------------------------------------------------------


def is_value_fault(error: BaseException) -> bool:
    """Whether a value in a row is the reason, so that the same statement would do without the row."""
    if fault_of(error) is Fault.LOST:
        return True
    if fault_of(error) is Fault.DATA:
        return state_of(error) not in _BETWEEN_ROWS
    return isinstance(error, _PYTHON)


def _concerns_a_job(store: Store, error: Exception) -> bool:
    """Whether other jobs may do without this error. A lock that is held on SQLite is on the whole file."""
    fault = fault_of(error)
    if fault is Fault.CONFLICT:
        return store.is_postgresql
    return fault in (Fault.DATA, Fault.LOST, Fault.BUG) and not isinstance(error, CrashPoint)


def _end_invalid(store: Store, ledgers: Mapping[str, Ledger], job_id: int, error: Exception) -> bool:
    """Move the row as it is to the history, dead; False where it is gone or another holds it.

    What waited was not carried out; what was running may have been, so that its effect is unknown.
    """
    with store.begin() as connection:
        row = store.row(connection, _lock, id=job_id)
        if row is None:
            return False
        verdict: Verdict = "unknown" if row.running else "not_done"
        outcome = "lost" if row.running else "refused"
        store.write(connection, _log_attempt, id=job_id, verdict=verdict, outcome=outcome)
        store.write(connection, _copy, id=job_id)
        store.write(connection, _delete, id=job_id)
        _record(store, connection, ledgers, row, verdict)
        add_unresolved(store, connection, [job_id], ledgers)
    _log.error("job.row_invalid", extra={"job": job_id, "error": _name_of(error)})
    return True


def _name_of(error: Exception) -> str:
    """SQLSTATE or class: the text may quote the row."""
    return state_of(error) or type(error).__name__


def _record(
    store: Store, connection: Connection, ledgers: Mapping[str, Ledger], row: Row[Any], verdict: Verdict
) -> None:
    """Tell the ledger of its effect. A package that fails at the row leaves it to the plain fold."""
    key, job_type = as_text(row.key), as_text(row.job_type) or ""
    if key is None:
        return
    ledger = ledgers.get(job_type, CORE_LEDGER)
    settlement = Settlement(
        job=_stand_in(row.id, job_type, key), status="dead", outcome="refused", verdict=verdict, error_code=CODE,
        message=MESSAGE,
    )  # fmt: skip
    try:
        with connection.begin_nested():
            ledger.record(store, connection, [settlement])
    except Exception as error:
        if fault_of(error) is Fault.CONFLICT or not _concerns_a_job(store, error):
            raise
        TableLedger(ledger.table).record(store, connection, [settlement])


def _stand_in(job_id: int, job_type: str, key: str) -> Job:
    """The values of the job that a ledger may read, without the rest of the row."""
    return Job(
        id=job_id, job_type=job_type, payload="{}", queue="", priority=0, attempts=1, max_attempts=None, lease_token=0,
        lost_count=0, unknown_count=0, released=False, routed=True, expired=False, cancel_requested=False,
        age_seconds=0.0, key=key,
    )  # fmt: skip


def _lock(sql: Sql) -> str:
    """Texts as bytes on SQLite: they may not be valid UTF-8."""
    texts = "job_type, idempotency_key AS key"
    if not sql.postgresql:
        texts = "CAST(job_type AS BLOB) AS job_type, CAST(idempotency_key AS BLOB) AS key"
    return f"SELECT id, {texts}, status = 'running' AS running FROM {sql.jobs} WHERE id = :id {sql.lock()}"


# The attempt that was not to be is counted and logged, so that the audit finds an end with its reason. No sum where
# the number is at fault.
_TOKEN = f"CASE WHEN status <> 'running' AND lease_token < {TOKEN_MAX} THEN lease_token + 1 ELSE lease_token END"
_ATTEMPTS = f"CASE WHEN status <> 'running' AND attempts < {COUNT_MAX} THEN attempts + 1 ELSE attempts END"
_UNKNOWN = "CASE WHEN status = 'running' AND unknown_count = 0 THEN 1 ELSE unknown_count END"
_AS_IT_IS = ", ".join(
    name for name in FACTS if name not in ("lease_token", "attempts", "unknown_count", "last_error", "error_code")
)


def _log_attempt(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.attempt_log} (job_id, lease_token, attempt, started_at, finished_at, outcome, verdict, error_code,
        message)
    SELECT id, {_TOKEN}, {_ATTEMPTS}, {sql.now}, {sql.now}, :outcome, :verdict, '{CODE}', '{MESSAGE}'
    FROM {sql.jobs} WHERE id = :id"""


def _copy(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.job_history} (id, {_AS_IT_IS}, lease_token, attempts, unknown_count, last_error, error_code,
        status, finished_at)
    SELECT id, {_AS_IT_IS}, {_TOKEN}, {_ATTEMPTS}, {_UNKNOWN}, '{MESSAGE}', '{CODE}', 'dead', {sql.now}
    FROM {sql.jobs} WHERE id = :id"""


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.jobs} WHERE id = :id"


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
        if not _concerns_a_job(store, error):
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
        invalid_error = _error_of(store, partial(_end_invalid, store, ledgers, job_id, bare_error))
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
        if not _concerns_a_job(store, error):
            raise
        return error
    return None


def _type_of(store: Store, job_id: int) -> str | None:
    with store.read() as connection:
        name: str | None = as_text(store.value(connection, _job_type, id=job_id))
        return name


def _job_type(sql: Sql) -> str:
    """As bytes on SQLite: it may not be valid UTF-8."""
    job_type = "job_type" if sql.postgresql else "CAST(job_type AS BLOB)"
    return f"SELECT {job_type} FROM {sql.jobs} WHERE id = :id"
