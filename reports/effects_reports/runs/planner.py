"""From a definition and a request to frozen chunks, or to the reason why not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection

from effects_reports.definitions.definition import ReportDefinition, Statement
from effects_reports.errors import ReportRefused
from effects_reports.formats.arrow import with_kinds
from effects_reports.formats.base import ChunkSource, Column, Format
from effects_reports.formats.opening import open_format, plain_format
from effects_reports.formats.xlsx import Xlsx
from effects_reports.readers import choose_route
from effects_reports.runs.state_machine import Range
from effects_reports.source import statements as source
from effects_reports.source.paging import first_rows, key_from_json, key_to_json
from effects_reports.source.since import Since
from effects_reports.source.statements import estimated_rows, read_bounds, step_of_all_rows
from effects_reports.source.wide_values import read_wide_values

CHUNKS_MAX = 10_000


class Plan(msgspec.Struct, frozen=True):
    """The ranges of a report, and how many rows they hold together."""

    ranges: list[Range]
    rows_total: int | None
    total_kind: str


def ordinal(number: int) -> str:
    """The name of the n-th chunk, from 1 on."""
    return f"{number:05}"


def plan_parts(connection: Connection | None, definition: ReportDefinition, parts: Sequence[Resolved]) -> list[Plan]:
    """The plan of a report, or of each sheet of a workbook; their chunks are numbered through.

    Raises:
        ReportRefused: a key is not unique, is NULL somewhere, or there are more rows than `rows_max`.
    """
    numbers, plans = count(1), []
    for resolved in parts:
        plan = _plan_rows(connection, resolved)
        ranges = [replace(chunk_range, ordinal=ordinal(next(numbers))) for chunk_range in plan.ranges]
        plans.append(replace(plan, ranges=ranges))
    rows = sum(plan.rows_total or 0 for plan in plans if plan.total_kind == "exact")
    if rows > definition.rows_max:
        raise ReportRefused(
            f"report {definition.name!r} has more than {definition.rows_max:,} rows, which is its rows_max: narrow its "
            "params, or raise rows_max",
            code="too_many_rows",
        )
    return plans


def total_of(plans: Sequence[Plan]) -> tuple[int | None, str]:
    """The rows of all, and how that is known."""
    kinds = {plan.total_kind for plan in plans}
    kind = next(kind for kind in ("unknown", "estimated", "exact") if kind in kinds)
    return None if kind == "unknown" else sum(plan.rows_total or 0 for plan in plans), kind


def _plan_rows(connection: Connection | None, resolved: Resolved) -> Plan:
    """Find the bounds: with a key by one walk over it, else one chunk for everything.

    Raises:
        ReportRefused: the key is not unique, or is NULL somewhere.
    """
    definition: ReportDefinition = resolved.definition
    statement = resolved.statement
    if statement is None or connection is None:
        return Plan([Range(ordinal(1), None, None, None)], None, "unknown")
    read_wide_values(connection, mapped=False)
    if definition.consistency == "single":
        rows = estimated_rows(connection, statement)
        kind = "unknown" if rows is None else "estimated"
        return Plan([Range(ordinal(1), None, None, rows)], rows, kind)
    check_key(connection, definition, statement)
    route = choose_route(resolved.chunk_source(), resolved.file, connection.dialect.name)
    ranges = _ranges(connection, definition, statement, definition.rows_of_a_chunk(route))
    total = sum(chunk_range.rows or 0 for chunk_range in ranges)
    if len(ranges) > 1 and _repeats_itself(connection, resolved, ranges):
        ranges = [Range(ordinal(1), None, ranges[-1].hi, None)]  # its halves would cost as much
    return Plan(ranges, total, "exact")


def _repeats_itself(connection: Connection, resolved: Resolved, ranges: list[Range]) -> bool:
    """Whether each chunk would cost as much as the whole report: then all rows are one chunk."""
    middle = ranges[len(ranges) // 2]
    bounds = [bound and key_from_json(msgspec.json.encode(bound).decode()) for bound in (middle.lo, middle.hi)]
    part = resolved.chunk_source(*bounds).select
    if part is None:
        return False
    return step_of_all_rows(connection, resolved.statement, part, len(ranges)) is not None


def _ranges(connection: Connection, definition: ReportDefinition, statement: Statement, size: int) -> list[Range]:
    bounds = read_bounds(connection, statement, definition.key, size, definition.rows_max)
    keys = [(key_to_json(key), number) for key, number in bounds]
    step = math.ceil(len(keys) / CHUNKS_MAX) or 1
    ends = [chunk_end for n, chunk_end in enumerate(keys, start=1) if n % step == 0 or n == len(keys)]
    starts: list[tuple[list[Any] | None, int]] = [(None, 0), *ends][: len(ends)]
    return [
        Range(ordinal(n), lo, hi, number - before, before)
        for n, ((lo, before), (hi, number)) in enumerate(zip(starts, ends, strict=True), start=1)
    ]


def check_key(connection: Connection, definition: ReportDefinition, statement: Statement) -> None:
    """Refuse a key that does not identify rows, by the table's declaration or else by reading the rows.

    Raises:
        ReportRefused: the message names the key and what to do.
    """
    key = ", ".join(definition.key)
    if source.proved_unique(statement, definition.key):
        return
    if source.first_null(connection, statement, definition.key) is not None:
        raise ReportRefused(
            f"report {definition.name!r}: its key ({key}) is NULL in some row, which no range would hold; choose a key "
            "that is never NULL",
            code="key_null",
        )
    if source.first_repeated(connection, statement, definition.key) is not None:
        raise ReportRefused(
            f"report {definition.name!r}: two rows have one key ({key}); add a column that distinguishes them",
            code="key_not_unique",
        )


def check_format(definition: ReportDefinition, file: Format, rows: int | None, columns: int) -> None:
    """Refuse what the format cannot hold.

    Raises:
        ReportRefused: too many rows or columns; names another format.
    """
    who = f"report {definition.name!r}"
    if file.columns_max is not None and columns > file.columns_max:
        raise ReportRefused(
            f"{who}: {file.name} holds {file.columns_max:,} columns and it has {columns:,}; ask for csv",
            code="too_many_columns",
        )
    if file.rows_max is not None and rows is not None and rows > file.rows_max:
        raise ReportRefused(
            f"{who}: {file.name} holds {file.rows_max:,} rows and it has {rows:,}; ask for csv, or narrow its params",
            code="too_many_rows_for_format",
        )


class Resolved(msgspec.Struct, frozen=True):
    """A definition with its params in: the statement (None for an iterable), its format, the time that it is as of.

    `sheet`: its name, where it is one of a workbook report.
    """

    definition: Any
    params: Any
    statement: Any
    file: Any
    as_of: datetime
    sheet: str | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """Of the file; with their kinds where it is a typed one."""
        columns: tuple[Column, ...] = self.definition.columns_of(self.statement)
        if self.file.typed:
            return with_kinds(columns)
        return self.file.with_looks(columns) if isinstance(self.file, Xlsx) else columns

    def pages(self, after: Any) -> Any:
        """The pages of an iterable with cursors, from this one on."""
        return self.definition.rows(self.params, self.as_of, after)

    def chunk_source(self, lo: Any = None, hi: Any = None) -> ChunkSource:
        """The rows between two keys; all of an iterable."""
        definition: ReportDefinition = self.definition
        columns = self.columns
        if self.statement is None:
            rows = definition.rows(self.params, self.as_of)
            return ChunkSource(columns=columns, rows=first_rows(rows) if definition.paged else rows)
        names = [column.key for column in self.statement.selected_columns]
        chosen = names if definition.mapped else [column.name for column in columns]
        return ChunkSource(
            columns=columns,
            select=source.ranged(self.statement, definition.key, lo, hi, chosen),
            map_row=definition.map_row,
            map_batch=definition.map_batch,
        )


def resolve_part(definition: ReportDefinition, sheet: str | None, params: Any, file: str) -> Resolved:
    """`resolve_parts` of the sheet alone, as of now, for a look at it; without a name the first, or the report itself.

    Raises:
        ReportInvalid, DefinitionInvalid, ConfigurationError: as `resolve_parts`; or there is no such sheet.
    """
    part = definition.part(sheet)
    typed = definition.params_for(part, definition.read_params(params))
    return _resolve(part, typed, file, definition.dialect, datetime.now(UTC))


def resolve_parts(
    definition: ReportDefinition, typed: Any, file: str, dialect: Any, as_of: datetime, **options: Any
) -> list[Resolved]:
    """The report, or each sheet of a workbook, as parts of one file.

    Args:
        typed: the params, as `definition.read_params` gives them.
        options: `since`, and `packing` as `open_format` takes it.

    Raises:
        ReportInvalid, DefinitionInvalid, ConfigurationError: they do not fit, or an extra is missing.
    """
    parts = [
        _resolve(part, definition.params_for(part, typed), file, dialect, as_of, **options) for part in definition.parts
    ]
    if not definition.sheets:
        return parts
    every = [column for part in parts for column in part.columns]
    return [
        replace(part, file=Xlsx(part.definition.workbook, styled=every), sheet=part.definition.workbook.sheet)
        for part in parts
    ]


def _resolve(
    definition: ReportDefinition, typed: Any, file: str, dialect: Any, as_of: datetime, *,
    since: Since | None = None, packing: Any = None,
) -> Resolved:  # fmt: skip
    """Build the SELECT, open the format, type the columns."""
    statement = None if definition.iterable else definition.statement(typed, as_of, since)
    opened = (
        Xlsx(definition.workbook)
        if plain_format(file) == "xlsx"
        else open_format(file, dialect, packing, definition.big_integers)
    )
    resolved = Resolved(definition, typed, statement, opened, as_of)
    _ = resolved.columns  # refuses those of no type in a typed file
    return resolved
