"""Whether a connection pooler (pgbouncer, for one) stands between us and PostgreSQL."""

from __future__ import annotations

from typing import Any


def pooler_between(driver: Any) -> bool:
    """Ask on a psycopg connection: a pooler names another process at the login than the one that answers.

    Of a driver that does not say whom it was given at the login, nothing is known: False.
    """
    info = getattr(driver, "info", None)
    if info is None:
        return False
    cursor = driver.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    answering = cursor.fetchone()[0]
    cursor.close()
    return bool(info.backend_pid != answering)
