"""What a process sends to its database, as the driver hears it: what SQLAlchemy reports nowhere, too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, event

CONTROL = ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA", "--")  # SQLite names what a trigger executes in a comment


@contextmanager
def driver_statements() -> Iterator[list[str]]:
    """All statements on connections that are opened meanwhile, by any engine, transaction control apart."""
    statements: list[str] = []

    def note(statement: object) -> None:
        text = " ".join(str(statement).split())
        if not text.upper().startswith(CONTROL):
            statements.append(text)

    class Cursor(psycopg.Cursor[Any]):
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            note(query)
            return super().execute(query, *arguments, **options)

    def connecting(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        if "prepare_threshold" in parameters:  # psycopg's
            parameters["cursor_factory"] = Cursor

    def connected(driver: Any, _record: Any) -> None:
        if isinstance(driver, sqlite3.Connection):
            driver.set_trace_callback(note)

    event.listen(Engine, "do_connect", connecting)
    event.listen(Engine, "connect", connected)
    try:
        yield statements
    finally:
        event.remove(Engine, "do_connect", connecting)
        event.remove(Engine, "connect", connected)
