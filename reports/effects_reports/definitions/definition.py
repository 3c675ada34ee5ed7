"""A report as code: its name, its rows, its columns, its limits, and the params that a request gives."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias, get_type_hints, is_typeddict

import msgspec
from sqlalchemy import GenerativeSelect, TextClause
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine, to_instance

from effects.extend.arguments import arguments, optional, require
from effects.extend.text import described, nearest, why_unfit
from effects_reports.definitions.sql_tokens import check_clause
from effects_reports.errors import DefinitionInvalid, ParamsInvalid, ReportInvalid
from effects_reports.formats.base import (
    BIG_INTEGERS,
    DIALECTS,
    BigIntegers,
    Column,
    Dialect,
    MapBatch,
    MappedRow,
    MapRow,
    Route,
    Workbook,
)
from effects_reports.formats.opening import ENCRYPTED_FORMATS, FORMATS
from effects_reports.source.paging import Cursor
from effects_reports.source.since import Since

_AS_OF, _SINCE, AFTER = "as_of", "since", "after"
_MISSING = inspect.Parameter.empty


def _injected_names(source: Callable[..., Any]) -> list[str]:
    """Arguments that are no params: the time of the plan, what is new since the last run, an iterable's cursor."""
    takes = {
        _AS_OF: _AS_OF in inspect.signature(source).parameters,
        _SINCE: _takes_since(source),
        AFTER: takes_after(source),
    }
    return [name for name, is_taken in takes.items() if is_taken]


def _takes_since(source: Callable[..., Any]) -> bool:
    """Whether it has an argument `since`, annotated by `Since` or not at all: one of another type is a param."""
    return _is_ours(source, _SINCE, Since.__name__, Since)


def takes_after(source: Callable[..., Any]) -> bool:
    """Whether it has an argument `after`, annotated by `Cursor` or not at all: one of another type is a param."""
    return _is_ours(source, AFTER, "Cursor")


def _check_after(who: str, source: Callable[..., Any], iterable: bool) -> None:
    """Refuse an argument `after` that might be meant as a cursor or as a param.

    Raises:
        DefinitionInvalid: it is a cursor by its type and the function no iterable's, or the reverse.
    """
    if AFTER in inspect.signature(source).parameters and iterable != takes_after(source):
        raise DefinitionInvalid(
            f"{who}: the argument `after` of an iterable is its cursor, and has no type or Cursor; that of a select() "
            "is a param, and has its type"
        )


def _is_ours(source: Callable[..., Any], name: str, class_name: str, *classes: type[Any]) -> bool:
    argument = inspect.signature(source).parameters.get(name)
    if argument is None:
        return False
    hint = _hints(source).get(name, argument.annotation)
    return hint in (_MISSING, Any, *classes) or (isinstance(hint, str) and hint.rpartition(".")[2] == class_name)


def _takes_params(source: Callable[..., Any]) -> bool:
    """Whether the function has arguments of its own."""
    return bool(_own(source))


def _takes_keywords(source: Callable[..., Any]) -> bool:
    """Whether the function names its params one by one, as keyword-only arguments."""
    return any(argument.kind is argument.KEYWORD_ONLY for argument in _own(source))


def _own(source: Callable[..., Any]) -> list[inspect.Parameter]:
    ours = _injected_names(source)
    return [argument for name, argument in inspect.signature(source).parameters.items() if name not in ours]


def declared_by(source: Callable[..., Any]) -> type[Any] | None:
    """The class of the params by the function's own annotations; None where it names none.

    That of its one argument, if it is a dataclass, a Struct or a TypedDict; or one of its keyword-only arguments.
    """
    hints = _hints(source)
    if _takes_keywords(source):
        fields = [_field(argument, hints.get(argument.name, Any)) for argument in _own(source)]
        return msgspec.defstruct("Params", fields, frozen=True, kw_only=True)
    kind = next((hints.get(argument.name) for argument in _own(source)), None)
    return kind if isinstance(kind, type) and has_fields(kind) else None


def has_fields(kind: type[Any]) -> bool:
    return is_dataclass(kind) or issubclass(kind, msgspec.Struct) or is_typeddict(kind)


def _plain(who: str, values: Any) -> Mapping[Any, Any]:
    plain = {} if values is None else values if isinstance(values, Mapping) else _builtins(values)
    if not isinstance(plain, Mapping):
        raise ParamsInvalid(f"{who}: params is {described(values)}; give a dict, a dataclass or a struct")
    return plain


def _builtins(values: Any) -> Any:
    try:
        return msgspec.to_builtins(values)
    except TypeError:
        return None


def read_params(who: str, source: Callable[..., Any], kind: type[Any] | None, values: Any) -> Any:
    """What a request gives, as the function takes it.

    Raises:
        ParamsInvalid: it does not fit; names the fields.
    """
    plain = _plain(who, values)
    if plain and not _takes_params(source):
        raise ParamsInvalid(f"{who} takes no params: {', '.join(map(str, plain))} are given")
    schema = kind or dict[str, Any]
    names = _names(schema)
    if kind is not None and (unknown := [str(name) for name in plain if name not in names]):
        raise ParamsInvalid(f"{who} takes no param {unknown[0]!r}{_taken(names)}{nearest(unknown[0], names)}")
    try:
        return msgspec.convert(plain, schema, strict=False)
    except (msgspec.ValidationError, TypeError) as error:
        reason = why_unfit(error, plain, schema, strict=False)
        raise ParamsInvalid(f"{who}: the params do not fit: {reason}{_taken(names)}") from None


def _named_params(source: Callable[..., Any], kind: type[Any] | None, typed: Any) -> dict[str, Any]:
    """Of params that several functions share, those that this one names; all where it takes a dict of any."""
    plain: dict[str, Any] = msgspec.to_builtins(typed)
    if kind is None:
        return plain if _takes_params(source) else {}
    return {name: value for name, value in plain.items() if name in _names(kind)}


def _hints(source: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(source)
    except (NameError, TypeError):  # a class that only type checkers see
        return {}


def _field(argument: inspect.Parameter, kind: Any) -> Any:
    if argument.default is _MISSING:
        return (argument.name, kind)
    return (argument.name, kind, argument.default)


def _names(kind: Any) -> list[str]:
    return [field.encode_name for field in getattr(msgspec.inspect.type_info(kind), "fields", ())]


def _taken(names: list[str]) -> str:
    """` (it takes day, region)`."""
    return f" (it takes {', '.join(names)})" if names else ""


Consistency: TypeAlias = Literal["range", "snapshot", "single"]
_CONSISTENCIES: tuple[Consistency, ...] = ("range", "snapshot", "single")

Statement: TypeAlias = GenerativeSelect  # a Select or a CompoundSelect, of whatever columns
Rows: TypeAlias = Iterable[MappedRow]
ColumnType: TypeAlias = TypeEngine[Any] | type[TypeEngine[Any]]
Source: TypeAlias = Callable[..., Statement | Rows]
PasswordOf: TypeAlias = Callable[[Any, str], str]

CHUNK_ROWS, _COPIED_CHUNK_ROWS = 100_000, 250_000  # through Python; written by PostgreSQL
ROWS_MAX = 10_000_000
BYTES_MAX = 1 << 30
PARALLEL = 4
KEEP_DAYS = 7.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_COUNT = arguments.whole(1, 2**31 - 1)
_NUMBERS = {  # as statements and columns take them
    "chunk_rows": optional(_COUNT), "rows_max": _COUNT, "bytes_max": arguments.whole(1, 2**63 - 1),
    "parallel": _COUNT, "keep_days": arguments.number(0.001, 36_500), "version": arguments.whole(0, 2**31 - 1),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDefinition:
    """What `@report` makes of a function; see there for the fields. Calling it calls the function."""

    name: str
    source: Source
    params: type[Any] | None = None
    key: tuple[str, ...] = ()
    columns: Mapping[str, str] | None = None
    types: Mapping[str, ColumnType] = field(default_factory=dict)
    map_row: MapRow | None = None
    map_batch: MapBatch | None = None
    iterable: bool = False
    formats: tuple[str, ...] = FORMATS
    dialect: Dialect = "excel"
    big_integers: BigIntegers = "number"
    consistency: Consistency = "range"
    chunk_rows: int | None = None
    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX
    parallel: int = PARALLEL
    keep_days: float = KEEP_DAYS
    engine: str | None = None
    workbook: Workbook = field(default_factory=Workbook)
    password: PasswordOf | None = None
    version: int = 1
    sheets: tuple[ReportDefinition, ...] = ()  # of `workbook_report`, each named by its workbook; else none

    def __call__(self, *args: Any, **kwargs: Any) -> Statement | Rows:
        return self.source(*args, **kwargs)

    @property
    def mapped(self) -> bool:
        """Whether Python code makes the file's rows of those that are read."""
        return self.map_row is not None or self.map_batch is not None

    @property
    def parts(self) -> tuple[ReportDefinition, ...]:
        """What has its own SELECT: the sheets of a workbook report, else the report itself."""
        return self.sheets or (self,)

    def part(self, sheet: str | None) -> ReportDefinition:
        """The sheet of this name; without a name the first, or the report itself where it has none.

        Raises:
            ReportInvalid: it has no such sheet; the message lists those that it has.
        """
        if sheet is None:
            return self.parts[0]
        try:
            return next(part for part in self.sheets if part.workbook.sheet == sheet)
        except StopIteration:
            names = ", ".join(part.workbook.sheet for part in self.sheets) or "none: it is no workbook_report"
            raise ReportInvalid(f"report {self.name!r} has no sheet {sheet!r} (it has {names})") from None

    def rows_of_a_chunk(self, route: Route) -> int:
        """How many rows a chunk is planned with, where they take this route."""
        return self.chunk_rows or (_COPIED_CHUNK_ROWS if route == "copy" else CHUNK_ROWS)

    @property
    def incremental(self) -> bool:
        """Whether a run covers only what no run before it has had: its function takes `since`."""
        return _takes_since(self.source)

    @property
    def paged(self) -> bool:
        """Whether its rows come in pages with cursors: its function takes `after`."""
        return self.iterable and takes_after(self.source)

    def read_params(self, values: Any) -> Any:
        """The params as the function takes them.

        Raises:
            ParamsInvalid: they do not fit the schema; names the fields.
        """
        return read_params(f"report {self.name!r}", self.source, self.params, values)

    def params_for(self, part: ReportDefinition, typed: Any) -> Any:
        """The params of one of its parts: a sheet takes the fields that it names."""
        return typed if part is self else part.read_params(_named_params(part.source, part.params, typed))

    def statement(self, params: Any, as_of: datetime, since: Since | None = None) -> Statement:
        """The rows as a SELECT.

        Raises:
            DefinitionInvalid: the function gave something else, by a key a SELECT with an order or a limit, or a SELECT
                with a text() that names a value in quotes.
        """
        statement = self._call(params, as_of, since)
        if not isinstance(statement, GenerativeSelect):
            raise DefinitionInvalid(
                f"report {self.name!r}: the function gave {described(statement)}; it must return a SQLAlchemy "
                "select(), or be declared with iterable=True"
            )
        self._check_statement(statement)
        return statement

    def rows(self, params: Any, as_of: datetime, after: Cursor = None) -> Rows:
        """The rows of an iterable source; its pages, where it takes `after`.

        Raises:
            DefinitionInvalid: the function gave nothing that can be iterated over.
        """
        rows = self._call(params, as_of, after=after)
        if isinstance(rows, GenerativeSelect | str | bytes) or not isinstance(rows, Iterable):
            raise DefinitionInvalid(
                f"report {self.name!r}: the function gave {described(rows)}; with iterable=True it must return "
                "an iterable of rows"
            )
        return rows

    def _call(self, params: Any, as_of: datetime, since: Since | None = None, after: Cursor = None) -> Any:
        ours = {"as_of": as_of, "since": since or Since(), "after": after}
        chosen = {name: ours[name] for name in _injected_names(self.source)}
        try:
            if _takes_keywords(self.source):
                return self.source(**msgspec.structs.asdict(params), **chosen)
            return self.source(params, **chosen) if _takes_params(self.source) else self.source(**chosen)
        except KeyError as error:
            [name] = error.args or [None]
            if not isinstance(params, Mapping) or not isinstance(name, str) or name in params:
                raise
            raise ParamsInvalid(f"report {self.name!r}: its function looks for the param {name!r}: give it") from error

    def _check_statement(self, statement: Statement) -> None:
        who = f"report {self.name!r}"
        for clause in visitors.iterate(statement):
            if isinstance(clause, TextClause):
                check_clause(who, clause.text)
        parts = (statement._limit_clause, statement._offset_clause, getattr(statement, "_fetch_clause", None))
        if self.key and statement._order_by_clauses:
            raise DefinitionInvalid(f"{who}: its select() has an ORDER BY; leave it out: the rows come in key order")
        if self.key and any(part is not None for part in parts):
            raise DefinitionInvalid(f"{who}: its select() has a LIMIT or OFFSET; leave it out: use WHERE, and rows_max")
        names = [column.key for column in statement.selected_columns]
        if len(set(names)) != len(names):
            raise DefinitionInvalid(f"{who}: two columns of its select() have one name; label them")
        if missing := [name for name in self.key if name not in names]:
            raise DefinitionInvalid(f"{who}: its select() has no column {missing[0]!r}, which is part of its key")
        if self.columns is None:
            self.workbook.check(who, [str(name) for name in names])
        unknown = [name for name in self.columns or () if name not in names]
        if unknown and not self.mapped:
            raise DefinitionInvalid(f"{who}: columns names {unknown[0]!r}, which its select() does not have")

    def columns_of(self, statement: Statement | None) -> tuple[Column, ...]:
        """The columns of the file: those that `columns` names, else those of the SELECT."""
        types: dict[str, TypeEngine[Any]] = {}
        if statement is not None and not self.mapped:
            types = {str(column.key): column.type for column in statement.selected_columns}
        headers = self.columns
        if headers is None:
            assert statement is not None  # an iterable's columns are always given
            headers = {str(column.key): str(column.key) for column in statement.selected_columns}
        types |= {name: to_instance(kind) for name, kind in self.types.items()}
        return tuple(Column(name, header, types.get(name)) for name, header in headers.items())

    def check(self) -> None:
        """Refuse a wrong definition when it is registered; a SELECT too, where the params have defaults.

        Raises:
            DefinitionInvalid: names the argument and what it may be.
        """
        who = f"report {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise DefinitionInvalid(f"{who}: a name is lower-case letters, digits and _, at most 63")
        self._check_choices(who)
        for name, rule in _NUMBERS.items():
            require(f"{who}: {name}", getattr(self, name), rule, DefinitionInvalid)
        if self.sheets:
            self._check_sheets(who)
            return
        self._check_shape(who)
        self.workbook.check(who, None if self.columns is None else list(self.columns))
        if self.iterable:
            return
        try:
            params = self.read_params({})
            self.statement(params, datetime.now().astimezone())
        except (ReportInvalid, LookupError):
            return  # it cannot do without params: it is checked when it is requested

    def _check_sheets(self, who: str) -> None:
        self.workbook.check(who, [])
        for sheet in self.sheets:
            try:
                sheet.check()
            except DefinitionInvalid as error:
                raise DefinitionInvalid(f"{who}: sheet {sheet.workbook.sheet!r}: {error}") from None

    def _check_choices(self, who: str) -> None:
        if self.consistency not in _CONSISTENCIES:
            raise DefinitionInvalid(f"{who}: consistency is {self.consistency!r}; give {', '.join(_CONSISTENCIES)}")
        if self.dialect not in DIALECTS:
            raise DefinitionInvalid(f"{who}: dialect is {self.dialect!r}; give {', '.join(DIALECTS)}")
        if self.big_integers not in BIG_INTEGERS:
            raise DefinitionInvalid(f"{who}: big_integers is {self.big_integers!r}; give {' or '.join(BIG_INTEGERS)}")
        every = (*FORMATS, *ENCRYPTED_FORMATS)
        if not self.formats or (unknown := [format_name for format_name in self.formats if format_name not in every]):
            what = unknown[0] if self.formats else "nothing"
            raise DefinitionInvalid(f"{who}: formats holds {what}; give some of {', '.join(every)}")
        encrypted = [format_name for format_name in self.formats if format_name in ENCRYPTED_FORMATS]
        if encrypted and not callable(self.password):
            raise DefinitionInvalid(f"{who}: {encrypted[0]} needs password=, a function of the params and the key")
        if self.password is not None and not encrypted:
            raise DefinitionInvalid(f"{who}: password is given, and formats has none of {', '.join(ENCRYPTED_FORMATS)}")

    def _check_shape(self, who: str) -> None:
        if self.map_row is not None and self.map_batch is not None:
            raise DefinitionInvalid(f"{who}: give map_row or map_batch, not both")
        if self.iterable and (self.key or self.mapped or self.engine):
            raise DefinitionInvalid(f"{who}: an iterable has no key, no mapping and no engine; make its rows as wanted")
        if self.iterable and self.incremental:
            raise DefinitionInvalid(f"{who}: an iterable cannot take `since`; return a select() of the new rows")
        _check_after(who, self.source, self.iterable)
        if (self.iterable or self.mapped) and not self.columns:
            raise DefinitionInvalid(f"{who}: give columns: the rows that Python makes do not name them")
        wrong = [kind for kind in self.types.values() if not _is_type(kind)]
        if wrong:
            raise DefinitionInvalid(f"{who}: types holds {described(wrong[0])}; give types of SQLAlchemy")
        if self.columns and (unknown := [name for name in self.types if name not in self.columns]):
            raise DefinitionInvalid(f"{who}: types names {unknown[0]!r}, which columns does not have")
        if not self.iterable and not self.key and self.consistency != "single":
            raise DefinitionInvalid(
                f'{who}: give key, the columns of its select() that identify a row; or consistency="single" '
                "for rows without such columns"
            )


def _is_type(kind: Any) -> bool:
    return isinstance(kind, TypeEngine) or (isinstance(kind, type) and issubclass(kind, TypeEngine))
