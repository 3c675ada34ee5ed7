"""What the tables hold, to see that something changed nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from effects import Effects
from effects.operate.tables.actions import LogFilters, list_entries

if TYPE_CHECKING:
    from tests.web.conftest import Shop


def digest(shop: Shop) -> dict[str, object]:
    """What all our tables hold, but for when a session was last seen, which each look may change."""
    with shop.app.store.read() as connection:
        return {
            name: sorted(map(str, connection.execute(select(*columns)).all()))
            for name, table in shop.app.store.tables.items()
            for columns in [[column for column in table.columns if (name, column.name) != ("web_sessions", "seen_at")]]
        }


def audit_actions(app: Effects) -> list[tuple[str, str]]:
    """Who did what, oldest first."""
    return [(entry.actor, entry.action) for entry in reversed(list_entries(app.store, LogFilters()))]
