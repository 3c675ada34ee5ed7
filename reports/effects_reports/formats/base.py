"""What a file format is, and what a chunk of a report is made of. The seam between the two halves of this package.

A chunk's bytes do not depend on its place in the file: so an assembly is a header, the parts in their order and a
footer, whoever wrote which part when. A part is compressed by itself (one gzip member, one zstd frame, the deflated
rows of a sheet).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from sqlalchemy import Row, Select
from sqlalchemy.types import TypeEngine

from effects.extend import Writer

Dialect: TypeAlias = Literal["excel", "excel_exact", "excel_semicolon", "excel_semicolon_exact", "rfc4180", "raw"]
DIALECTS: tuple[Dialect, ...] = (
    "excel", "excel_exact", "excel_semicolon", "excel_semicolon_exact", "rfc4180", "raw",
)  # fmt: skip
Route: TypeAlias = Literal["copy", "batch", "row", "sqlite", "iterable"]

# Each a codec with its level, so that a plan can freeze it; `gz` and `isal` both make gzip. A change is a new name.
Packing: TypeAlias = Literal["", "gz", "isal", "zst", "sheet", "parquet", "arrow"]

MappedRow: TypeAlias = Sequence[Any] | Mapping[str, Any]  # in the order of the columns, or by their names
MapRow: TypeAlias = Callable[[Row[Any]], MappedRow | None]
MapBatch: TypeAlias = Callable[[Sequence[Row[Any]]], Iterable[MappedRow]]
Progress: TypeAlias = Callable[[int, int], None]

BATCH_ROWS = 1000
SUSPICIOUS_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the file.

    `type` is the database's; None if Python code produces the value. `kind`, of files whose columns have types: see
    `columnar.kinds`.
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
    """

    columns: tuple[Column, ...]
    select: Select[Any] | None = None
    rows: Iterable[MappedRow] | None = None
    map_row: MapRow | None = None
    map_batch: MapBatch | None = None
    batch_rows: int = BATCH_ROWS
    formulas: bool = False

    @property
    def mapped(self) -> bool:
        return self.map_row is not None or self.map_batch is not None


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """What a reader wrote: rows and bytes of one part, by which route, and rows that had a second look for formulas."""

    rows: int
    bytes: int
    route: Route
    suspicious: int = 0

    @property
    def formulas(self) -> bool:
        """Whether so many rows had one that PostgreSQL does it at less cost."""
        return self.suspicious > self.rows * SUSPICIOUS_SHARE


class Part(Protocol):
    """What a chunk wrote."""

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
