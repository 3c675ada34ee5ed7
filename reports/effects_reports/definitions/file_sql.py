"""A report over files: a SELECT that DuckDB runs over Parquet, CSV or JSON, and nothing beside. The extra `duckdb`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import inspect as shapes

from effects_reports.definitions.decorator import report
from effects_reports.definitions.definition import CHUNK_ROWS, ColumnType, ReportDefinition
from effects_reports.definitions.sql_text import NoParams, check_fields, check_names, values_of
from effects_reports.errors import DefinitionInvalid
from effects_reports.formats.base import MappedRow
from effects_reports.source.files import FileQuery
from effects_reports.source.paging import Cursor, RowPage

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)
_PARAM = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")


def file_report(
    name: str,
    sql: str,
    *,
    folder: str | Path,
    files: Mapping[str, str],
    columns: Sequence[str] | Mapping[str, str],
    key: Sequence[str] = (),
    params: type[Any] | None = None,
    types: Mapping[str, ColumnType] | None = None,
    csv_types: Mapping[str, str] | None = None,
    memory_mib: int = 256,
    threads: int = 1,
    **options: Any,
) -> ReportDefinition:
    """Declare a report by a SELECT over files: ``Effects(reports=[file_report(…)])``. DuckDB runs it in the worker.

    The SELECT reads from the names of `files`, and can read nothing else: no other file, no address, no extension is
    opened. `$day` in it is the field `day` of the params, bound as a value; `$as_of` is the time of the plan.

    With `key` it is made in chunks, one after the other, and a crash continues behind the last finished one. Names,
    sizes and times of change of all files are kept with the first chunk; once they differ the run fails
    (`files_changed`). Without `key` it is one part, in the order of the SELECT, and a crash begins it again.

    Args:
        sql: one SELECT, without a semicolon.
        folder: in which the files are, for every worker; a file that lies elsewhere by a link is refused.
        files: name in the SELECT → pattern in the folder, such as `{"visits": "visits/*.parquet"}`; all files of a name
            are Parquet, or CSV, or JSON (by lines), also as `.gz`.
        columns: those of the SELECT, in the order of the file, as names or as `{name: header}`; without `key` in the
            SELECT's own order.
        key: columns that are together unique and never NULL.
        params: a dataclass, msgspec Struct or TypedDict with a field for each name in the text.
        types: SQLAlchemy types by columns, which `parquet` and `arrow` need.
        csv_types: DuckDB's types of CSV columns, such as `{"code": "VARCHAR"}`, which it would guess.
        memory_mib: what DuckDB holds at most; the rest of a sort goes to a temporary folder, at most 10 GiB. Default
            256.
        threads: of DuckDB. Default 1.
        options: the others of `report`.

    Raises:
        DefinitionInvalid: the text has a name that the params have not, or the reverse; a name or pattern is wrong.
        ConfigurationError: when the report is requested: the extra is not installed.
    """
    who = f"report {name!r}"
    keys = (key,) if isinstance(key, str) else tuple(key)
    _check(who, files, columns, keys, memory_mib, threads)
    named = set(_PARAM.findall(_QUOTED.sub("", sql)))
    fields = () if params is None else getattr(shapes.type_info(params), "fields", ())
    names = {field.name for field in fields}
    check_fields(who, names)
    check_names(who, named, names, "$")
    query = FileQuery(
        sql=sql.strip().rstrip(";"), folder=Path(folder), files=dict(files), columns=tuple(columns), key=keys,
        csv_types=dict(csv_types or {}), memory_mib=memory_mib, threads=threads,
        rows=options.get("chunk_rows") or CHUNK_ROWS,
    )  # fmt: skip

    def values(params: Any, as_of: datetime) -> dict[str, Any]:
        plain = {**values_of(params), "as_of": as_of}
        return {name: plain[name] for name in named}

    def pages(params: Any, as_of: datetime, after: Cursor) -> Iterator[RowPage]:
        return query.pages(values(params, as_of), after)

    def rows(params: Any, as_of: datetime) -> Iterator[MappedRow]:
        return query.all_rows(values(params, as_of))

    source: Any = pages if keys else rows
    return report(name, columns=columns, params=params or NoParams, types=types, iterable=True, **options)(source)


def _check(
    who: str, files: Mapping[str, str], columns: Sequence[str] | Mapping[str, str], keys: tuple[str, ...],
    memory_mib: int, threads: int,
) -> None:  # fmt: skip
    if not files:
        raise DefinitionInvalid(f"{who}: give files, the names that its SELECT reads from, with their patterns")
    for name, pattern in files.items():
        if not _NAME.fullmatch(name):
            raise DefinitionInvalid(f"{who}: files names {name!r}; give letters, digits and _")
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise DefinitionInvalid(f"{who}: the pattern of {name!r} leaves the folder")
    if missing := [name for name in keys if name not in columns]:
        raise DefinitionInvalid(f"{who}: columns does not have {missing[0]!r}, which is part of its key")
    if memory_mib < 1 or threads < 1:
        raise DefinitionInvalid(f"{who}: memory_mib and threads are above 0")
