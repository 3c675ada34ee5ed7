"""Which history the database goes by, and when that changed.

A standby that is promoted goes on from its own copy: on another timeline, and without the commits that had not reached
it. Its tables still name the former history, so that every process sees the difference at its first look. Where a
database has no such names, a worker whose heartbeats went back has seen the same.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.schema.failover_tables import BY_HEARTBEAT, BY_NAME, FIRST


class Failover(msgspec.Struct, frozen=True):
    """A row of `effects_failovers`, the newest of which is the present history. `seconds`: since it was noticed."""

    id: int
    history: str | None
    sign: str
    seconds: float = 0.0


def has_other_name(sql: Sql) -> str:
    """Whether the database goes by another history than its newest row says, or has no row yet."""
    newest = f"(SELECT history FROM {sql.failovers} ORDER BY id DESC LIMIT 1)"
    present = sql.history
    return f"""(NOT EXISTS (SELECT 1 FROM {sql.failovers})
        OR COALESCE({newest} <> {present}, {newest} IS NULL AND {present} IS NOT NULL))"""


def seconds_since_failover(sql: Sql) -> str:
    """Since the last one was noticed; 0 where none has noticed it yet, NULL where there was none."""
    newest = (
        f"(SELECT {sql.seconds('noticed_at')} FROM {sql.failovers} WHERE sign <> '{FIRST}' ORDER BY id DESC LIMIT 1)"
    )
    unnoticed = f"EXISTS (SELECT 1 FROM {sql.failovers}) AND {has_other_name(sql)}"
    return f"CASE WHEN {unnoticed} THEN 0 ELSE {newest} END"


def present_id(sql: Sql) -> str:
    """The id of the newest row; NULL before the first."""
    return f"(SELECT max(id) FROM {sql.failovers})"


def newest_columns(sql: Sql) -> str:
    """The newest row in the answer of a statement about a worker, and whether the database goes by that history."""
    newest = f"FROM {sql.failovers} ORDER BY id DESC LIMIT 1"
    return f"""
    {has_other_name(sql)} AS other_history, {present_id(sql)} AS failover, (SELECT history {newest}) AS history,
    (SELECT sign {newest}) AS sign, (SELECT {sql.seconds("noticed_at")} {newest}) AS failover_seconds"""


_COLUMNS = "id, history, sign"


def _newest(sql: Sql) -> str:
    return f"SELECT {_COLUMNS}, {sql.seconds('noticed_at')} AS seconds FROM {sql.failovers} ORDER BY id DESC LIMIT 1"


def read_failover(store: Store, connection: Connection) -> Failover | None:
    """The present history; None where no worker has run yet."""
    row = store.row(connection, _newest)
    return None if row is None else Failover(**row._mapping)


def _note(sql: Sql) -> str:
    """One row for all who notice it: the second finds its id taken, or the name as it should be."""
    count = f"SELECT count(*) FROM {sql.failovers}"
    alive = f"""SELECT count(*) FROM {sql.workers} AS w
        WHERE w.ended_at IS NULL AND w.seen_at >= {sql.after("-w.lease_seconds")}"""
    return f"""
    INSERT INTO {sql.failovers} (id, history, sign, noticed_by, noticed_at, workers)
    SELECT COALESCE({present_id(sql)}, 0) + 1, {sql.history},
        CASE WHEN ({count}) = 0 THEN '{FIRST}' WHEN {has_other_name(sql)} THEN '{BY_NAME}' ELSE '{BY_HEARTBEAT}' END,
        :worker, {sql.now}, ({alive})
    WHERE {has_other_name(sql)} OR {present_id(sql)} = CAST(:rewound AS bigint)
    ON CONFLICT (id) DO NOTHING RETURNING {_COLUMNS}"""


def note_failover(store: Store, worker: str, *, rewound: int | None = None) -> Failover:
    """Write down that the database goes by another history, unless another worker has; the present one.

    Args:
        rewound: the failover that this worker knew as the newest, where its heartbeats say that commits were lost
            since.

    Raises:
        StoreUnavailable: the database is unavailable. Repeating it is harmless.
    """
    with store.single() as connection:
        row = store.row(connection, _note, worker=worker, rewound=rewound)
    if row is not None:
        return Failover(**row._mapping)
    with store.read() as connection:
        failover = read_failover(store, connection)
    assert failover is not None
    return failover
