"""Suppressions: address, cause, period and source; and how often an address was refused for now, day by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.sql import Sql, Store, as_json, columns_of

_COUNT = {"digest": "text", "failures": "int"}


class SuppressionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One suppression to write. `until`: seconds since 1970, by the database's clock."""

    id: str
    digest: str
    scope: str
    reason: str
    source: str
    address: str | None
    sealed: bytes | None
    until: float | None
    actor: str
    why: str | None


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line of who did what."""

    digest: str
    action: str
    scope: str | None = None
    reason: str | None = None
    actor: str
    why: str | None = None


# -- looking up ----------------------------------------------------------------------------------------------------


def _holds(sql: Sql) -> str:
    return f"(until IS NULL OR until > {sql.now})"


def _active(sql: Sql) -> str:
    return f"""
    SELECT digest, scope, reason FROM {sql.email_suppressions}
    WHERE digest {sql.any_of("digests")} AND {_holds(sql)}"""


def active(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """Digest, scope and reason of what holds now; one statement for any number of addresses."""
    return store.all(connection, _active, digests=as_json(digests))


def _has_keyed_digests(sql: Sql) -> str:
    return f"SELECT EXISTS (SELECT 1 FROM {sql.email_suppressions} WHERE digest >= 'hmac' AND digest < 'hmad')"


def has_keyed_digests(store: Store, connection: Connection) -> bool:
    """Whether an address was suppressed while there was a `digest` key."""
    return bool(store.value(connection, _has_keyed_digests))


def _columns(sql: Sql) -> str:
    return f"""
    id, digest, scope, reason, source, address, sealed, actor, why, {sql.epoch("until")} AS until,
    {sql.epoch("created_at")} AS created_at, {sql.epoch("updated_at")} AS updated_at"""


def _of(sql: Sql) -> str:
    return f"""
    SELECT {_columns(sql)} FROM {sql.email_suppressions}
    WHERE digest {sql.any_of("digests")} AND {_holds(sql)} ORDER BY created_at, id"""


def of(store: Store, connection: Connection, digests: Sequence[str]) -> Sequence[Row[Any]]:
    """What holds for one address, oldest first."""
    return store.all(connection, _of, digests=as_json(digests))


def _newest(sql: Sql) -> str:
    """Empty texts match any."""
    return f"""
    SELECT {_columns(sql)} FROM {sql.email_suppressions}
    WHERE {_holds(sql)} AND (reason = :reason OR CAST(:reason AS text) = '')
    AND (scope = :scope OR CAST(:scope AS text) = '') ORDER BY updated_at DESC, id DESC LIMIT :size"""


def newest(store: Store, connection: Connection, *, scope: str, reason: str, size: int) -> Sequence[Row[Any]]:
    """What holds now, the last change first."""
    return store.all(connection, _newest, scope=scope, reason=reason, size=size)


# -- writing -------------------------------------------------------------------------------------------------------


def _upsert(sql: Sql) -> str:
    """A known text stays if the newer row has none; in another form it replaces the older, so that what is sealed now
    does not stay in clear beside it.
    """
    table, blob = sql.email_suppressions, "bytea" if sql.postgresql else "BLOB"
    taken = ", ".join(f"{name} = excluded.{name}" for name in ("source", "until", "actor", "why", "updated_at"))
    without = "excluded.address IS NULL AND excluded.sealed IS NULL"
    kept = ", ".join(
        f"{name} = CASE WHEN {without} THEN {table}.{name} ELSE excluded.{name} END" for name in ("address", "sealed")
    )
    return f"""
    INSERT INTO {table}
        (id, digest, scope, reason, source, address, sealed, until, actor, why, created_at, updated_at)
    VALUES (:id, :digest, :scope, :reason, :source, :address, CAST(:sealed AS {blob}),
        {sql.time(sql.number("until"))}, :actor, :why, {sql.now}, {sql.now})
    ON CONFLICT (digest, scope, reason) DO UPDATE SET {taken}, {kept}"""


def write(store: Store, connection: Connection, rows: Sequence[SuppressionRow]) -> None:
    """Write suppressions; one of the same address, scope and reason is replaced."""
    if rows:
        store.write_each(connection, _upsert, [msgspec.structs.asdict(row) for row in rows])


def _lift(sql: Sql) -> str:
    return f"""
    DELETE FROM {sql.email_suppressions} WHERE digest {sql.any_of("digests")}
    AND (scope = :scope OR CAST(:scope AS text) = '') AND (reason = :reason OR CAST(:reason AS text) = '')
    RETURNING digest, scope, reason"""


def lift(
    store: Store, connection: Connection, digests: Sequence[str], *, scope: str = "", reason: str = ""
) -> Sequence[Row[Any]]:
    """Delete the suppressions of these addresses; empty texts mean any scope, any reason."""
    return store.all(connection, _lift, digests=as_json(digests), scope=scope, reason=reason)


def _lift_since(sql: Sql) -> str:
    since = sql.time(sql.number("since"))
    return f"""
    DELETE FROM {sql.email_suppressions} WHERE digest {sql.any_of("digests")}
    AND reason IN ('hard_bounce', 'soft_repeat') AND why = :why AND updated_at >= {since}
    RETURNING digest, scope, reason"""


def lift_since(
    store: Store, connection: Connection, digests: Sequence[str], *, why: str, since: float
) -> Sequence[Row[Any]]:
    """Delete the suppressions that a bounce with this code has made since then."""
    return store.all(connection, _lift_since, digests=as_json(digests), why=why, since=since)


# -- the log -------------------------------------------------------------------------------------------------------


def _note(sql: Sql) -> str:
    named = ", ".join(columns_of(LogRow))
    return f"""
    INSERT INTO {sql.email_suppression_log} ({named}, created_at)
    SELECT {named}, {sql.now} FROM {sql.rows("rows", LogRow)} AS r"""


def note(store: Store, connection: Connection, rows: Sequence[LogRow]) -> None:
    if rows:
        store.write(connection, _note, rows=as_json(rows))


def _log_of(sql: Sql) -> str:
    return f"""
    SELECT action, scope, reason, actor, why, {sql.epoch("created_at")} AS created_at
    FROM {sql.email_suppression_log} WHERE digest {sql.any_of("digests")} ORDER BY id DESC LIMIT :size"""


def log_of(store: Store, connection: Connection, digests: Sequence[str], size: int) -> Sequence[Row[Any]]:
    """What was done about an address, newest first."""
    return store.all(connection, _log_of, digests=as_json(digests), size=size)


def _today(sql: Sql) -> str:
    """Days since 1970."""
    days = f"{sql.epoch(sql.now)} / 86400"
    return f"CAST(floor({days}) AS integer)" if sql.postgresql else f"CAST({days} AS INTEGER)"


def _count_failures(sql: Sql) -> str:
    """In the order of the digests, so that two workers lock the rows in the same order."""
    table = sql.email_soft_failures
    return f"""
    INSERT INTO {table} (digest, day, failures)
    SELECT r.digest, {_today(sql)}, r.failures FROM {sql.rows("rows", _COUNT)} AS r WHERE true ORDER BY r.digest
    ON CONFLICT (digest, day) DO UPDATE SET failures = {table}.failures + excluded.failures"""


def _repeated_failures(sql: Sql) -> str:
    return f"""
    SELECT digest FROM {sql.email_soft_failures}
    WHERE digest {sql.any_of("digests")} AND day > {_today(sql)} - :window_days
    GROUP BY digest HAVING sum(failures) >= :failures AND count(*) >= :days ORDER BY digest"""


def count_failures(store: Store, connection: Connection, counts: Mapping[str, int]) -> None:
    """Count these failures today, by the database's clock and in UTC."""
    rows = [{"digest": digest, "failures": count} for digest, count in counts.items()]
    store.write(connection, _count_failures, rows=as_json(rows))


def repeated_failures(
    store: Store, connection: Connection, digests: Sequence[str], *, failures: int, days: int, window_days: int
) -> list[str]:
    """Which of these have failed so often, on so many days of the last `window_days`."""
    rows: Sequence[Row[Any]] = store.all(
        connection, _repeated_failures, digests=as_json(digests), failures=failures, days=days, window_days=window_days
    )
    return [row.digest for row in rows]


def _clear_failures(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_soft_failures} WHERE digest {sql.any_of('digests')}"


def clear_failures(store: Store, connection: Connection, digests: Sequence[str]) -> None:
    """Forget them: a message arrived."""
    store.write(connection, _clear_failures, digests=as_json(digests))
