"""The decorator that makes a report of a function, or of several for a workbook of several sheets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from effects.extend.text import described
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
    declared_by,
    takes_after,
)
from effects_reports.errors import DefinitionInvalid
from effects_reports.formats.base import BigIntegers, Dialect, MapBatch, MapRow, Workbook
from effects_reports.formats.opening import FORMATS


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
    big_integers: BigIntegers = "number",
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

    The function is called with the params, if it has an argument for them, and with `as_of` (the time of the plan) if
    it has an argument of that name. With an argument `since` the report is incremental: its runs cover each row of
    `since.new_rows(table)` once. It is called for every chunk, in any process, and must build the same SELECT.

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
        big_integers: of NDJSON: `text` for those beyond 2^53 - 1, which JavaScript and others round. Default: `number`.
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

    def declare(source: Source) -> ReportDefinition:
        return ReportDefinition(
            name=name, source=source, params=params or declared_by(source), columns=_headers(columns),
            types=types or {}, key=(key,) if isinstance(key, str) else tuple(key), map_row=map_row,
            map_batch=map_batch, iterable=iterable, formats=tuple(formats), dialect=dialect, big_integers=big_integers,
            consistency=("range" if takes_after(source) else "single") if iterable else consistency, rows_max=rows_max,
            chunk_rows=chunk_rows, bytes_max=bytes_max, parallel=parallel, keep_days=keep_days, engine=engine,
            workbook=workbook or Workbook(), password=password, version=version,
        )  # fmt: skip

    return declare


def _headers(columns: Sequence[str] | Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Name → header; a name alone is its own."""
    return columns if columns is None or isinstance(columns, Mapping) else {column: column for column in columns}


_SHEETS_MAX = 50
_FORMATS = ("xlsx", "xlsx.zip")
# What is one for the whole file, whatever a sheet's own report says of it.
_OF_THE_WHOLE = ("formats", "dialect", "consistency", "engine", "rows_max", "bytes_max", "parallel", "keep_days")


def workbook_report(
    name: str,
    sheets: Mapping[str, ReportDefinition],
    *,
    params: type[Any] | None = None,
    workbook: Workbook | None = None,
    **options: Any,
) -> ReportDefinition:
    """Declare a report whose file is one workbook of several SELECTs: ``Effects(reports=[workbook_report(…)])``.

    One run, one plan and one file: chunks of all sheets are made side by side, a crash repeats none that is done, and
    the sheets stand in their order. A sheet without rows has its header. One with more rows than a sheet holds goes on
    in `Orders 2`. A sheet whose report has no key is one chunk.

    Args:
        sheets: sheet name → a report (`@report` or `sql_report`): its SELECT, key, columns, mapping, chunk size, and of
            its `Workbook` the formats, widths and totals. At most 50; names of at most 25 characters, different
            whatever their case. The reports need not be given to `Effects` themselves.
        params: as of `report`. Default: those of the first sheet that takes any. A sheet gets the fields that it names.
        workbook: zone, long texts and cover of the whole. Default: UTC, refused, none.
        options: of `report`, those that a whole file has: formats (`xlsx`, `xlsx.zip`), consistency, rows_max,
            bytes_max, parallel, keep_days, engine, password, version: raise it with a change of any sheet.

    Raises:
        DefinitionInvalid: from here, or from ``Effects(reports=[…])``, which checks each sheet as its own report.
    """
    who = f"report {name!r}"
    if not isinstance(sheets, Mapping):
        raise DefinitionInvalid(f"{who}: sheets is {described(sheets)}; give a dict of names and reports")
    allowed = {*_OF_THE_WHOLE, "password", "version"}
    if unknown := [option for option in options if option not in allowed]:
        raise DefinitionInvalid(f"{who}: {unknown[0]} is an option of its sheets; give {', '.join(sorted(allowed))}")
    for sheet, definition in sheets.items():
        _check_sheet(who, sheet, definition)
    _check_count(who, list(sheets))
    first = next((each for each in sheets.values() if each.params is not None), next(iter(sheets.values())))
    look = workbook or Workbook()
    if look.sheet != Workbook().sheet:
        raise DefinitionInvalid(f"{who}: workbook: sheet is {look.sheet!r}, and the sheets have names of their own")
    whole = report(name, key=first.key, params=params or first.params, **{"formats": ("xlsx",), **options})(
        first.source
    )
    if wrong := [file for file in whole.formats if file not in _FORMATS]:
        raise DefinitionInvalid(f"{who}: formats holds {wrong[0]}; sheets are of {' and '.join(_FORMATS)} alone")
    parts = tuple(_sheet(sheet, definition, whole, look) for sheet, definition in sheets.items())
    return replace(whole, workbook=look, sheets=parts)


def _sheet(sheet: str, definition: ReportDefinition, whole: ReportDefinition, look: Workbook) -> ReportDefinition:
    """The sheet's report as a part of the whole."""
    own = replace(definition.workbook, sheet=sheet, zone=look.zone, long_texts=look.long_texts, cover=None)
    of_the_whole = {name: getattr(whole, name) for name in _OF_THE_WHOLE}
    if not definition.key:
        of_the_whole["consistency"] = "single"
    return replace(definition, workbook=own, password=whole.password, **of_the_whole)


def _check_sheet(who: str, sheet: object, definition: object) -> None:
    if not isinstance(sheet, str):
        raise DefinitionInvalid(f"{who}: the name of a sheet is {described(sheet)}; give a text")
    if not isinstance(definition, ReportDefinition):
        raise DefinitionInvalid(
            f"{who}: sheet {sheet!r} is {described(definition)}; give a function decorated by @report, or sql_report(…)"
        )
    if definition.sheets:
        raise DefinitionInvalid(f"{who}: sheet {sheet!r} is a workbook of its own; give its sheets one by one")
    if definition.iterable or definition.incremental:
        what = "an iterable" if definition.iterable else "incremental"
        raise DefinitionInvalid(f"{who}: sheet {sheet!r} is {what}; give a report of a select() that takes no `since`")


def _check_count(who: str, names: list[str]) -> None:
    if not 1 <= len(names) <= _SHEETS_MAX:
        raise DefinitionInvalid(f"{who}: it has {len(names)} sheets; give 1 to {_SHEETS_MAX}")
    seen: dict[str, str] = {}
    for name in names:
        if (same := seen.setdefault(name.casefold(), name)) != name:
            raise DefinitionInvalid(f"{who}: to Excel the sheets {same!r} and {name!r} have one name")
