"""The decorator that makes a report of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from effects_reports.definitions.definition import (
    BYTES_MAX,
    KEEP_DAYS,
    PARALLEL,
    ROWS_MAX,
    ColumnType,
    Consistency,
    PasswordOf,
    ReportDefinition,
    Source,
)
from effects_reports.definitions.params import declared_by, takes_after
from effects_reports.formats.base import Dialect, MapBatch, MapRow
from effects_reports.formats.opening import FORMATS
from effects_reports.formats.sheets.options import Workbook


def report(
    name: str,
    *,
    key: Sequence[str] = (),
    params: type[Any] | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    types: Mapping[str, ColumnType] | None = None,
    map_row: MapRow | None = None,
    map_batch: MapBatch | None = None,
    iterable: bool = False,
    formats: Sequence[str] = FORMATS,
    dialect: Dialect = "excel",
    consistency: Consistency = "range",
    chunk_rows: int | None = None,
    rows_max: int = ROWS_MAX,
    bytes_max: int = BYTES_MAX,
    parallel: int = PARALLEL,
    keep_days: float = KEEP_DAYS,
    engine: str | None = None,
    workbook: Workbook | None = None,
    password: PasswordOf | None = None,
    version: int = 1,
) -> Callable[[Source], ReportDefinition]:
    """Declare a report; the decorated function gives its rows. ``Effects(reports=[…])`` makes it known to an app.

    The function is called with the params, unless it has no argument for them, and with `as_of` (the time of the plan)
    where it has an argument of that name. With an argument `since` the report is incremental: its runs cover
    `since.new_rows(table)`, each row once, and never overlap. It is called again for every chunk, in any process: it
    must build the same SELECT each time.

    Args:
        key: names of selected columns that are together unique and never NULL, and that do not change: chunks are
            ranges of it, in its order. An index on it makes a chunk cheap. Without, an ORDER BY is the SELECT's own.
        params: a dataclass, msgspec Struct or TypedDict that the request's params are made into. Default: such a class
            by which the argument is annotated, or keyword-only arguments of their types. Else a dict, unchecked.
        columns: the file's columns in order, as names or as `{name: header}`. Default: those of the SELECT.
        types: SQLAlchemy types by columns, for `parquet` and `arrow`. Default: the SELECT's, where it knows them.
        map_row: makes the file's row (a sequence in the order of `columns`, or a mapping) of a row; None leaves it out.
        map_batch: the same for up to 1,000 rows at once. Without either, PostgreSQL itself writes the format (COPY).
        iterable: the function returns an iterable of rows instead of a SELECT. One part: a crash begins it again. With
            an argument `after` it yields `RowPage(rows, cursor)` instead: chunks of whole pages, one after the other.
        formats: those that may be asked for, the default first.
        dialect: of CSV: `excel` (default), `excel_semicolon`, both with `_exact` too, `rfc4180`, or `raw`: no defence.
        consistency: `range` (default), `snapshot` or `single`; the package's page says what each guarantees.
        chunk_rows: rows of a chunk, more where there would be over 10,000 of them. Default 100,000; by COPY 250,000.
        rows_max, bytes_max: a report with more is refused, or fails. Default 10 million and 1 GiB.
        parallel: how many chunks of this report run at once, over all its runs. Default 4; stored as the cap of the
            limit key `report:NAME` when the report is first planned, where an operator may change it.
        keep_days: how long a finished file is kept. Default 7.
        engine: the name of another database or a `Replica` to read from (`Effects(report_engines={…})`).
        workbook: how `xlsx` looks: see `Workbook`.
        password: of `csv.zip`, `xlsx.zip` and the like: a function of params and key, called at the request and later.
        version: raise it with every change of columns or rows: a run that was planned by another one is refused.

    Raises:
        DefinitionInvalid: from ``Effects(reports=[…])`, which checks all of this.
    """
    headers = columns if columns is None or isinstance(columns, Mapping) else {column: column for column in columns}

    def declare(source: Source) -> ReportDefinition:
        return ReportDefinition(
            name=name, source=source, params=params or declared_by(source),
            key=(key,) if isinstance(key, str) else tuple(key), columns=headers, types=types or {},
            map_row=map_row, map_batch=map_batch, iterable=iterable, formats=tuple(formats), dialect=dialect,
            consistency=("range" if takes_after(source) else "single") if iterable else consistency,
            chunk_rows=chunk_rows, rows_max=rows_max, bytes_max=bytes_max, parallel=parallel, keep_days=keep_days,
            engine=engine, workbook=workbook or Workbook(), password=password, version=version,
        )  # fmt: skip

    return declare
