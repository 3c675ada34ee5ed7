"""Writing outcomes: many at once, behind the fence `(id, lease_token)` and nothing else.

Every way out of `running` deletes the row or raises its token, so whoever lost a lease matches no row.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.crashpoints import point
from effects.settlement import Settlement
from effects.store import settle_rows
from effects.store.ledger import Ledger
from effects.store.limit_results import write_results
from effects.store.store import Store, as_json


class Settled(msgspec.Struct, frozen=True):
    """Which settlements took effect. `stale` are those whose attempt no longer owned its job."""

    accepted: list[Settlement]
    stale: list[Settlement]


def write_settlements(
    store: Store, connection: Connection, settlements: Sequence[Settlement], ledgers: Mapping[str, Ledger]
) -> Settled:
    """Write them in the given transaction, run their `apply`, fold their verdicts into the ledgers.

    Args:
        ledgers: job type → its ledger, for the types that have one; a job without a key in the core's
            ledger has no row there.
    """
    ordered = sorted(settlements, key=lambda one: one.job.id)  # one lock order for all workers
    now = time.monotonic()
    ends = [one for one in ordered if one.ends]
    again = [one for one in ordered if not one.ends]
    resumed, cancelled = _write_again(store, connection, again, now)
    accepted = _write_ends(store, connection, ends, now) | resumed
    settled = Settled(
        accepted=[one for one in ordered if one.job.id in accepted],
        stale=[one for one in ordered if one.job.id not in accepted],
    )
    for settlement in settled.accepted:
        if settlement.apply is not None:
            settlement.apply(connection)
    _record(store, connection, settled.accepted, ledgers)
    _record(store, connection, cancelled, ledgers)
    write_results(store, connection, settled.accepted, now)
    return settled


def _write_ends(store: Store, connection: Connection, ends: Sequence[Settlement], now: float) -> set[int]:
    if not ends:
        return set()
    rows = as_json([settle_rows.row_of(one, now) for one in ends])
    if store.is_postgresql:
        return {row.id for row in store.all(connection, settle_rows.end, rows=rows)}
    store.write(connection, settle_rows.end_history, rows=rows)
    store.write(connection, settle_rows.end_attempts, rows=rows)
    return {row.id for row in store.all(connection, settle_rows.end_delete, rows=rows)}


def _write_again(
    store: Store, connection: Connection, again: Sequence[Settlement], now: float
) -> tuple[set[int], list[Settlement]]:
    """Which jobs went back to work, and the ends of those that somebody had asked to cancel meanwhile."""
    if not again:
        return set(), []
    rows = [settle_rows.row_of(one, now) for one in again]
    found = store.all(connection, settle_rows.again, rows=as_json(rows))
    resumed = {row.id for row in found}  # a stale one, or one repeated after an unanswered COMMIT, logs nothing
    store.write(connection, settle_rows.again_attempts, rows=as_json([row for row in rows if row.id in resumed]))
    cancelled = {row.id for row in found if row.cancel_requested}
    ends = [_cancelled(one) for one in again if one.job.id in cancelled]
    _write_ends(store, connection, ends, now)
    return resumed, ends


def _cancelled(settlement: Settlement) -> Settlement:
    """Somebody asked to cancel while the attempt ran: it is not tried again."""
    return Settlement(
        job=msgspec.structs.replace(settlement.job, lease_token=settlement.job.lease_token + 1),
        status="cancelled",
        outcome="",
        error_code="cancelled",
        message="cancelled by request",
    )


def _record(
    store: Store, connection: Connection, accepted: Sequence[Settlement], ledgers: Mapping[str, Ledger]
) -> None:
    by_ledger: dict[int, list[Settlement]] = defaultdict(list)
    named: dict[int, Ledger] = {}
    for settlement in accepted:
        ledger = ledgers.get(settlement.job.job_type)
        if ledger is not None and settlement.job.key is not None and settlement.concerns_effect:
            by_ledger[id(ledger)].append(settlement)
            named[id(ledger)] = ledger
    for identity, settlements in by_ledger.items():
        named[identity].record(store, connection, settlements)


def settle(store: Store, settlements: Sequence[Settlement], ledgers: Mapping[str, Ledger]) -> Settled:
    """Write the outcomes in one transaction of their own.

    Repeating it after a lost connection is safe: whatever an earlier, unanswered COMMIT wrote is recognised
    by its attempt row and counts as accepted.

    Raises:
        StoreUnavailable: nothing is known about this write; repeat it.
    """
    point("settle.before")
    single = all(
        one.ends and one.apply is None and one.job.key is None and one.job.limit_key is None for one in settlements
    )
    with store.single() if single else store.begin() as connection:
        settled = write_settlements(store, connection, settlements, ledgers)
        point("settle.applied")
    point("settle.committed")
    if not settled.stale:
        return settled
    with store.read() as connection:
        stale = [settle_rows.row_of(one, 0.0) for one in settled.stale]
        mine = {row.job_id for row in store.all(connection, settle_rows.mine, rows=as_json(stale))}
    return Settled(
        accepted=settled.accepted + [one for one in settled.stale if one.job.id in mine],
        stale=[one for one in settled.stale if one.job.id not in mine],
    )
