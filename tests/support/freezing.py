"""Freezing a worker without freezing the database."""

from __future__ import annotations

import sqlite3

from sqlalchemy import text

from effects import Effects
from tests.support.processes import Child

_OPEN_TRANSACTIONS = text("""
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL""")


def freeze_between_transactions(child: Child, app: Effects) -> None:
    """SIGSTOP at a moment when the process holds no lock, for which everybody would wait.

    Nobody else may be in a transaction on this database for long.
    """
    child.freeze()
    while _holds_locks(app):
        child.thaw()
        child.freeze()


def _holds_locks(app: Effects) -> bool:
    if app.engine.dialect.name != "sqlite":
        with app.engine.connect() as connection:
            return bool(connection.scalar(_OPEN_TRANSACTIONS))
    connection = sqlite3.connect(str(app.engine.url.database), timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return True
    finally:
        connection.close()
    return False
