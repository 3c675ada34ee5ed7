"""Notices of a run, stored with its row, in clear or sealed, and read once."""

from __future__ import annotations

from sqlalchemy import Connection, select, update

from effects.extend import Store


def write_notices(store: Store, connection: Connection, run_id: str, clear: str | None, sealed: bytes | None) -> None:
    """Keep a run's notices. The bytes are bound as bytes, which no text encoding passes."""
    table = store.tables["report_runs"]
    connection.execute(update(table).where(table.c.id == run_id).values(notify=clear, notify_sealed=sealed))


def read_notices(store: Store, connection: Connection, run_id: str) -> tuple[str | None, bytes | None]:
    """In clear or sealed; neither if there are none."""
    table = store.tables["report_runs"]
    row = connection.execute(select(table.c.notify, table.c.notify_sealed).where(table.c.id == run_id)).one()
    return row.notify, bytes(row.notify_sealed) if row.notify_sealed is not None else None
