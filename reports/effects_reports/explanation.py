"""What a request would do, and its first rows, without making a file."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from effects import Effects, EffectsError
from effects.extend.arguments import arguments, optional
from effects.extend.jobs import app_of
from effects.extend.sql import database_condition, is_wrong_statement, primary_message
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import ReportInvalid, ReportRefused
from effects_reports.formats.base import ChunkSource
from effects_reports.formats.csv import Csv
from effects_reports.formats.values import text_of
from effects_reports.readers import batches, choose_route, columns_of
from effects_reports.runs.planner import Resolved, check_format, resolve_part
from effects_reports.source import statements as source
from effects_reports.source.snapshot import reading, was_too_long
from effects_reports.source.statements import any_range, estimated_rows, step_of_all_rows
from effects_reports.state import ReportRegistry, state_of

_EXPLAIN_SECONDS = 30.0


class ReportExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """`effects reports explain`. Rows are the planner's estimate; None if the database has none (SQLite)."""

    report: str
    sheet: str | None
    format: str
    consistency: str
    reads_from: str
    route: str
    key: str
    bounds: str
    rows_estimated: int | None
    chunks_estimated: int | None
    parallel: int
    columns: list[str]
    storage: str
    select: str
    refusals: list[str]


@arguments.checked(ReportInvalid, name=arguments.NAME, format=optional(arguments.NAME), sheet=optional(arguments.text))
def explain_report(
    name: str,
    params: Any = None,
    *,
    format: str | None = None,  # noqa: A002 - as in request_report
    sheet: str | None = None,
    effects: Effects | None = None,
) -> ReportExplanation:
    """Explain a request.

    The key is called proved where a table declares it unique and not NULL; else the plan looks at the rows for that,
    and this does not. The storage is written to and read from once, with a probe.

    Args:
        name: of the report.
        sheet: of a `workbook_report`, whose sheets are explained one by one. Default: its first.

    Raises:
        ReportInvalid, DefinitionInvalid: as `request_report`.
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    registry = state_of(app).registry
    whole = registry.get(name)
    file = format or whole.formats[0]
    if file not in whole.formats:
        raise ReportInvalid(f"report {name!r}: no format {file!r}; it offers {', '.join(whole.formats)}")
    resolved = resolve_part(whole, sheet, params, file)
    definition: ReportDefinition = resolved.definition
    look = _look(registry, definition, resolved)
    route = choose_route(resolved.chunk_source(), resolved.file, look.dialect)
    size = definition.rows_of_a_chunk(route)
    single = definition.consistency == "single" or look.step is not None
    return ReportExplanation(
        report=name,
        sheet=definition.workbook.sheet if whole.sheets else None,
        format=file,
        consistency=definition.consistency,
        reads_from=_reads_from(registry, definition),
        route=route,
        key=_key(definition, resolved),
        bounds=_bounds(definition, size, look.step),
        rows_estimated=look.rows,
        chunks_estimated=1 if single else None if look.rows is None else math.ceil(look.rows / size),
        parallel=1 if single or definition.paged else definition.parallel,
        columns=[column.header for column in resolved.columns],
        storage=app.storage.url,
        select=look.select,
        refusals=[*filter(None, [look.problem]), *_refusals(app, definition, resolved, look.rows)],
    )


def _reads_from(registry: ReportRegistry, definition: ReportDefinition) -> str:
    if definition.engine is None:
        return "its own iterable" if definition.iterable else "the app's database"
    replica = registry.source_of(definition).replica
    if replica is None:
        return definition.engine
    return f"{definition.engine}, a replica at most {replica.lag_seconds_max:g} s behind, else: {replica.behind}"


def _bounds(definition: ReportDefinition, size: int, step: str | None) -> str:
    if definition.paged:
        return f"whole pages, {size:,} rows or more, one chunk after the other"
    if step is not None:
        return f"one part: for each range of the key the database would compute all rows ({step})"
    return "one part" if definition.consistency == "single" else f"half-open ranges of the key, {size:,} rows each"


class _Look(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says of a SELECT: estimated rows, its dialect, the text with its parameters left open.

    `problem`: why it is not taken. `step`: what no range of the key can be pushed into.
    """

    rows: int | None = None
    dialect: str | None = None
    select: str = ""
    problem: str | None = None
    step: str | None = None


def _look(registry: ReportRegistry, definition: ReportDefinition, resolved: Resolved) -> _Look:
    if resolved.statement is None:
        return _Look()
    engine = registry.engine_of(definition)
    rows = problem = step = None
    try:
        with reading(engine, seconds=_EXPLAIN_SECONDS) as connection:
            rows = estimated_rows(connection, resolved.statement)
            step = _step(connection, definition, resolved, rows)
    except DBAPIError as error:
        if not is_wrong_statement(error):
            raise
        problem = f"the database does not take the SELECT: {database_condition(error)}: {primary_message(error)}"
    select = str(resolved.statement.compile(engine))
    if engine.dialect.paramstyle in ("format", "pyformat"):  # whose drivers take a sign for two
        select = select.replace("%%", "%")
    return _Look(
        rows=rows, dialect=engine.dialect.name, select=" ".join(select.split()), problem=problem, step=step
    )  # fmt: skip


def _step(connection: Connection, definition: ReportDefinition, resolved: Resolved, rows: int | None) -> str | None:
    if definition.consistency == "single":
        return None
    size = definition.rows_of_a_chunk(choose_route(resolved.chunk_source(), resolved.file, connection.dialect.name))
    if rows is not None and rows <= size:
        return None
    part = any_range(connection, resolved.statement, definition.key)
    return step_of_all_rows(connection, resolved.statement, part, rows and math.ceil(rows / size))


def _key(definition: ReportDefinition, resolved: Resolved) -> str:
    if resolved.statement is None or not definition.key:
        return "none"
    proved = source.proved_unique(resolved.statement, definition.key)
    return f"{', '.join(definition.key)} ({'proved' if proved else 'to be checked when planned'})"


def _refusals(app: Effects, definition: ReportDefinition, resolved: Resolved, rows: int | None) -> list[str]:
    refusals = []
    columns = len(resolved.columns)
    checks = [
        lambda: check_format(definition, resolved.file, rows, columns),
        lambda: _check_rows(definition, rows),
        app.storage.check,
    ]
    for check in checks:
        try:
            check()
        except EffectsError as error:
            refusals.append(str(error))
    return refusals


def _check_rows(definition: ReportDefinition, rows: int | None) -> None:
    if rows is not None and rows > definition.rows_max:
        raise ReportRefused(f"about {rows:,} rows, and rows_max is {definition.rows_max:,}")


_PREVIEW_SECONDS = 10.0
_PREVIEW_ROWS_MAX = 1000


class ReportPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Headers and rows of texts, in the words of `csv` with dialect `raw`; None is NULL."""

    columns: list[str]
    rows: list[list[str | None]]


@arguments.checked(
    ReportInvalid, name=arguments.NAME, rows=arguments.whole(1, _PREVIEW_ROWS_MAX), sheet=optional(arguments.text)
)
def preview_report(
    name: str, params: Any = None, *, rows: int = 20, sheet: str | None = None, effects: Effects | None = None
) -> ReportPreview:
    """Read the first rows of a report, mapped and in the order of its key, in a read-only transaction.

    Writes nothing. A mapping that leaves rows out makes them fewer. The whole SELECT may have to be computed for them:
    PostgreSQL ends it after 10 s.

    Args:
        name: of the report.
        rows: at most so many, 1 to 1,000.
        sheet: of a `workbook_report`. Default: its first.

    Raises:
        ReportInvalid, DefinitionInvalid: as `request_report`.
        ReportRefused: the database does not take the SELECT, or needs more than 10 s.
    """
    state = state_of(app_of(effects))
    resolved = resolve_part(state.registry.get(name), sheet, params, "csv")
    source = _first(resolved.chunk_source(), rows)
    engine = None if resolved.statement is None else state.registry.engine_of(resolved.definition)
    headers = [column.header for column in source.columns]
    try:
        with nullcontext() if engine is None else reading(engine, seconds=_PREVIEW_SECONDS) as connection:
            return ReportPreview(columns=headers, rows=_texts(source, connection))
    except DBAPIError as error:
        if was_too_long(error):
            reason = f"its first rows take more than {_PREVIEW_SECONDS:g} s: give its key an index"
        elif is_wrong_statement(error):
            reason = f"the database does not take the SELECT: {database_condition(error)}: {primary_message(error)}"
        else:
            raise
        raise ReportRefused(f"report {name!r}: {reason}", code="no_preview") from error


def _first(source: ChunkSource, count: int) -> ChunkSource:
    select = None if source.select is None else source.select.limit(count)
    rows = None if source.rows is None else islice(source.rows, count)
    return replace(source, select=select, rows=rows)


def _texts(source: ChunkSource, connection: Any) -> list[list[str | None]]:
    return [
        [None if value is None else text_of(value) for value in row]
        for batch in batches(source, connection, Csv("raw"))
        for row in zip(*columns_of(source, batch), strict=True)
    ]
