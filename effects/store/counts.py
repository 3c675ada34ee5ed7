"""Numbers that several readers give: how many workers there are, and what is due."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection

from effects.store.sql import Sql
from effects.store.store import Store


class Workers(msgspec.Struct, frozen=True):
    """Registered workers. A silent one has not been heard of for a lease."""

    alive: int
    silent: int


class Due(msgspec.Struct, frozen=True):
    """Jobs that could start now, pauses and limits apart; `oldest_seconds` is None where there is none."""

    jobs: int
    oldest_seconds: float | None


def count_workers(store: Store, connection: Connection, lease_seconds: float) -> Workers:
    row = store.one(connection, _workers, lease=lease_seconds)
    assert row is not None
    return Workers(alive=row.alive, silent=row.known - row.alive)


def count_due(store: Store, connection: Connection) -> Due:
    row = store.one(connection, _due)
    assert row is not None
    return Due(row.jobs, row.oldest)


def _workers(sql: Sql) -> str:
    silent = sql.after("-CAST(:lease AS double precision)")
    return f"""
    SELECT count(*) AS known, COALESCE(sum(CASE WHEN seen_at >= {silent} THEN 1 ELSE 0 END), 0) AS alive
    FROM {sql.workers}"""


def _due(sql: Sql) -> str:
    return f"""
    SELECT count(*) AS jobs, {sql.seconds("min(run_at)")} AS oldest FROM {sql.jobs}
    WHERE status <> 'running' AND run_at <= {sql.now}"""
