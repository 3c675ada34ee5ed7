"""Rows of transports: refusals in a row, while one refuses messages; tokens, if it logs in by OAuth."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Row

from effects.extend.rows import record
from effects.extend.sql import Sql, Store, as_json

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


def count_refusal(
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


def current_run(store: Store, connection: Connection, transport: str, *, run: str) -> str:
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


def clear_refusals(store: Store, connection: Connection, transports: Collection[str]) -> None:
    """These transports took a message."""
    store.write(connection, _clear, transports=as_json(sorted(transports)))


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of one transport's tokens.

    Args:
        client: which client and account they are for, as a digest; those of another are not used.
        version: rises by one with every access token.
        access, refresh, previous: sealed; `previous` is the refresh token before this one, until this one has worked.
        seconds_left, renew_seconds: until the access token ends, and until it is renewed; negative afterwards.
        lease_seconds: how long another process may still renew it; 0 or less if none does.
        refused: a server has refused this access token, which is to be renewed for that reason.
        for_refused: it replaced a refused one, and no server has accepted it yet.
        failure: the code of the newest renewal that failed, until one succeeds; with its words, and with its kind until
            the next one begins.
    """

    client: str
    version: int
    access: bytes | None
    refresh: bytes | None
    previous: bytes | None
    seconds_left: float
    renew_seconds: float
    lease_seconds: float
    refused: bool
    for_refused: bool
    failure: str | None
    failure_kind: Literal["login_needed", "config", "unavailable"] | None
    failure_reason: str | None


class TokenState(msgspec.Struct, frozen=True, kw_only=True):
    """What people are shown of it: no token."""

    transport: str
    client: str
    version: int
    expires_at: dt.datetime | None
    failure: str | None
    failure_reason: str | None


def _find_token(sql: Sql) -> str:
    left, until_renewal, until_released = (
        f"COALESCE({sql.seconds(sql.now, column)}, 0)" for column in ("expires_at", "renew_at", "leased_until")
    )
    return f"""
    SELECT client, version, access, refresh, previous, refused, for_refused, failure, failure_kind, failure_reason,
        {left} AS seconds_left,
        {until_renewal} AS renew_seconds, {until_released} AS lease_seconds
    FROM {sql.email_tokens} WHERE transport = :transport"""


def find_token(store: Store, connection: Connection, transport: str) -> TokenRow | None:
    """The transport's row."""
    row = store.row(connection, _find_token, transport=transport)
    return None if row is None else record(TokenRow, row)


def _begin_token(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.email_tokens} (transport, client, version) VALUES (:transport, :client, 0)
    ON CONFLICT (transport) DO NOTHING"""


def begin_token(store: Store, connection: Connection, transport: str, *, client: str) -> None:
    """Write a row without tokens, unless there is one."""
    store.write(connection, _begin_token, transport=transport, client=client)


def _lease_token(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_tokens} SET leased_until = {sql.after(sql.number("seconds"))}, failure_kind = NULL
    WHERE transport IN (
        SELECT transport FROM {sql.email_tokens}
        WHERE transport = :transport AND version = :version AND (leased_until IS NULL OR leased_until <= {sql.now})
        {sql.lock()})"""


def lease_token(store: Store, connection: Connection, transport: str, *, version: int, seconds: float) -> bool:
    """Take the right to renew this version for so long; False while another has it, or the version is an older one.

    It does not wait where another process has the row locked, which may stand still: the token may be good yet.
    """
    return store.write(connection, _lease_token, transport=transport, version=version, seconds=seconds) == 1


def _renew_token(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_tokens} SET client = :client, version = version + 1, access = {sql.bound("access", "bytes")},
        refresh = {sql.bound("refresh", "bytes")}, previous = {sql.bound("previous", "bytes")},
        expires_at = {sql.after(sql.number("seconds_left"))}, renew_at = {sql.after(sql.number("renew_seconds"))},
        for_refused = refused, refused = FALSE, failure = NULL, failure_kind = NULL, failure_reason = NULL,
        leased_until = NULL
    WHERE transport = :transport AND version = :version"""


def renew_token(
    store: Store, connection: Connection, transport: str, *, client: str, version: int, access: bytes,
    refresh: bytes | None, previous: bytes | None, seconds_left: float, renew_seconds: float,
) -> bool:  # fmt: skip
    """Write what a renewal brought; False if this version has been renewed meanwhile.

    Fenced by the version, not by the lease: a process that lost its lease while it waited for the token service still
    has the only refresh token that is good, unless another process has got one too.
    """
    changed = store.write(
        connection, _renew_token, transport=transport, client=client, version=version, access=access, refresh=refresh,
        previous=previous, seconds_left=seconds_left, renew_seconds=renew_seconds,
    )  # fmt: skip
    return changed == 1


def _fail_token(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_tokens} SET failure = :code, failure_kind = :kind, failure_reason = :reason,
        leased_until = {sql.after(sql.number("seconds"))}
    WHERE transport = :transport AND version = :version"""


def fail_token(
    store: Store, connection: Connection, transport: str, *, version: int, kind: str, code: str, reason: str,
    seconds: float,
) -> None:  # fmt: skip
    """Note that a renewal failed; no process tries again for so many seconds."""
    store.write(
        connection,
        _fail_token,
        transport=transport,
        version=version,
        kind=kind,
        code=code,
        reason=reason,
        seconds=seconds,
    )


def _refuse_token(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_tokens} SET refused = TRUE
    WHERE transport = :transport AND version = :version AND NOT for_refused"""


def refuse_token(store: Store, connection: Connection, transport: str, *, version: int) -> bool:
    """Note that a server has refused this access token; return whether it is to be renewed for that.

    Not if it replaced a refused one and has never been accepted: then the account is at fault, and every message would
    renew it again.
    """
    return store.write(connection, _refuse_token, transport=transport, version=version) == 1


def _accept_token(sql: Sql) -> str:
    return f"""
    UPDATE {sql.email_tokens} SET for_refused = FALSE
    WHERE transport = :transport AND version = :version AND for_refused"""


def accept_token(store: Store, connection: Connection, transport: str, *, version: int) -> None:
    """Note that a server has accepted this access token."""
    store.write(connection, _accept_token, transport=transport, version=version)


def _states(sql: Sql) -> str:
    return f"""
    SELECT transport, client, version, {sql.epoch("expires_at")} AS expires_at, failure, failure_reason
    FROM {sql.email_tokens} ORDER BY transport"""


def token_states(store: Store, connection: Connection) -> list[TokenState]:
    """Every row, as people are shown it."""
    rows: Sequence[Row[Any]] = store.all(connection, _states)
    return [record(TokenState, row) for row in rows]
