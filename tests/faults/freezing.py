"""Freezing a worker without freezing the database."""

from __future__ import annotations

import sqlite3

from effects import Effects
from tests.support.processes import Child


def freeze_between_writes(child: Child, app: Effects) -> None:
    """SIGSTOP at a moment when the process does not hold SQLite's write lock, which would freeze everybody."""
    child.freeze()
    while not _writable(app):
        child.thaw()
        child.freeze()


def _writable(app: Effects) -> bool:
    if app.engine.dialect.name != "sqlite":
        return True
    connection = sqlite3.connect(str(app.engine.url.database), timeout=0, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True
