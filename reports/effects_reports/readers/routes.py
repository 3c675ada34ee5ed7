"""Which way the rows of a part take."""

from __future__ import annotations

from sqlalchemy.types import Enum, Interval, TypeDecorator, TypeEngine

from effects_reports.formats.base import ChunkSource, Column, Format, Route


def choose_route(source: ChunkSource, format: Format, dialect_name: str | None) -> Route:  # noqa: A002 - the word
    """The quickest way that is open, known before a row is read.

    `iterable`: the rows are no table's. `batch`, `row`: Python code maps them, many or one at a time. `sqlite`: they
    are streamed and encoded here. `copy`: PostgreSQL itself writes the format; where a column's type needs Python
    (a TypeDecorator, an Enum of a class), or for XLSX, they are streamed and encoded here: `batch`.

    Args:
        dialect_name: of the database that is read; None for an iterable.
    """
    if source.rows is not None:
        return "iterable"
    if source.map_row is not None:
        return "row"
    if source.map_batch is not None:
        return "batch"
    if dialect_name == "sqlite":
        return "sqlite"
    plain = dialect_name == "postgresql" and format.family != "xlsx" and all(map(_is_plain, source.columns))
    return "copy" if plain else "batch"


def _is_plain(column: Column) -> bool:
    """Whether what the database holds is what Python would give."""
    kind = column.type
    if kind is None or isinstance(kind, Interval):
        return True
    if isinstance(kind, TypeDecorator) or (isinstance(kind, Enum) and kind.enum_class is not None):
        return False
    return _is_builtin(kind) and all(map(_is_builtin, kind._variant_mapping.values()))


def _is_builtin(kind: TypeEngine[object]) -> bool:
    return type(kind).__module__.startswith("sqlalchemy.") and not isinstance(kind, TypeDecorator)
