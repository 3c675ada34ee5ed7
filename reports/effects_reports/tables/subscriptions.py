"""Subscriptions: who gets which report, when and how. The recipient is sealed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json
from effects.extend.text import moment


class NewSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """One to write."""

    id: str
    schedule: str
    report: str
    params: Any
    format: str
    cron: str
    zone: str
    notice: Any
    recipient: str  # the digest of the address


class StoredSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """One as its row has it; `sealed` holds the recipient."""

    id: str
    schedule: str
    report: str
    params: Any
    format: str
    cron: str
    zone: str
    notice: Any
    paused: bool
    sealed: bytes
    created_at: datetime


_NAMES = "id, schedule, report, params, format, cron, zone, notice, recipient"


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_subscriptions} ({_NAMES}, sealed, created_at, updated_at)
    SELECT {", ".join(f"r.{name}" for name in _NAMES.split(", "))}, :sealed, {sql.now}, {sql.now}
    FROM {sql.rows("rows", NewSubscription)} AS r WHERE true ON CONFLICT (schedule, recipient) DO NOTHING"""


def insert(store: Store, connection: Connection, new: NewSubscription, sealed: bytes) -> bool:
    """Write it; False where this recipient has this report at these times already."""
    return store.write(connection, _insert, rows=as_json([new]), sealed=sealed) == 1


def _columns(sql: Sql) -> str:
    return (
        f"SELECT id, schedule, report, {sql.json_text('params')} AS params, format, cron, zone, "
        f"{sql.json_text('notice')} AS notice, paused, sealed, {sql.epoch('created_at')} AS created_at "
        f"FROM {sql.report_subscriptions}"
    )


def _all(sql: Sql) -> str:
    return f"""
    {_columns(sql)} WHERE (CAST(:report AS text) IS NULL OR report = :report)
    AND (CAST(:recipient AS text) IS NULL OR recipient = :recipient) ORDER BY created_at, id"""


def read_all(
    store: Store, connection: Connection, *, report: str | None, recipient: str | None
) -> list[StoredSubscription]:
    """Those of a report, or of a recipient's digest; the oldest first."""
    return _subscriptions(store.all(connection, _all, report=report, recipient=recipient))


def _active(sql: Sql) -> str:
    return f"{_columns(sql)} WHERE schedule = :schedule AND NOT paused ORDER BY created_at, id"


def active(store: Store, connection: Connection, schedule: str) -> list[StoredSubscription]:
    """Who gets the report at a slot of this schedule."""
    return _subscriptions(store.all(connection, _active, schedule=schedule))


def _subscriptions(rows: Sequence[Row[Any]]) -> list[StoredSubscription]:
    return [
        StoredSubscription(**{
            **row._mapping, "params": msgspec.json.decode(row.params), "notice": msgspec.json.decode(row.notice),
            "paused": bool(row.paused), "sealed": bytes(row.sealed), "created_at": moment(row.created_at),
        })
        for row in rows
    ]  # fmt: skip


def _any(sql: Sql) -> str:
    return f"SELECT id FROM {sql.report_subscriptions} WHERE schedule = :schedule LIMIT 1"


def has_any(store: Store, connection: Connection, schedule: str) -> bool:
    """Whether a schedule has subscriptions, paused ones too."""
    return store.row(connection, _any, schedule=schedule) is not None


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.report_subscriptions} WHERE id = :id RETURNING schedule"


def delete(store: Store, connection: Connection, subscription_id: str) -> str | None:
    """Delete it; the name of its schedule, None if there was no such subscription."""
    row = store.row(connection, _delete, id=subscription_id)
    return None if row is None else str(row.schedule)


def _pause(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_subscriptions} SET paused = CAST(:paused AS boolean), updated_at = {sql.now}
    WHERE id = :id AND paused <> CAST(:paused AS boolean)"""


def _exists(sql: Sql) -> str:
    return f"SELECT id FROM {sql.report_subscriptions} WHERE id = :id"


def set_paused(store: Store, connection: Connection, subscription_id: str, paused: bool) -> bool | None:
    """Pause or resume it: whether that changed something; None if there is no such subscription."""
    if store.write(connection, _pause, id=subscription_id, paused=paused) == 1:
        return True
    return None if store.row(connection, _exists, id=subscription_id) is None else False
