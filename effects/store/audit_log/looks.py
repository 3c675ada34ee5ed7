"""Looks at what may be personal, noted before it is shown."""

from __future__ import annotations

from effects.store.audit_log.notes import AuditAction, note
from effects.store.db.store import Store

LOOK_UP = AuditAction("address", "look_up")
REVEAL_JOB = AuditAction("job", "reveal")


def note_look(store: Store, action: AuditAction, subject: str | int, *, actor: str, reason: str | None = None) -> None:
    """What may be personal is about to be shown.

    Args:
        subject: whose; an address by its digest, so that the log holds none.
    """
    with store.begin() as connection:
        note(store, connection, action, subject, actor=actor, reason=reason)
