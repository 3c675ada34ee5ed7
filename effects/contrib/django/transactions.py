"""Whether the caller's transaction of Django has written: a call without `session=` would be outside of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections

from effects.sessions.forgotten import WRITES

_IN_TRANSACTION = 2  # of libpq's PGTransactionStatusType, which both drivers report
_HAS_WRITTEN = "SELECT pg_catalog.txid_current_if_assigned()"


class WriteWatch:
    """Among a connection's `execute_wrappers`: notices what writes."""

    def __init__(self) -> None:
        self.has_written = False

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        text = sql if isinstance(sql, str) else ""
        if text.startswith(("BEGIN", "SAVEPOINT")) and not own_blocks(context["connection"]):
            self.has_written = False
        result = execute(sql, params, many, context)
        self.has_written = self.has_written or WRITES.match(text) is not None
        return result


def watch(connection: Any) -> None:
    """Notice from now on what this connection of Django writes."""
    if _watch_of(connection) is None:
        connection.execute_wrappers.append(WriteWatch())


def own_blocks(connection: Any) -> list[Any]:
    """The atomic blocks of the app's own, without those that a `TestCase` puts around a test."""
    return [block for block in connection.atomic_blocks if not getattr(block, "_from_testcase", False)]


def is_in_test_case_alone(connection: Any) -> bool:
    """Whether its transaction is the one that a `TestCase` rolls back, and the app has begun none."""
    return bool(connection.atomic_blocks) and not own_blocks(connection)


def open_connection(alias: str) -> Any:
    """This thread's connection of Django to a database; None if it has opened none."""
    return next((each for each in connections.all(initialized_only=True) if each.alias == alias), None)


def has_written(connection: Any) -> bool:
    """Whether a transaction is under way in a connection of this thread, and has written."""
    watch, driver = _watch_of(connection), connection.connection
    if watch is None or not watch.has_written or driver is None:
        return False
    if connection.vendor == "sqlite":
        return bool(driver.in_transaction)
    if int(driver.info.transaction_status) != _IN_TRANSACTION:
        return False
    with driver.cursor() as cursor:
        cursor.execute(_HAS_WRITTEN)
        return cursor.fetchone()[0] is not None


def _watch_of(connection: Any) -> WriteWatch | None:
    return next((each for each in connection.execute_wrappers if isinstance(each, WriteWatch)), None)
