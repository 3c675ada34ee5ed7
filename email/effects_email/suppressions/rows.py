"""A suppression as it is stored: the address as a digest, its text sealed where there is a key to seal it with."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, Row

from effects import Effects, KeyUnavailable
from effects.extend import SealedColumn
from effects_email.message.address import address_digest
from effects_email.tables import suppressions as table
from effects_email.tables.suppressions import LogRow, SuppressionRow

Reason: TypeAlias = Literal["hard_bounce", "complaint", "unsubscribe", "manual", "soft_repeat"]
# Of several that hold, the first of these is named.
REASONS: tuple[Reason, ...] = ("complaint", "hard_bounce", "manual", "unsubscribe", "soft_repeat")
ALL = "all"  # the scope of what reaches every message


def new_row(
    app: Effects,
    address: str | None,
    reason: Reason,
    *,
    digest: str | None = None,
    category: str | None = None,
    until: float | None,
    source: str,
    actor: str,
    why: str | None,
) -> SuppressionRow:
    """The row of a suppression.

    Args:
        address: None where only its digest is known; the row holds all the same, and shows no address.
        until: seconds since 1970 by the database's clock, None forever.
    """
    digest, sealing = digest or address_digest(app, address or ""), bool(app.keys.ids)
    return SuppressionRow(
        id=f"sup_{os.urandom(12).hex()}",
        digest=digest,
        scope=category or ALL,
        reason=reason,
        source=source,
        address=None if sealing else address,
        sealed=app.keys.seal(address.encode(), **_context(digest)) if sealing and address else None,
        until=until,
        actor=actor,
        why=why,
    )


def write(app: Effects, connection: Connection, rows: Sequence[SuppressionRow]) -> None:
    """Write rows and their lines in the log, in the order of the digests: two workers lock them in the same order."""
    rows = sorted(rows, key=lambda row: (row.digest, row.scope, row.reason))
    table.write(app.store, connection, rows)
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="suppressed", scope=row.scope, reason=row.reason, actor=row.actor, why=row.why)
        for row in rows
    ])  # fmt: skip


def opened(app: Effects, row: Row[Any]) -> str | None:
    """The address of a row; None where its key is not at hand."""
    if row.sealed is None:
        address: str | None = row.address
        return address
    try:
        return app.keys.open(bytes(row.sealed), **_context(row.digest)).decode()
    except KeyUnavailable:
        return None


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="email_suppressions",
            column="sealed",
            id_column="id",
            columns=("digest",),
            context=lambda row: _context(row.digest),
        )
    ]


def _context(digest: str) -> dict[str, str]:
    # By the digest and not the id: a row that is written again keeps its id and takes the newer text.
    return {"table": "email_suppressions", "row": digest, "field": "address"}
