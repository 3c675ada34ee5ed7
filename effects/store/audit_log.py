"""Writing the audit log: each action notes itself in its own transaction, so that both commit or neither.

An action that is refused, or that changes nothing, leaves no entry. Entries are never changed; `effects.prune` deletes
them after EFFECTS_RETENTION_AUDIT_DAYS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.errors import ConfigurationError
from effects.kit.text.scrub import KEY_CHARS_MAX, clean_detail, clean_text
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.schema.tables import AUDIT_VIAS

DETAIL_BYTES_MAX = 8 * 1024
REASON_CHARS_MAX = 1_000


class AuditAction(msgspec.Struct, frozen=True):
    """Something that a person or a schedule does to one kind of subject, such as `AuditAction("limit", "pause")`.

    A constant of the module that does it; `effects log` filters by both words.

    Args:
        subject_kind: a noun, such as `job`, `limit`, `schedule`.
        name: a verb, such as `pause`.
    """

    subject_kind: str
    name: str


class _Subject(msgspec.Struct, frozen=True):
    subject: str
    detail: dict[str, Any]


def note(
    store: Store,
    connection: Connection,
    action: AuditAction,
    subject: str | int,
    *,
    actor: str,
    reason: str | None,
    detail: Mapping[str, Any] | None = None,
    tenant: str | None = None,
) -> None:
    """Write an action to the audit log, in its own transaction.

    Args:
        subject: which one of its kind: a job's id, a limit key, the digest of an address. Nothing personal.
        actor: who acts. A prefix tells through what: `cli:ann`, `web:ann`, `schedule:nightly`; without one, an
            application did it through the API.
        reason: why, in the actor's words; cut at 1,000 characters.
        detail: what was changed, without secrets and personal data; replaced by its size above 8 KiB of JSON.
        tenant: whose subject it is, where subjects have tenants.

    Raises:
        ConfigurationError: no actor.
    """
    note_all(store, connection, action, {subject: detail or {}}, actor=actor, reason=reason, tenant=tenant)


def note_all(
    store: Store,
    connection: Connection,
    action: AuditAction,
    subjects: Mapping[Any, Mapping[str, Any]],
    *,
    actor: str,
    reason: str | None,
    tenant: str | None = None,
) -> None:
    """Write one entry for each subject, in one statement; otherwise as `note`.

    Args:
        subjects: subject (a text or an id) → its detail.

    Raises:
        ConfigurationError: no actor.
    """
    if not actor.strip():
        raise ConfigurationError("actor is empty; name who acts, such as cli:ann")
    rows = [_Subject(clean_text(str(name), KEY_CHARS_MAX), _bounded(detail)) for name, detail in subjects.items()]
    if rows:
        store.write(
            connection,
            _insert,
            rows=as_json(rows),
            actor=clean_text(actor, KEY_CHARS_MAX),
            via=via_of(actor),
            action=action.name,
            subject_kind=action.subject_kind,
            tenant=tenant,
            reason=None if reason is None else clean_text(reason, REASON_CHARS_MAX),
        )


def of_bulk(bulk_id: int | None) -> dict[str, Any]:
    """What the detail of an action says of the bulk action that it is a part of."""
    return {} if bulk_id is None else {"bulk": bulk_id}


def via_of(actor: str) -> str:
    """Through what an actor acts, by its prefix: `cli`, `web`, `schedule`, else `api`."""
    prefix, colon, _ = actor.partition(":")
    return prefix if colon and prefix in AUDIT_VIAS else "api"


def _bounded(detail: Mapping[str, Any]) -> dict[str, Any]:
    return clean_detail(detail, DETAIL_BYTES_MAX)


# -- the statements --------------------------------------------------------------------------------------


def _insert(sql: Sql) -> str:
    texts = ("actor", "via", "action", "subject_kind", "tenant", "reason")
    return f"""
    INSERT INTO {sql.audit_log} ({", ".join(texts)}, subject, detail, created_at)
    SELECT {", ".join(f"CAST(:{name} AS text)" for name in texts)}, r.subject, r.detail, {sql.now}
    FROM {sql.rows("rows", _Subject)} AS r"""
