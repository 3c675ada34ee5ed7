"""Statements as the driver gets them, and the rows that their plans touch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import sql
from sqlalchemy import Connection, event

from effects import Effects

_PLACE = re.compile(r"%\((\w+)\)s")


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


def queues_asked(parameters: Any) -> list[str]:
    """The queues that a claim's statement is about: those of a JSON array, or else whichever text may be one."""
    values = parameters.values() if isinstance(parameters, dict) else parameters
    texts = [value for value in values if isinstance(value, str)]
    arrays = [text for text in texts if text.startswith('[{"queue":')]
    return [row["queue"] for text in arrays for row in json.loads(text)] or texts


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)


def rows_touched(app: Effects, statements: Sequence[tuple[str, Any]]) -> int:
    """Rows that scans of our tables gave or threw away, for statements executed and rolled back."""
    with app.engine.connect() as connection:
        touched = rows_touched_in(connection, statements)
        connection.rollback()
    return touched


def rows_touched_in(connection: Connection, statements: Sequence[tuple[str, Any]]) -> int:
    """The same in the session of this connection; what they write stays."""
    return round(sum(_touched(connection, statement, parameters) for statement, parameters in statements))


def rows_touched_as_prepared(connection: Connection, statements: Sequence[tuple[str, Any]]) -> int:
    """The same for those of the statements that the session of this connection has prepared; what they write stays.

    Raises:
        LookupError: it has prepared none of them.
    """
    names = dict(connection.exec_driver_sql("SELECT statement, name FROM pg_prepared_statements").all())
    executions = {}
    for statement, values in statements:
        text, places = _as_prepared(statement)
        if name := names.get(text):
            literals = sql.SQL(", ").join(sql.Literal(values[place]) for place in places)
            executions[name] = f"EXECUTE {name}({literals.as_string()})" if places else f"EXECUTE {name}"
    if not executions:
        raise LookupError("none of the statements is prepared")
    return round(sum(_touched(connection, execution, None) for execution in executions.values()))


def _as_prepared(statement: str) -> tuple[str, list[str]]:
    """The statement as psycopg sends it, and the names of its values by their numbers."""
    numbers = {name: f"${number}" for number, name in enumerate(dict.fromkeys(_PLACE.findall(statement)), 1)}
    return _PLACE.sub(lambda place: numbers[place[1]], statement).replace("%%", "%"), list(numbers)


def _touched(connection: Connection, statement: str, parameters: Any) -> float:
    explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", parameters).scalar()
    plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
    scans = [node for node in _nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"]
    return sum(
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0))
        * node["Actual Loops"]
        for node in scans
    )


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
