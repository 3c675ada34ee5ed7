"""Dead letters and unknown outcomes: what waits for a person, until somebody closes it.

Open is an ended job that is dead, or whose effect is unknown, and about which nobody has said a closing word in
`effects_job_actions`: requeue, ignore, mark done, give up. The words: `effects.store.dead`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import Row

from effects.store.actions import CLOSING
from effects.store.ledger import Ledger, all_ledgers
from effects.store.records import moment
from effects.store.sql import Sql
from effects.store.store import Statement, Store

LIST_MAX = 10_000


class DeadFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which open ones; None is no filter.

    Args:
        text: part of the last error's text, whatever its case.
        endpoint: the limit key, whole or what follows its first colon (`ep_…` of `webhook:ep_…`).
        older_seconds, newer_seconds: since it ended.
        unknown: only those whose effect may have happened, or only those whose effect did not.
        closed: those that somebody has closed, instead of the open ones.
    """

    job_type: str | None = None
    error_code: str | None = None
    text: str | None = None
    endpoint: str | None = None
    older_seconds: float | None = None
    newer_seconds: float | None = None
    unknown: bool | None = None
    closed: bool = False
    limit: int = 50


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """One of them. `unknown`: the effect may have happened."""

    id: int
    job_type: str
    status: str
    unknown: bool
    queue: str
    key: str | None
    limit_key: str | None
    attempts: int
    error_code: str | None
    last_error: str | None
    finished_at: dt.datetime


def list_dead(store: Store, ledgers: Mapping[str, Ledger], filters: DeadFilters) -> list[DeadLetter]:
    """Those that match, newest end first, at most `filters.limit` (10,000)."""
    tables = tuple(ledger.table for ledger in all_ledgers(ledgers))
    with store.read() as connection:
        found = store.all(
            connection,
            _list(tables),
            job_type=filters.job_type,
            error_code=filters.error_code,
            text=filters.text,
            endpoint=filters.endpoint,
            older=filters.older_seconds,
            newer=filters.newer_seconds,
            unknown=None if filters.unknown is None else int(filters.unknown),
            closed=int(filters.closed),
            limit=min(filters.limit, LIST_MAX),
        )
    return [_letter(row) for row in found]


def _letter(row: Row[Any]) -> DeadLetter:
    return DeadLetter(
        id=row.id,
        job_type=row.job_type,
        status=row.status,
        unknown=bool(row.unknown),
        queue=row.queue,
        key=row.idempotency_key,
        limit_key=row.limit_key,
        attempts=row.attempts,
        error_code=row.error_code,
        last_error=row.last_error,
        finished_at=moment(row.finished_at),
    )


# -- the conditions --------------------------------------------------------------------------------------


def closed(sql: Sql, seconds: str = "0") -> str:
    """Whether somebody closed the ended job `h`, at least `seconds` ago."""
    return sql.found(f"{_closing_actions(sql)} AND {sql.seconds('a.created_at')} >= {seconds}")


def is_unknown(sql: Sql, tables: tuple[str, ...]) -> str:
    """Whether the effect of the ended job `h` may have happened; without a ledger row its own attempts say so."""
    ledgers = " OR ".join(
        sql.found(f"FROM {getattr(sql, table)} AS l WHERE l.job_id = h.id AND l.state = 'unknown'") for table in tables
    )
    return f"(h.status <> 'succeeded' AND (h.idempotency_key IS NULL AND h.unknown_count > 0 OR {ledgers}))"


def closing_words() -> str:
    return ", ".join(f"'{word}'" for word in CLOSING)


def _closing_actions(sql: Sql) -> str:
    return f"FROM {sql.job_actions} AS a WHERE a.job_id = h.id AND a.action IN ({closing_words()})"


def _said(sql: Sql) -> str:
    return sql.found(_closing_actions(sql))


def _needs_person(sql: Sql, tables: tuple[str, ...]) -> str:
    """The first condition is that of the index on what did not succeed."""
    return f"h.status <> 'succeeded' AND (h.status = 'dead' OR {is_unknown(sql, tables)})"


# -- the statements --------------------------------------------------------------------------------------


@cache
def _list(tables: tuple[str, ...]) -> Statement:
    def build(sql: Sql) -> str:
        number, whole = ("double precision", "integer") if sql.postgresql else ("NUMERIC", "INTEGER")
        found = (
            "strpos(lower(h.last_error), lower(CAST(:text AS text)))"
            if sql.postgresql
            else "instr(lower(h.last_error), lower(:text))"
        )
        ended = sql.seconds("h.finished_at")
        unknown = is_unknown(sql, tables)
        return f"""
        SELECT h.id, h.job_type, h.status, {unknown} AS unknown, h.queue, h.idempotency_key, h.limit_key, h.attempts,
            h.error_code, h.last_error, {sql.epoch("h.finished_at")} AS finished_at
        FROM {sql.job_history} AS h WHERE {_needs_person(sql, tables)}
        AND (CAST(:job_type AS text) IS NULL OR h.job_type = CAST(:job_type AS text))
        AND (CAST(:error_code AS text) IS NULL OR h.error_code = CAST(:error_code AS text))
        AND (CAST(:text AS text) IS NULL OR {found} > 0)
        AND (CAST(:endpoint AS text) IS NULL OR h.limit_key = CAST(:endpoint AS text)
            OR h.limit_key LIKE '%:%' AND {_after_colon(sql)} = CAST(:endpoint AS text))
        AND (CAST(:older AS {number}) IS NULL OR {ended} >= CAST(:older AS {number}))
        AND (CAST(:newer AS {number}) IS NULL OR {ended} < CAST(:newer AS {number}))
        AND (CAST(:unknown AS {whole}) IS NULL
            OR CASE WHEN {unknown} THEN 1 ELSE 0 END = CAST(:unknown AS {whole}))
        AND CASE WHEN {_said(sql)} THEN 1 ELSE 0 END = CAST(:closed AS {whole})
        ORDER BY h.finished_at DESC, h.id DESC LIMIT :limit"""

    return build


def _after_colon(sql: Sql) -> str:
    place = "strpos(h.limit_key, ':')" if sql.postgresql else "instr(h.limit_key, ':')"
    return f"substr(h.limit_key, {place} + 1)"
