"""Statements as the driver gets them, and the rows that their plans touch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from effects import Effects


@contextmanager
def recorded(app: Effects) -> Iterator[list[tuple[str, Any]]]:
    """The statements of the claim, as the driver gets them."""
    seen: list[tuple[str, Any]] = []

    def record(_c: object, _cursor: object, statement: str, parameters: Any, _x: object, _m: bool) -> None:
        if "effects_" in statement:
            seen.append((statement, parameters))

    for engine in app.store.engines:
        event.listen(engine, "before_cursor_execute", record)
    try:
        yield seen
    finally:
        for engine in app.store.engines:
            event.remove(engine, "before_cursor_execute", record)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def rows_touched(app: Effects, statements: Sequence[tuple[str, Any]]) -> int:
    """Rows that scans of our tables gave or threw away, for statements executed and rolled back."""
    touched = 0.0
    with app.engine.connect() as connection:
        for statement, parameters in statements:
            explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar()
            plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
            for node in _nodes(plan):
                if "Relation Name" in node and node["Node Type"] != "ModifyTable":
                    dropped = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                    touched += (node["Actual Rows"] + dropped) * node["Actual Loops"]
        connection.rollback()
    return round(touched)


def blocks_read(app: Effects, statements: Sequence[tuple[str, Any]]) -> int:
    """Blocks of tables and indexes that statements look at, executed and rolled back."""
    blocks = 0
    with app.engine.connect() as connection:
        for statement, parameters in statements:
            sql = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
            plan = connection.exec_driver_sql(sql, parameters).scalar_one()[0]["Plan"]
            blocks += plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        connection.rollback()
    return blocks
