"""A report's first rows, as its file would have them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy.exc import DBAPIError

from effects import Effects
from effects.extend import app_of, arguments, database_condition, is_wrong_statement, optional, primary_message
from effects_reports.errors import ReportInvalid, ReportRefused
from effects_reports.formats.base import ChunkSource
from effects_reports.formats.values import text_of
from effects_reports.readers.batches import batches, columns_of
from effects_reports.runs.planner import resolve_part
from effects_reports.source.reading import reading, was_too_long
from effects_reports.state import state_of

PREVIEW_SECONDS = 10.0
PREVIEW_ROWS_MAX = 1000


class ReportPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Headers and rows of texts, in the words of `csv` with dialect `raw`; None is NULL."""

    columns: list[str]
    rows: list[list[str | None]]


@arguments.checked(
    ReportInvalid, name=arguments.NAME, rows=arguments.whole(1, PREVIEW_ROWS_MAX), sheet=optional(arguments.text)
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
        with nullcontext() if engine is None else reading(engine, seconds=PREVIEW_SECONDS) as connection:
            return ReportPreview(columns=headers, rows=_texts(source, connection))
    except DBAPIError as error:
        if was_too_long(error):
            reason = f"its first rows take more than {PREVIEW_SECONDS:g} s: give its key an index"
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
        for batch in batches(source, connection)
        for row in zip(*columns_of(source, batch), strict=True)
    ]
