"""A report whose rows are a SELECT in SQL: its params are bound as values of their types, never put into the text."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import inspect as shapes
from sqlalchemy.types import TypeEngine, to_instance

from effects_reports.definitions.decorator import report
from effects_reports.definitions.definition import ColumnType, ReportDefinition
from effects_reports.errors import DefinitionInvalid

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
    `IN :regions`. `:as_of` is the time of the plan. A colon that is meant is written `\\:`; `::date` is a cast.

    Args:
        sql: one SELECT; with a key, without an ORDER BY and a LIMIT at its end.
        columns: those of the SELECT, in the order of the file, as names or as `{name: header}`.
        params: a dataclass, msgspec Struct or TypedDict with a field for each name in the text.
        types: SQLAlchemy types by columns. `parquet` and `arrow` need that of each.
        key: as in `report`. Without it the report is one part, one statement.
        options: the others of `report`.

    Raises:
        DefinitionInvalid: the text has a name that the params have not, or the reverse; or a field is of no type that
            can be bound.
    """
    who = f"report {name!r}"
    bound = _bound_types(who, params)
    named = set(sa.text(sql).compile().params)
    check_names(who, named, set(bound))
    kinds = {column: to_instance(kind) for column, kind in (types or {}).items()}
    selected = [sa.column(column, kinds.get(column)) for column in columns]
    text = f"{sql.strip().rstrip(';')}\n"  # which ends a comment, should it end with one

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


def check_names(who: str, named: set[str], fields: set[str], sign: str = ":") -> None:
    """Refuse a text whose names are not the fields of the params.

    Raises:
        DefinitionInvalid: names one.
    """
    if unknown := sorted(named - fields - {_AS_OF}):
        meant = "; a colon that is meant is written \\:" if sign == ":" else ""
        raise DefinitionInvalid(
            f"{who}: its SQL names {sign}{unknown[0]}, which is no field of its params: give params, a class with that "
            f"field{meant}"
        )
    if unused := sorted(fields - named - {_AS_OF}):
        raise DefinitionInvalid(f"{who}: its params have the field {unused[0]!r}, which its SQL does not name")


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
