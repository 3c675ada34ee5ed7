"""A report of several SELECTs: a workbook with a sheet for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from effects.extend import described
from effects_reports.definitions.decorator import report
from effects_reports.definitions.definition import ReportDefinition
from effects_reports.errors import DefinitionInvalid
from effects_reports.formats.sheets.options import Workbook

SHEETS_MAX = 50
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
        DefinitionInvalid: from here, or from ``Effects(reports=[…])``, which checks each sheet as a report of its own.
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
    if not 1 <= len(names) <= SHEETS_MAX:
        raise DefinitionInvalid(f"{who}: it has {len(names)} sheets; give 1 to {SHEETS_MAX}")
    seen: dict[str, str] = {}
    for name in names:
        if (same := seen.setdefault(name.casefold(), name)) != name:
            raise DefinitionInvalid(f"{who}: to Excel the sheets {same!r} and {name!r} have one name")
