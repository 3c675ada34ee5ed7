"""Writing outcomes in batches, behind the fence `(id, lease_token)`.

Every way out of `running` deletes the row or raises its token, so an attempt that lost its lease matches no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import msgspec
from sqlalchemy import Connection

from effects.kit.crashpoints import point
from effects.kit.logs import own_logger
from effects.model.job import Job
from effects.model.ledger import Ledger
from effects.model.settlement import Settlement
from effects.store.db.store import Store, as_json
from effects.store.limits.feedback import write_results
from effects.store.queue import settle_sql
from effects.store.queue.applies import run_applies
from effects.store.queue.late import keep_late, resolve_kept
from effects.store.queue.settle_sql import DoneRow, SettlementRow, done_row, is_one_row, row_of
from effects.store.queue.table_ledger import record_verdicts, take_back_releases
from effects.store.queue.unresolved import add_unresolved

_log = own_logger("effects.worker")


class Settled(msgspec.Struct, frozen=True):
    """Which settlements took effect. `stale` are those whose attempt no longer owned its job."""

    accepted: list[Settlement]
    stale: list[Settlement]


def write_settlements(
    store: Store,
    connection: Connection,
    settlements: Sequence[Settlement],
    ledgers: Mapping[str, Ledger],
    *,
    now: float = 0.0,
) -> Settled:
    """Write them in the given transaction, run their `apply`, fold their verdicts into the ledgers.

    Args:
        now: the time on the clock of `ended_at_monotonic`; without meaning for settlements of no attempt.
        ledgers: job type → its ledger, for the types that have one; a job without a key in the core's
            ledger has no row there.
    """
    settled = Settled([], [])
    for batch in _one_of_each_job(settlements):
        part = _write_batch(store, connection, batch, ledgers, now)
        settled.accepted.extend(part.accepted)
        settled.stale.extend(part.stale)
    return settled


def _one_of_each_job(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """In one lock order for all workers. Of two attempts of a job (one is stale) each has its own batch, because
    what a statement answers names the job.
    """
    batches: list[list[Settlement]] = []
    of_the_job = 0
    for settlement in sorted(settlements, key=lambda settlement: (settlement.job.id, settlement.job.lease_token)):
        of_the_job = of_the_job + 1 if batches and batches[of_the_job][-1].job.id == settlement.job.id else 0
        if of_the_job == len(batches):
            batches.append([])
        batches[of_the_job].append(settlement)
    yield from batches


def _write_batch(
    store: Store, connection: Connection, ordered: Sequence[Settlement], ledgers: Mapping[str, Ledger], now: float
) -> Settled:
    ends = [settlement for settlement in ordered if settlement.ends]
    again = [settlement for settlement in ordered if not settlement.ends]
    resumed, cancelled = _write_again(store, connection, again, now)
    accepted = _write_ends(store, connection, ends, now) | resumed
    settled = Settled(
        accepted=[settlement for settlement in ordered if settlement.job.id in accepted],
        stale=[settlement for settlement in ordered if settlement.job.id not in accepted],
    )
    run_applies(store, connection, settled.accepted)
    take_back_releases(store, connection, settled.accepted, ledgers)
    record_verdicts(store, connection, settled.accepted, ledgers)
    record_verdicts(store, connection, cancelled, ledgers)
    failed = [settlement for settlement in [*settled.accepted, *cancelled] if _ends_without_success(settlement)]
    if failed:
        add_unresolved(store, connection, [settlement.job.id for settlement in failed], ledgers)
        resolve_kept(store, connection, failed, ledgers)
    if any(settlement.job.limit_key is not None for settlement in settled.accepted):
        write_results(store, connection, settled.accepted, now)
    return settled


def _ends_without_success(settlement: Settlement) -> bool:
    return settlement.ends and settlement.status != "succeeded"


def _write_ends(store: Store, connection: Connection, ends: Sequence[Settlement], now: float) -> set[int]:
    done = [done_row(settlement, now) for settlement in ends if is_one_row(settlement)]
    ended = set()
    if done:
        ended = _write_done(store, connection, done)
    if len(done) < len(ends):
        ended |= _write_ended(
            store, connection, [row_of(settlement, now) for settlement in ends if not is_one_row(settlement)]
        )
    return ended


def _write_done(store: Store, connection: Connection, done: Sequence[DoneRow]) -> set[int]:
    rows = as_json(done)
    if store.is_postgresql:
        return {job_id for (job_id,) in store.tuples(connection, settle_sql.end_done, rows=rows)}
    moved = store.write(connection, settle_sql.end_done_history, rows=rows)
    return _delete_moved(store, connection, done, rows, moved)


def _write_ended(store: Store, connection: Connection, ended: Sequence[SettlementRow]) -> set[int]:
    rows = as_json(ended)
    if store.is_postgresql:
        return {row.id for row in store.all(connection, settle_sql.end, rows=rows)}
    moved = store.write(connection, settle_sql.end_history, rows=rows)
    store.write(connection, settle_sql.end_attempts, rows=rows)
    return _delete_moved(store, connection, ended, rows, moved)


def _delete_moved(
    store: Store, connection: Connection, ended: Sequence[DoneRow | SettlementRow], rows: str, moved: int
) -> set[int]:
    """SQLite: delete the live rows; the ids of those that were these attempts'. Where all were, none is fetched.

    Each row that is fetched would let all other threads run first.
    """
    if moved == len(ended):
        ids = [row.id for row in ended]
        store.write(connection, settle_sql.end_delete_all, ids=as_json(ids))
        return set(ids)
    return {job_id for (job_id,) in store.tuples(connection, settle_sql.end_delete, rows=rows)}


def _write_again(
    store: Store, connection: Connection, again: Sequence[Settlement], now: float
) -> tuple[set[int], list[Settlement]]:
    """Return the jobs that wait again, and end those whose cancellation was requested meanwhile."""
    if not again:
        return set(), []
    rows = [row_of(settlement, now) for settlement in again]
    returned = store.all(connection, settle_sql.again, rows=as_json(rows))
    resumed = {row.id for row in returned}  # without stale ones and repeats after an unanswered COMMIT
    store.write(connection, settle_sql.again_attempts, rows=as_json([row for row in rows if row.id in resumed]))
    cancelled = {row.id: row.lease_token for row in returned if row.cancel_requested}
    ends = [
        _cancelled(settlement, cancelled[settlement.job.id]) for settlement in again if settlement.job.id in cancelled
    ]
    _write_ends(store, connection, ends, now)
    return resumed, ends


def _cancelled(settlement: Settlement, lease_token: int) -> Settlement:
    """End a job whose cancellation was requested while it ran. The token is the one it was returned with."""
    return Settlement(
        job=msgspec.structs.replace(settlement.job, lease_token=lease_token),
        status="cancelled",
        outcome="",
        error_code="cancelled",
        message="cancelled by request",
    )


def record_existing(store: Store, connection: Connection, job: Job, existing: str) -> None:
    """Say that a job's effect was there before it: in the answer of its attempt, and in the log.

    For an `apply`, which finds the attempt's row written.

    Args:
        connection: of the `apply`.
        existing: what was there, such as `the run rep_1`; nothing personal.
    """
    text = f"{existing} exists already; nothing new was made"
    for statement in (settle_sql.annotate_history, settle_sql.annotate_log):
        store.write(connection, statement, id=job.id, token=job.lease_token, text=text)
    _log.info("job.existing", extra={"job": job.id, "type": job.job_type, "reason": text})


def settle(
    store: Store, settlements: Sequence[Settlement], ledgers: Mapping[str, Ledger], *, now: float = 0.0
) -> Settled:
    """Write the outcomes in one transaction of their own, and after it keep those that came too late (`keep_late`).

    Repeating it after a lost connection is safe: the rows of an earlier, unanswered COMMIT are recognised
    by their attempts and count as accepted.

    Args:
        now: as of `write_settlements`.

    Raises:
        StoreUnavailable: the write may have taken effect or not; repeat it.
    """
    point("settle.before")
    with _begin(store, settlements) as connection:
        settled = write_settlements(store, connection, settlements, ledgers, now=now)
        point("settle.applied")
    point("settle.committed")
    if not settled.stale:
        return settled
    with store.read() as connection:
        stale = [row_of(settlement, 0.0) for settlement in settled.stale]
        rows = store.all(connection, settle_sql.recorded, rows=as_json(stale))
        recorded = {((row.job_id, row.lease_token), row.outcome) for row in rows}
    by_record: dict[bool, list[Settlement]] = {True: [], False: []}
    for settlement in settled.stale:
        by_record[(settlement.job.attempt_id, settlement.outcome) in recorded].append(settlement)
    keep_late(store, by_record[False], ledgers)
    return Settled(accepted=settled.accepted + by_record[True], stale=by_record[False])


def _begin(store: Store, settlements: Sequence[Settlement]) -> AbstractContextManager[Connection]:
    """The cheapest transaction that holds them: with code of the app, of several statements, or of one."""
    if any(settlement.apply is not None for settlement in settlements):
        return store.begin()
    one_statement = all(
        is_one_row(settlement) and settlement.job.key is None and settlement.job.limit_key is None
        for settlement in settlements
    )
    return store.single() if one_statement else store.begin_own()
