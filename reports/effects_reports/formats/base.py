"""What a file format, a workbook and a chunk are: the seam between the two halves of this package.

A chunk's bytes do not depend on its place in the file, but for the numbers of a sheet's rows: so an assembly is a
header, the parts in their order and a footer, whoever wrote which part when. A part is compressed by itself, in pieces
of one stream (`packing`, `fragments`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias
from zoneinfo import ZoneInfo

from sqlalchemy import Row, Select
from sqlalchemy.types import TypeEngine

from effects.extend.files import Writer
from effects.extend.text import is_printable
from effects_reports.errors import DefinitionInvalid

Dialect: TypeAlias = Literal["excel", "excel_exact", "excel_semicolon", "excel_semicolon_exact", "rfc4180", "raw"]
DIALECTS: tuple[Dialect, ...] = (
    "excel", "excel_exact", "excel_semicolon", "excel_semicolon_exact", "rfc4180", "raw",
)  # fmt: skip
BigIntegers: TypeAlias = Literal["number", "text"]
BIG_INTEGERS: tuple[BigIntegers, ...] = ("number", "text")
Route: TypeAlias = Literal["copy", "batch", "row", "sqlite", "iterable"]

# Each a codec with its level, so that a plan can freeze it; `gz` and `isal` both make gzip. A change is a new name.
Packing: TypeAlias = Literal["", "gz", "isal", "zst", "sheet", "parquet", "arrow"]

MappedRow: TypeAlias = Sequence[Any] | Mapping[str, Any]  # in the order of the columns, or by their names
MapRow: TypeAlias = Callable[[Row[Any]], MappedRow | None]
MapBatch: TypeAlias = Callable[[Sequence[Row[Any]]], Iterable[MappedRow]]
Progress: TypeAlias = Callable[[int, int], None]

_BATCH_ROWS = 1000
_SUSPICIOUS_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file.

    `type` is the database's; None if Python code produces the value. `kind`, of files whose columns have types: see
    `arrow`.
    """

    name: str
    header: str
    type: TypeEngine[Any] | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class ChunkSource:
    """The rows of one part.

    Args:
        columns: of the file, in order.
        select: restricted to the part's key range, ordered by the key, without LIMIT. Without a mapping it selects
            exactly `columns`; with one, what the mapping is given. None for an iterable.
        rows: of an iterable source, once: sequences in the order of the columns, or mappings by their names.
        map_row: one row → the file's row; None leaves it out. map_batch: many rows → the file's rows.
        batch_rows: at most so many rows are read, mapped and encoded at once; fewer where they are large.
        formulas: many texts are known to look like formulas. PostgreSQL then looks at each, on the route `copy`.
        rows_before: how many rows of the file, or of the sheet, are planned to come before these.
    """

    columns: tuple[Column, ...]
    select: Select[Any] | None = None
    rows: Iterable[MappedRow] | None = None
    map_row: MapRow | None = None
    map_batch: MapBatch | None = None
    batch_rows: int = _BATCH_ROWS
    formulas: bool = False
    rows_before: int = 0

    @property
    def mapped(self) -> bool:
        return self.map_row is not None or self.map_batch is not None


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a reader wrote: rows and bytes of one part, by which route, and rows that had a second look for formulas.

    `plain_bytes`, `plain_crc32`: of what a part of a gzip file holds.
    """

    rows: int
    bytes: int
    route: Route
    suspicious: int = 0
    plain_bytes: int = 0
    plain_crc32: int = 0

    @property
    def formulas(self) -> bool:
        """Whether so many rows had one that PostgreSQL does it at less cost."""
        return self.suspicious > self.rows * _SUSPICIOUS_SHARE


class Part(Protocol):
    """What a chunk wrote; `plain_bytes` and `plain_crc32` are those of its `ChunkResult`."""

    @property
    def plain_bytes(self) -> int: ...
    @property
    def plain_crc32(self) -> int: ...

    def __iter__(self) -> Iterator[bytes]:
        """Read its bytes in pieces."""
        ...

    def append_to(self, out: Writer) -> None:
        """Append its bytes to the file as they are, in the quickest way."""
        ...


class Format(Protocol):
    """How rows become a file. From `open_format(name, dialect)` in `effects_reports.formats`."""

    name: str
    extension: str  # with its dot: `.csv.gz`
    content_type: str
    rows_max: int | None  # rows under the header that the format can hold; None is no limit
    columns_max: int | None
    by_copy: bool  # PostgreSQL itself can write it (`source.copying`)
    typed: bool  # its columns have types, which the plan freezes
    packing: Packing

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
        """Rows of a part, not yet packed: bytes, or what else the format's packer takes.

        `values` are the columns' values, all of one length, at least 1.
        """
        ...

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """Write the whole file from its parts in order: header, parts, footer. `out.finish()` is the caller's.

        The parts are read once, one after the other, in constant memory. The same parts give the same bytes.
        """
        ...


NAME_CHARS_MAX = 25  # of 31: further sheets have a number behind it
_FORMAT_CHARS_MAX = 255
_WIDTH_MAX = 255.0
_LONG_TEXTS = ("refuse", "cut")
_RESERVED = "history"  # of Excel's own sheet of changes
_FORBIDDEN_IN_NAMES = frozenset("[]:*?/\\'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workbook:
    """How `xlsx` looks: ``@report(…, workbook=Workbook(formats={"share": "0.0%"}))``. Columns are meant by their names.

    Args:
        sheet: what the sheet is called, at most 25 characters. Default: Report.
        formats: Excel's number formats by columns, for numbers, days and moments: `#,##0.00 "€"`, `0.0%`, `dd.mm.yyyy`.
        widths: of columns, in characters. Default: wide enough for days and moments.
        totals: columns whose sum stands in a last row, as a formula that the program computes when it opens the file.
        zone: that of the reader, such as `Europe/Berlin`: moments are shown in it. Default: UTC.
        long_texts: `refuse` (default) fails a report with a text of more than 32,767 characters; `cut` ends it there by
            `…`, and says how many in the log (`report.texts_cut`) and in the chunk's job.
        cover: the title of a first sheet, with the params, the time of the plan and the number of rows. Default: none.
    """

    sheet: str = "Report"
    formats: Mapping[str, str] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    totals: Sequence[str] = ()
    zone: str | None = None
    long_texts: Literal["refuse", "cut"] = "refuse"
    cover: str | None = None

    def check(self, who: str, columns: Sequence[str] | None) -> None:
        """Refuse what no workbook can be; `columns` are the report's, where they are known.

        Raises:
            DefinitionInvalid: names the argument.
        """
        if why := next(filter(None, (self._why_name(), self._why_looks(), self._why_zone())), None):
            raise DefinitionInvalid(f"{who}: workbook: {why}")
        named = [*self.formats, *self.widths, *self.totals]
        if columns is not None and (unknown := [name for name in named if name not in columns]):
            raise DefinitionInvalid(f"{who}: workbook names the column {unknown[0]!r}, which the report does not have")

    def _why_name(self) -> str | None:
        fits = 0 < len(self.sheet) <= NAME_CHARS_MAX and is_printable(self.sheet)
        if fits and self.sheet.casefold() == _RESERVED:
            return f"sheet is {self.sheet!r}, a name that Excel keeps for itself; give another"
        if fits and _FORBIDDEN_IN_NAMES.isdisjoint(self.sheet):
            return None
        return f"sheet is {self.sheet!r}; give 1 to {NAME_CHARS_MAX} characters other than []:*?/\\'"

    def _why_looks(self) -> str | None:
        for name, code in self.formats.items():
            if not 0 < len(code) <= _FORMAT_CHARS_MAX or not is_printable(code):
                return f"the format of {name!r} has 1 to {_FORMAT_CHARS_MAX} printable characters"
        for name, width in self.widths.items():
            if not 0 < width <= _WIDTH_MAX:
                return f"the width of {name!r} is {width:g}; give up to {_WIDTH_MAX:g}"
        return None if self.long_texts in _LONG_TEXTS else f"long_texts is {self.long_texts!r}; give refuse or cut"

    def _why_zone(self) -> str | None:
        try:
            ZoneInfo(self.zone or "UTC")
        except (LookupError, ValueError, OSError):
            return f"there is no zone {self.zone!r}"
        return None
