"""What the audit log keeps of actions on endpoints and their secrets, under the endpoint's tenant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from effects import Effects
from effects.extend import AuditAction, note
from effects_webhooks.tables import endpoint_rows as table


def note_endpoint(
    app: Effects,
    connection: Connection,
    action: AuditAction,
    endpoint_id: str,
    *,
    subject: str | None = None,
    actor: str,
    reason: str | None,
    detail: Mapping[str, Any] | None = None,
) -> None:
    """Note an action on an endpoint that the caller has found to be its tenant's.

    Args:
        subject: what of the endpoint's it was done to, such as a secret; default the endpoint.
    """
    row = table.endpoint(app.store, connection, endpoint_id, None)
    tenant = (row.tenant or None) if row is not None else None
    note(
        app.store, connection, action, subject or endpoint_id, actor=actor, reason=reason, detail=detail, tenant=tenant
    )
