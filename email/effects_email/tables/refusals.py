"""Refusals in a row, counted for all workers: one row per transport that currently refuses messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store, as_json

KEPT_MAX = 50  # recipients whose digests are kept; more add no evidence


def _count(sql: Sql) -> str:
    """One statement under the row's lock, so that of any number of threads each counts its own message."""
    table = sql.email_refusals
    again = f"{table}.refusal = excluded.refusal"
    at = "strpos" if sql.postgresql else "instr"
    is_countable = f"({at}({table}.recipients, excluded.recipients) > 0 OR {table}.messages >= {KEPT_MAX})"
    return f"""
    INSERT INTO {table} (transport, run, refusal, code, recipients, messages, began_at, updated_at)
    VALUES (:transport, :run, :refusal, :code, :recipient, 1, {sql.now}, {sql.now})
    ON CONFLICT (transport) DO UPDATE SET refusal = excluded.refusal, code = excluded.code, updated_at = {sql.now},
        recipients = CASE WHEN NOT {again} THEN excluded.recipients WHEN {is_countable} THEN {table}.recipients
            ELSE {table}.recipients || ' ' || excluded.recipients END,
        messages = CASE WHEN NOT {again} THEN 1 WHEN {is_countable} THEN {table}.messages ELSE {table}.messages + 1 END,
        began_at = CASE WHEN {again} THEN {table}.began_at ELSE {sql.now} END,
        overruled_at = CASE WHEN {again} THEN {table}.overruled_at END
    RETURNING run, messages, recipients, {sql.epoch("began_at")} AS began_at"""


def count(
    store: Store, connection: Connection, transport: str, *, run: str, refusal: str, code: str, recipient: str
) -> Row[Any]:
    """Count a refusal: the run, how many messages met it in a row, their recipients and since when.

    Args:
        run: the name of the run, if this is its first refusal.
    """
    row = store.row(connection, _count, transport=transport, run=run, refusal=refusal, code=code, recipient=recipient)
    assert row is not None
    return row


def _hold(sql: Sql) -> str:
    table = sql.email_refusals
    return f"""
    INSERT INTO {table} (transport, run, refusal, code, recipients, messages, began_at, updated_at)
    VALUES (:transport, :run, '', '', '', 0, {sql.now}, {sql.now})
    ON CONFLICT (transport) DO UPDATE SET updated_at = {sql.now} RETURNING run"""


def hold(store: Store, connection: Connection, transport: str, *, run: str) -> str:
    """The present run, started if missing, without counting."""
    return str(store.value(connection, _hold, transport=transport, run=run))


def _overrule(sql: Sql) -> str:
    return f"UPDATE {sql.email_refusals} SET overruled_at = {sql.now} WHERE transport = :transport"


def overrule(store: Store, connection: Connection, transport: str) -> None:
    """From now on the newest refusal is the transport's fault."""
    store.write(connection, _overrule, transport=transport)


def _overruled(sql: Sql) -> str:
    return f"""
    SELECT transport, code FROM {sql.email_refusals}
    WHERE transport {sql.any_of("transports")} AND overruled_at IS NOT NULL {sql.lock(skip=False)}"""


def overruled(store: Store, connection: Connection, transports: Collection[str]) -> set[tuple[str, str]]:
    """Transport and code of the refusals attributed to the transport. Locks them, so none is overruled meanwhile."""
    rows: Sequence[Row[Any]] = store.all(connection, _overruled, transports=as_json(sorted(transports)))
    return {(row.transport, row.code) for row in rows}


def _clear(sql: Sql) -> str:
    return f"DELETE FROM {sql.email_refusals} WHERE transport {sql.any_of('transports')}"


def clear(store: Store, connection: Connection, transports: Collection[str]) -> None:
    """These transports took a message."""
    store.write(connection, _clear, transports=as_json(sorted(transports)))
