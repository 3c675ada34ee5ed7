"""Looks at what may be personal, noted before it is shown."""

from __future__ import annotations

from effects.store.audit_log.notes import AuditAction, note
from effects.store.db.store import Store

_LOOK_UP, _REVEAL = AuditAction("address", "look_up"), AuditAction("job", "reveal")


def note_look_up(store: Store, digest: str, *, actor: str, reason: str | None = None) -> None:
    """An address is looked up; by its digest, so that the log holds none."""
    with store.begin() as connection:
        note(store, connection, _LOOK_UP, digest, actor=actor, reason=reason)


def note_reveal(store: Store, job_id: int, *, actor: str, reason: str | None = None) -> None:
    """What may be personal in the story of a job is shown."""
    with store.begin() as connection:
        note(store, connection, _REVEAL, job_id, actor=actor, reason=reason)
