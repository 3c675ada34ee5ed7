"""A report whose rows are a SELECT in SQL, of a database or of files: its params are bound as values of their types."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import inspect as shapes
from sqlalchemy.types import TypeEngine, to_instance

from effects_reports.definitions.decorator import report
from effects_reports.definitions.definition import CHUNK_ROWS, ColumnType, ReportDefinition
from effects_reports.definitions.sql_tokens import Sign, as_clause, check_quoted, names_in
from effects_reports.errors import DefinitionInvalid
from effects_reports.formats.base import MappedRow
from effects_reports.source.files import FileQuery
from effects_reports.source.paging import Cursor, RowPage

_AS_OF = "as_of"
_TYPES: Mapping[type[shapes.Type], TypeEngine[Any]] = types.MappingProxyType({
    shapes.IntType: sa.BigInteger(), shapes.FloatType: sa.Double(), shapes.BoolType: sa.Boolean(),
    shapes.StrType: sa.Text(), shapes.DateType: sa.Date(), shapes.DateTimeType: sa.DateTime(timezone=True),
    shapes.TimeType: sa.Time(), shapes.DecimalType: sa.Numeric(), shapes.UUIDType: sa.Uuid(),
    shapes.BytesType: sa.LargeBinary(),
})  # fmt: skip


def sql_report(
    name: str,
    sql: str,
    *,
    columns: Sequence[str] | Mapping[str, str],
    params: type[Any] | None = None,
    types: Mapping[str, ColumnType] | None = None,
    key: Sequence[str] = (),
    **options: Any,
) -> ReportDefinition:
    """Declare a report by a SELECT in SQL: ``Effects(reports=[sql_report(…)])``.

    `:since` in the text is the field `since` of the params, bound as a value of that field's type; a list is for
    `IN :regions`. `:as_of` is the time of the plan. All else reaches the server as it is written: percent signs,
    question marks, `::date`, names in comments and in `$$…$$`. A colon before a name that is meant is written `\\:`.

    Args:
        sql: one SELECT; with a key, without an ORDER BY and a LIMIT at its end.
        columns: those of the SELECT, in the order of the file, as names or as `{name: header}`.
        params: a dataclass, msgspec Struct or TypedDict with a field for each name in the text.
        types: SQLAlchemy types by columns. `parquet` and `arrow` need that of each.
        key: as in `report`. Without it the report is one part, one statement.
        options: the others of `report`.

    Raises:
        DefinitionInvalid: the text has a name that the params have not, or the reverse; it has one of theirs in quotes,
            where nothing can be bound; or a field is of no type that can be bound.
    """
    who = f"report {name!r}"
    bound = _bound_types(who, params)
    named = _check_names(who, sql, set(bound))
    kinds = {column: to_instance(kind) for column, kind in (types or {}).items()}
    selected = [sa.column(column, kinds.get(column)) for column in columns]
    text = as_clause(f"{sql.strip().rstrip(';')}\n", bound)  # its end ends a comment, should it end with one

    def source(values: Any, as_of: datetime) -> sa.Select[Any]:
        plain = {**values_of(values), _AS_OF: as_of}
        binds = [_bind(field, plain[field], kind) for field, kind in bound.items() if field in named]
        rows = sa.text(text).bindparams(*binds).columns(*selected).subquery("rows")
        return sa.select(*rows.c)

    if not key:
        options = {"consistency": "single", **options}
    return report(name, columns=columns, params=params or NoParams, types=types, key=key, **options)(source)


class NoParams(msgspec.Struct, frozen=True):
    """A text without names takes no params."""


def values_of(params: Any) -> dict[str, Any]:
    """The fields of params and their values, not converted."""
    if isinstance(params, Mapping):
        return dict(params)
    fields = shapes.type_info(type(params)).fields  # type: ignore[attr-defined]
    return {field.name: getattr(params, field.name) for field in fields}


def _bind(name: str, value: Any, kind: TypeEngine[Any] | list[TypeEngine[Any]]) -> Any:
    if isinstance(kind, list):
        return sa.bindparam(name, list(value), kind[0], expanding=True)
    return sa.bindparam(name, value, kind)


def check_fields(who: str, fields: Iterable[str]) -> None:
    """Refuse params with a field of the name that is ours.

    Raises:
        DefinitionInvalid: names it.
    """
    if _AS_OF in fields:
        raise DefinitionInvalid(
            f"{who}: its params have the field {_AS_OF!r}, and that name is the time of the plan: rename the field"
        )


def _check_names(who: str, sql: str, fields: set[str], sign: Sign = ":") -> set[str]:
    """The names of a text's placeholders; refuse them where they are not the fields of the params.

    Raises:
        DefinitionInvalid: names one, with its line.
    """
    check_quoted(who, sql, {*fields, _AS_OF}, sign)
    lines = dict(reversed(names_in(sql, sign)))
    if unknown := sorted(lines.keys() - fields - {_AS_OF}):
        meant = "; a colon that is meant is written \\:" if sign == ":" else ""
        raise DefinitionInvalid(
            f"{who}: its SQL names {sign}{unknown[0]}, which is no field of its params, in line {lines[unknown[0]]}: "
            f"give params, a class with that field{meant}"
        )
    if unused := sorted(fields - lines.keys() - {_AS_OF}):
        raise DefinitionInvalid(f"{who}: its params have the field {unused[0]!r}, which its SQL does not name")
    return set(lines)


def _bound_types(who: str, params: type[Any] | None) -> dict[str, Any]:
    """Field → the type that it is bound as, in a list where it is one."""
    fields = () if params is None else getattr(shapes.type_info(params), "fields", None)
    if fields is None:
        raise DefinitionInvalid(f"{who}: params is no dataclass, Struct or TypedDict")
    check_fields(who, [field.name for field in fields])
    bound: dict[str, Any] = {
        field.name: _bound_type(f"{who}: the field {field.name!r}", field.type) for field in fields
    }
    return bound | {_AS_OF: sa.DateTime(timezone=True)}


def _bound_type(what: str, kind: shapes.Type) -> Any:
    if isinstance(kind, shapes.UnionType):
        kinds = [each for each in kind.types if not isinstance(each, shapes.NoneType)]
        kind = kinds[0] if len(kinds) == 1 else kind
    if isinstance(kind, shapes.ListType | shapes.SetType | shapes.FrozenSetType | shapes.VarTupleType):
        return [_bound_type(what, kind.item_type)]
    if isinstance(kind, shapes.LiteralType):
        kinds_of_values = {type(value) for value in kind.values}
        return sa.BigInteger() if kinds_of_values == {int} else sa.Text()
    if (scalar := _TYPES.get(type(kind))) is not None:
        return scalar
    raise DefinitionInvalid(
        f"{what} of its params cannot be bound in SQL: give numbers, texts, booleans, days, times, moments, UUIDs, "
        "bytes, literals, or a list of these"
    )


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
        DefinitionInvalid: the text has a name that the params have not, or the reverse; it has one of theirs in quotes,
            where nothing can be bound; a name or pattern is wrong.
        ConfigurationError: when the report is requested: the extra is not installed.
    """
    who = f"report {name!r}"
    keys = (key,) if isinstance(key, str) else tuple(key)
    _check(who, files, columns, keys, memory_mib, threads)
    fields = () if params is None else getattr(shapes.type_info(params), "fields", ())
    names = {field.name for field in fields}
    check_fields(who, names)
    named = _check_names(who, sql, names, "$")
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
