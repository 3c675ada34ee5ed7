"""One-time links and sessions of the stand-alone dashboard.

A link or a session is known by a secret that only its holder has; its row has the SHA-256 of it. Whoever reads the
table learns no secret. Each function writes in one transaction, with its entry in the audit log.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from sqlalchemy import Row

from effects.errors import StoreRejected, StoreUnavailable
from effects.store.audit_log import AuditAction, note
from effects.store.db.deadlines import Bounds
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.schema.tables import LINK, SESSION

LINK_SECONDS = 600.0
IDLE_SECONDS = 7_200.0
SEEN_EVERY_SECONDS = 60.0  # a session's row is written no more often
SEEN_BOUNDS = Bounds(lock_seconds=1.0, seconds=5.0)  # a page waits for it
KEPT_SECONDS = 86_400.0  # rows of what has ended
ID_SHOWN = 12  # characters of the id, by which people name a session
LISTED_MAX = 1_000
_SECRET_BYTES = 32

_MINT = AuditAction("web_link", "mint")
_SIGN_IN, _SIGN_OUT, _END = (AuditAction("web_session", name) for name in ("sign_in", "sign_out", "end"))


class WebSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session, or a link that has not been used. `id`: the first characters of the row's, never its secret."""

    id: str
    kind: str
    person: str
    role: str
    personal: bool
    created_at: dt.datetime
    seen_at: dt.datetime
    ends_at: dt.datetime
    left_seconds: float


def mint_link(
    store: Store,
    *,
    person: str,
    role: str,
    personal: bool,
    session_seconds: float,
    actor: str,
    reason: str | None = None,
    seconds: float = LINK_SECONDS,
) -> str:
    """Make a link that signs one person in, once.

    Args:
        personal: whether the session may show what is personal.
        session_seconds: how long the session will last.
        seconds: until when the link may be used. Default 10 minutes.

    Returns:
        The link's secret.
    """
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    with store.begin() as connection:
        store.write(connection, _forget, age=KEPT_SECONDS)
        store.write(
            connection, _insert, id=_digest(secret), kind=LINK, person=person, role=role, personal=personal,
            session_seconds=session_seconds, seconds=seconds,
        )  # fmt: skip
        detail = {"role": role, "personal": personal, "session_seconds": session_seconds}
        note(store, connection, _MINT, person, actor=actor, reason=reason, detail=detail)
    return secret


def find_link(store: Store, secret: str) -> WebSession | None:
    """The link, unless it was used or its time is over. It stays as it is."""
    with store.read() as connection:
        row = store.row(connection, _find, id=_digest(secret), kind=LINK, idle=KEPT_SECONDS)
    return None if row is None else _session(row)


def sign_in(store: Store, secret: str, *, actor: str, reason: str | None = None) -> str | None:
    """Use up a link and begin its session; of two at once, one succeeds.

    Returns:
        The session's secret; None where the link was used, or its time is over.
    """
    new = secrets.token_urlsafe(_SECRET_BYTES)
    with store.begin() as connection:
        link = store.row(connection, _use_up, id=_digest(secret))
        if link is None:
            return None
        store.write(
            connection, _insert, id=_digest(new), kind=SESSION, person=link.person, role=link.role,
            personal=link.personal, session_seconds=0.0, seconds=link.session_seconds,
        )  # fmt: skip
        detail = {"role": link.role, "personal": bool(link.personal)}
        note(store, connection, _SIGN_IN, _digest(new)[:ID_SHOWN], actor=actor, reason=reason, detail=detail)
    return new


def find_session(store: Store, secret: str) -> WebSession | None:
    """The session, unless it has ended, its time is over, or it was idle for two hours.

    It counts as seen where that can be written: a database that takes no writes is looked at all the same.
    """
    digest = _digest(secret)
    with store.read() as connection:
        row = store.row(connection, _find, id=digest, kind=SESSION, idle=IDLE_SECONDS)
    if row is not None and row.idle > SEEN_EVERY_SECONDS:
        with suppress(StoreUnavailable, StoreRejected), store.within(SEEN_BOUNDS), store.begin() as connection:
            store.write(connection, _see, id=digest)
    return None if row is None else _session(row)


def sign_out(store: Store, secret: str, *, actor: str, reason: str | None = None) -> None:
    """End the own session; ended already, it stays so."""
    digest = _digest(secret)
    with store.begin() as connection:
        if store.row(connection, _end, id=digest) is not None:
            note(store, connection, _SIGN_OUT, digest[:ID_SHOWN], actor=actor, reason=reason)


def end_session(store: Store, session_id: str, *, actor: str, reason: str | None = None) -> str | None:
    """End a session, or a link that was not used, by the id that lists show.

    Returns:
        Whose it was; None where none has this id.
    """
    with store.begin() as connection:
        rows = [row for row in store.all(connection, _open, limit=LISTED_MAX) if row.id.startswith(session_id)]
        if len(rows) != 1 or len(session_id) < ID_SHOWN:
            return None
        store.write(connection, _end, id=rows[0].id)
        note(store, connection, _END, rows[0].id[:ID_SHOWN], actor=actor, reason=reason, detail={"of": rows[0].person})
        return str(rows[0].person)


def list_sessions(store: Store) -> Sequence[WebSession]:
    """Sessions that go on and links that were not used, newest first."""
    with store.read() as connection:
        return [_session(row) for row in store.all(connection, _open, limit=LISTED_MAX)]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _session(row: Row[Any]) -> WebSession:
    return record(WebSession, row, id=row.id[:ID_SHOWN])


# -- the statements --------------------------------------------------------------------------------------


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.web_sessions} (id, kind, person, role, personal, session_seconds, created_at, seen_at, ends_at)
    VALUES (:id, :kind, :person, :role, :personal, :session_seconds, {sql.now}, {sql.now},
        {sql.after(sql.number("seconds"))})"""


def _columns(sql: Sql) -> str:
    times = ", ".join(f"{sql.epoch(name)} AS {name}" for name in ("created_at", "seen_at", "ends_at"))
    left = f"{sql.seconds(sql.now, 'ends_at')} AS left_seconds"
    return f"id, kind, person, role, personal, {times}, {left}, {sql.seconds('seen_at')} AS idle"


def _is_open(sql: Sql) -> str:
    return f"ended_at IS NULL AND ends_at > {sql.now}"


def _find(sql: Sql) -> str:
    seen = f"seen_at > {sql.after('-' + sql.number('idle'))}"
    return f"""
    SELECT {_columns(sql)} FROM {sql.web_sessions}
    WHERE id = :id AND kind = :kind AND {_is_open(sql)} AND {seen}"""


def _use_up(sql: Sql) -> str:
    return f"""
    UPDATE {sql.web_sessions} SET ended_at = {sql.now} WHERE id = :id AND kind = '{LINK}' AND {_is_open(sql)}
    RETURNING person, role, personal, session_seconds"""


def _see(sql: Sql) -> str:
    return f"UPDATE {sql.web_sessions} SET seen_at = {sql.now} WHERE id = :id"


def _end(sql: Sql) -> str:
    return f"UPDATE {sql.web_sessions} SET ended_at = {sql.now} WHERE id = :id AND {_is_open(sql)} RETURNING id"


def _open(sql: Sql) -> str:
    return f"""
    SELECT {_columns(sql)} FROM {sql.web_sessions} AS w WHERE {_is_open(sql)}
    ORDER BY w.created_at DESC, w.id LIMIT :limit"""


def _forget(sql: Sql) -> str:
    return f"DELETE FROM {sql.web_sessions} WHERE ends_at < {sql.after('-' + sql.number('age'))}"
