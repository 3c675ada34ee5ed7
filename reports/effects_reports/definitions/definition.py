"""A report as code: its name, its rows, its columns and its limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import GenerativeSelect
from sqlalchemy.types import TypeEngine, to_instance

from effects.extend import arguments, described, optional, require
from effects_reports.definitions.params import (
    check_after,
    injected_names,
    named_params,
    read_params,
    takes_after,
    takes_keywords,
    takes_params,
    takes_since,
)
from effects_reports.errors import DefinitionInvalid, ParamsInvalid, ReportInvalid
from effects_reports.formats.base import DIALECTS, Column, Dialect, MapBatch, MappedRow, MapRow, Route
from effects_reports.formats.opening import ENCRYPTED_FORMATS, FORMATS
from effects_reports.formats.sheets.options import Workbook
from effects_reports.source.paging import Cursor
from effects_reports.source.since import Since

Consistency: TypeAlias = Literal["range", "snapshot", "single"]
CONSISTENCIES: tuple[Consistency, ...] = ("range", "snapshot", "single")

Statement: TypeAlias = GenerativeSelect  # a Select or a CompoundSelect, of whatever columns
Rows: TypeAlias = Iterable[MappedRow]
ColumnType: TypeAlias = TypeEngine[Any] | type[TypeEngine[Any]]
Source: TypeAlias = Callable[..., Statement | Rows]
PasswordOf: TypeAlias = Callable[[Any, str], str]

CHUNK_ROWS, COPIED_CHUNK_ROWS = 100_000, 250_000  # through Python; written by PostgreSQL
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
        """What has a SELECT of its own: the sheets of a workbook report, else the report itself."""
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
        return self.chunk_rows or (COPIED_CHUNK_ROWS if route == "copy" else CHUNK_ROWS)

    @property
    def incremental(self) -> bool:
        """Whether a run covers only what no run before it has had: its function takes `since`."""
        return takes_since(self.source)

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
        return typed if part is self else part.read_params(named_params(part.source, part.params, typed))

    def statement(self, params: Any, as_of: datetime, since: Since | None = None) -> Statement:
        """The rows as a SELECT.

        Raises:
            DefinitionInvalid: the function gave something else, or by a key a SELECT with an order or a limit.
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
        chosen = {name: ours[name] for name in injected_names(self.source)}
        try:
            if takes_keywords(self.source):
                return self.source(**msgspec.structs.asdict(params), **chosen)
            return self.source(params, **chosen) if takes_params(self.source) else self.source(**chosen)
        except KeyError as error:
            [name] = error.args or [None]
            if not isinstance(params, Mapping) or not isinstance(name, str) or name in params:
                raise
            raise ParamsInvalid(f"report {self.name!r}: its function looks for the param {name!r}: give it") from error

    def _check_statement(self, statement: Statement) -> None:
        who = f"report {self.name!r}"
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
        if self.consistency not in CONSISTENCIES:
            raise DefinitionInvalid(f"{who}: consistency is {self.consistency!r}; give {', '.join(CONSISTENCIES)}")
        if self.dialect not in DIALECTS:
            raise DefinitionInvalid(f"{who}: dialect is {self.dialect!r}; give {', '.join(DIALECTS)}")
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
        check_after(who, self.source, self.iterable)
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
