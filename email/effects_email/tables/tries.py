"""The attempts of a message, and the transport of each."""

from __future__ import annotations

from datetime import datetime

import msgspec
from sqlalchemy import Connection

from effects.extend import Sql, Store, moment

TRIES_MAX = 100


class EmailTry(msgspec.Struct, frozen=True):
    """One attempt to send. `transport` is None where it ended without a word of one, as when its worker was lost."""

    attempt: int
    transport: str | None
    outcome: str
    code: str | None
    ended: datetime


def read_tries(store: Store, connection: Connection, job_id: int) -> tuple[EmailTry, ...]:
    """Those of a message's job, the newest first, a hundred at most."""
    return tuple(
        EmailTry(row.attempt, _transport(row.detail), row.outcome, row.error_code, moment(row.ended))
        for row in store.all(connection, _tries, id=job_id)
    )


def _transport(detail: str | None) -> str | None:
    return msgspec.json.decode(detail).get("transport") if detail else None


def _tries(sql: Sql) -> str:
    return f"""
    SELECT attempt, outcome, error_code, {sql.json_text("detail")} AS detail, {sql.epoch("finished_at")} AS ended
    FROM {sql.job_attempts} WHERE job_id = :id ORDER BY lease_token DESC LIMIT {TRIES_MAX}"""
