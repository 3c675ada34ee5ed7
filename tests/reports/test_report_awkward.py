"""Awkward SELECTs by every route and in every format: the file has what the database's plain SELECT gives."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeAlias
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from python_calamine import CalamineWorkbook

from effects import Effects
from effects.worker import Worker
from effects_reports import ReportDefinition, explain_report, preview_report, report_status, request_report
from effects_reports.runs.planner import resolve_part
from effects_reports.source.replica import Replica
from effects_reports.source.snapshot import reading
from tests.formats.rows import part, whole
from tests.reports.awkward import CASES, ROWS, Case, awkward, metadata
from tests.reports.conftest import Shop, content
from tests.support.running import running
from tests.support.sampling import sample
from tests.support.waiting import wait_until

Cells: TypeAlias = list[tuple[str | None, ...]]  # a header, then the rows in order
ROUTES: dict[str, dict[str, Any]] = {
    "single": {"consistency": "single"},
    "range": {"key": ("id",), "chunk_rows": 2},
    "snapshot": {"key": ("id",), "chunk_rows": 2, "consistency": "snapshot"},
    "replica": {"key": ("id",), "engine": "replica"},
    "mapped": {"key": ("id",), "map_batch": list},
}
# What a format or its reader cannot tell apart: the cell that it has in place of the value.
LOSSES: dict[str, dict[str | None, str | None]] = {"csv": {None: ""}, "csv.gz": {None: ""}, "xlsx": {None: ""}}


def read_csv(file: bytes) -> Cells:
    return [tuple(row) for row in csv.reader(io.StringIO(file.decode(), newline=""))]


def read_ndjson(file: bytes) -> Cells:
    objects = [json.loads(line) for line in file.decode().split("\n")[:-1]]
    return [tuple(objects[0]) if objects else (), *(tuple(map(_text, each.values())) for each in objects)]


def read_xlsx(file: bytes) -> Cells:
    sheet = CalamineWorkbook.from_filelike(io.BytesIO(file)).get_sheet_by_index(0)
    return [tuple(_text(int(cell) if isinstance(cell, float) else cell) for cell in row) for row in sheet.to_python()]


def read_columns(table: Any) -> Cells:
    columns = [column.to_pylist() for column in table.columns]
    return [tuple(table.column_names), *(tuple(map(_text, row)) for row in zip(*columns, strict=True))]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


READERS: dict[str, Callable[[bytes], Cells]] = {
    "csv": read_csv,
    "ndjson": read_ndjson,
    "xlsx": read_xlsx,
    "parquet": lambda file: read_columns(pq.read_table(io.BytesIO(file))),
    "arrow": lambda file: read_columns(pa.ipc.open_file(file).read_all()),
}


def driver_of(app: Effects) -> Any:
    """A connection of the database's driver alone, in a context that closes it."""
    url = app.engine.url
    if app.store.is_postgresql:
        return psycopg.connect(url.set(drivername="postgresql").render_as_string(False))
    return closing(sqlite3.connect(str(url.database)))


def plain(driver: Any, case: Case) -> Cells:
    """What the database gives without parameters, as texts."""
    statement = f"WITH truth (id, x) AS ({case.plain}\n) SELECT CAST(id AS text), CAST(x AS text) FROM truth ORDER BY 1"
    cells = driver.execute(statement if isinstance(driver, sqlite3.Connection) else statement.encode()).fetchall()
    return [("id", case.name), *map(tuple, cells)]


def seen(file: bytes, name: str) -> Cells:
    cells = READERS[name](file)
    return [*cells[:1], *sorted(cells[1:], key=lambda row: str(row[0]))]


def expected(cells: Cells, name: str) -> Cells:
    if name == "ndjson" and len(cells) == 1:
        return []  # it has no header
    losses = LOSSES.get(name, {})
    return [tuple(losses.get(cell, cell) for cell in row) for row in cells]


@pytest.fixture
def cases(shop_factory: Shop) -> dict[str, Case]:
    """Those of the database, which has their table."""
    app = shop_factory(reports=[])
    metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        connection.execute(awkward.insert(), ROWS)
    return {title: case for title, case in CASES.items() if app.engine.dialect.name in case.dialects}


def declared(chosen: list[tuple[str, ...]], cases: dict[str, Case]) -> list[ReportDefinition]:
    """A report for each choice, whose first two words are the case and the route, by its number."""
    return [
        cases[title].declare(f"case_{number}", dialect="raw", **ROUTES[route])
        for number, (title, route, *_) in enumerate(chosen)
    ]


def test_there_are_enough(cases: dict[str, Case]) -> None:
    assert len(cases) >= 80


def test_every_format_has_what_the_plain_select_gives(shop_factory: Shop, cases: dict[str, Case]) -> None:
    chosen = sample([(title, "single", name) for title in cases for name in READERS], 60)
    definitions = declared(chosen, cases)
    app = shop_factory(reports=definitions)
    wrong = {}
    with reading(app.engine, seconds=60) as connection, driver_of(app) as driver:
        for definition, (title, _, name) in zip(definitions, chosen, strict=True):
            resolved = resolve_part(definition, None, cases[title].params, name)
            written, _ = part(resolved.chunk_source(), name, "raw", connection)
            cells = seen(whole(resolved.columns, [written], name, "raw"), name)
            if cells != expected(plain(driver, cases[title]), name):
                wrong[title, name] = cells
    assert wrong == {}


@pytest.mark.timeout(600)  # of `make soak`
@pytest.mark.parametrize(("route", "name"), sample([(route, name) for route in ROUTES for name in READERS], 3))
def test_every_route_gives_what_the_plain_select_gives(
    shop_factory: Shop, cases: dict[str, Case], route: str, name: str
) -> None:
    """From the request to the file, by a worker; and `explain` and the preview beside it."""
    engine = shop_factory(reports=[]).engine
    if route == "replica" and engine.dialect.name != "postgresql":
        pytest.skip("only PostgreSQL has replicas")
    engines = {"replica": Replica(engine, behind="primary")} if route == "replica" else {}
    chosen = sample(list(cases), 6)
    size = 4 if route == "snapshot" else 50  # each holds a connection of the pool
    for titles in (chosen[start : start + size] for start in range(0, len(chosen), size)):
        definitions = declared([(title, route) for title in titles], cases)
        app = shop_factory(reports=definitions, report_engines=engines)
        check_runs(app, [cases[title] for title in titles], name)
        app.dispose()


def check_runs(app: Effects, chosen: list[Case], name: str) -> None:
    runs = [
        request_report(f"case_{number}", case.params, format=name, key=uuid4().hex, effects=app).run_id
        for number, case in enumerate(chosen)
    ]  # fmt: skip
    with running(Worker(app)):
        wait_until(lambda: all(report_status(run_id, effects=app).ended for run_id in runs))
    with driver_of(app) as driver:
        for number, case in enumerate(chosen):
            check_run(app, runs[number], case, f"case_{number}", name, plain(driver, case))


def check_run(app: Effects, run_id: str, case: Case, report_name: str, name: str, cells: Cells) -> None:
    assert (case, report_status(run_id, effects=app).error_text) == (case, None)
    assert (case, seen(content(app, run_id), name)) == (case, expected(cells, name))
    explanation = explain_report(report_name, case.params, effects=app)
    assert explanation.refusals == []
    if isinstance(case.sql, str) and not case.params:
        assert " ".join(case.sql.split()) in explanation.select
    preview = preview_report(report_name, case.params, effects=app).rows
    assert (case, sorted(map(tuple, preview))) == (case, cells[1:])
