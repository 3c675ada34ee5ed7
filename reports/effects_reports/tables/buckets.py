"""Buckets of others that files are delivered into. The credentials are sealed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from sqlalchemy import Connection

from effects.extend.sql import Sql, Store, as_json
from effects.extend.text import moment

_SUBSCRIBER = "bucket:"


class StoredBucket(msgspec.Struct, frozen=True, kw_only=True):
    """One as its row has it; `sealed` holds the credentials."""

    name: str
    url: str
    sealed: bytes
    created_at: datetime
    updated_at: datetime


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_buckets} (name, url, sealed, created_at, updated_at)
    VALUES (:name, :url, :sealed, {sql.now}, {sql.now}) ON CONFLICT (name) DO NOTHING"""


def insert(store: Store, connection: Connection, *, name: str, url: str, sealed: bytes) -> bool:
    """Write it; False where there is one of this name."""
    return store.write(connection, _insert, name=name, url=url, sealed=sealed) == 1


def _columns(sql: Sql) -> str:
    return (
        f"SELECT name, url, sealed, {sql.epoch('created_at')} AS created_at, "
        f"{sql.epoch('updated_at')} AS updated_at FROM {sql.report_buckets}"
    )


def _named(sql: Sql) -> str:
    return f"{_columns(sql)} WHERE name {sql.any_of('names')}"


def _all(sql: Sql) -> str:
    return f"{_columns(sql)} ORDER BY name"


def read_buckets(store: Store, connection: Connection, names: Sequence[str] | None = None) -> dict[str, StoredBucket]:
    """Name → bucket, of these names or of all."""
    rows = store.all(connection, _all) if names is None else store.all(connection, _named, names=as_json(list(names)))
    return {
        row.name: StoredBucket(
            name=row.name, url=row.url, sealed=bytes(row.sealed), created_at=moment(row.created_at),
            updated_at=moment(row.updated_at),
        )
        for row in rows
    }  # fmt: skip


def subscriber_of(name: str) -> str:
    """A bucket as `report_subscriptions.recipient` has it; digests of addresses have no colon."""
    return f"{_SUBSCRIBER}{name}"


def _subscriptions(sql: Sql) -> str:
    return f"""
    SELECT recipient, count(*) AS subscriptions FROM {sql.report_subscriptions}
    WHERE recipient LIKE '{_SUBSCRIBER}%' GROUP BY recipient"""


def count_subscriptions(store: Store, connection: Connection) -> dict[str, int]:
    """Name → how many subscriptions deliver into it; of names, too, that no bucket has any more."""
    rows = store.all(connection, _subscriptions)
    return {row.recipient.removeprefix(_SUBSCRIBER): row.subscriptions for row in rows}


def _rotate(sql: Sql) -> str:
    return f"UPDATE {sql.report_buckets} SET sealed = :sealed, updated_at = {sql.now} WHERE name = :name"


def rotate(store: Store, connection: Connection, name: str, sealed: bytes) -> bool:
    """Give it other credentials; False if no bucket has this name."""
    return store.write(connection, _rotate, name=name, sealed=sealed) == 1


def _delete(sql: Sql) -> str:
    return f"DELETE FROM {sql.report_buckets} WHERE name = :name"


def delete(store: Store, connection: Connection, name: str) -> bool:
    """Delete it; False if no bucket has this name."""
    return store.write(connection, _delete, name=name) == 1
