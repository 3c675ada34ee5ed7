"""Python's values as Arrow's arrays: exactly, or not at all. Rows gathered for one group, and the IPC file format."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import sqlalchemy as sa
from sqlalchemy.types import NullType, TypeDecorator, TypeEngine

from effects import ConfigurationError
from effects.extend.files import Writer
from effects.extend.process import lazy
from effects.extend.text import described
from effects_reports.errors import DefinitionInvalid, ReportRefused
from effects_reports.formats.base import Column, Packing, Part
from effects_reports.formats.fragments import Pieces
from effects_reports.formats.values import text_of

with lazy.modules(__name__):
    import pyarrow as pa


_DIGITS_MAX = 38  # of a decimal of 128 bits
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Of each kind the SQLAlchemy type that has it; the first that fits.
_KINDS: tuple[tuple[type[TypeEngine[Any]], str], ...] = (
    (sa.Boolean, "bool"), (sa.Integer, "int64"), (sa.Float, "float64"), (sa.Date, "date"),
    (sa.LargeBinary, "binary"),
)  # fmt: skip


def with_kinds(columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns, each with its kind; one that a plan has frozen keeps it.

    Raises:
        DefinitionInvalid: a column's type is not known, or is a number of any size; names all of them.
    """
    untyped = [column.name for column in columns if not column.kind and isinstance(column.type, NullType | None)]
    if untyped:
        raise DefinitionInvalid(
            f"a typed file needs the type of each column, and that of {', '.join(map(repr, untyped))} is not known: "
            f"give types={{{untyped[0]!r}: Integer()}}, or what it is, to @report, or ask for csv"
        )
    return tuple(Column(column.name, column.header, column.type, column.kind or _kind(column)) for column in columns)


def _decimal_of(kind: str) -> tuple[int, int] | None:
    """Precision and scale of a kind that is a decimal."""
    match = _DECIMAL.fullmatch(kind)
    return (int(match[1]), int(match[2])) if match else None


def item_of(kind: str) -> str | None:
    """What the items of a kind that is a list are."""
    return kind[5:-1] if kind.startswith("list(") else None


def _kind(column: Column) -> str:
    kind = column.type
    while isinstance(kind, TypeDecorator) and not isinstance(kind, sa.Interval):
        kind = kind.impl_instance
    if isinstance(base := getattr(kind, "data_type", None), TypeEngine):  # of PostgreSQL's DOMAIN
        return _kind(replace(column, type=base))
    if isinstance(kind, sa.ARRAY):
        dimensions = kind.dimensions or 1
        return "list(" * dimensions + _kind(replace(column, type=kind.item_type)) + ")" * dimensions
    if isinstance(kind, sa.Numeric) and not isinstance(kind, sa.Float):
        return _of_numeric(column.name, kind)
    if isinstance(kind, sa.DateTime):
        return "zoned" if kind.timezone else "moment"
    if isinstance(kind, sa.Time):
        return "text" if kind.timezone else "time"
    return next((name for type_, name in _KINDS if isinstance(kind, type_)), "text")


def _of_numeric(name: str, kind: sa.Numeric[Any]) -> str:
    if not kind.asdecimal:
        return "float64"
    if kind.precision is None or kind.precision > _DIGITS_MAX:
        raise DefinitionInvalid(
            f"a typed file holds decimals of a fixed size, at most {_DIGITS_MAX} digits, and column {name!r} is a "
            f"{kind!r}: give types={{{name!r}: Numeric(18, 2)}}, or what it needs, to @report, or ask for csv"
        )
    return f"decimal({kind.precision},{kind.scale or 0})"


_NONE = type(None)
_POOL = "ARROW_DEFAULT_MEMORY_POOL"


def check_installed() -> None:
    """Refuse what is not installed.

    Raises:
        ConfigurationError: names the extra.
    """
    try:
        _import()
    except ImportError as error:
        raise ConfigurationError("typed files need pyarrow: pip install 'effects-toolkit-reports[parquet]'") from error


def _import() -> None:
    """Where the app has not imported pyarrow itself, let it take memory as Python does: 20 MiB less."""
    if "pyarrow" in sys.modules or _POOL in os.environ:
        _ = pa.schema
        return
    os.environ[_POOL] = "system"
    try:
        pa.default_memory_pool()
    finally:
        os.environ.pop(_POOL, None)


def writer_of(name: str) -> str:
    """What makes the bytes of a typed file here, as a plan freezes it: the format and pyarrow's major version.

    Raises:
        ConfigurationError: it is not installed.
    """
    check_installed()
    return f"{name}.pyarrow{major_version()}"


def check_writer(name: str, frozen: str) -> None:
    """Refuse what another pyarrow has begun: its bytes may differ.

    Raises:
        ConfigurationError: names both versions.
    """
    if frozen != writer_of(name):
        raise ConfigurationError(
            f"this report was planned as {frozen}, and this worker has pyarrow {major_version()}: install one version "
            "on all workers"
        )


def major_version() -> str:
    """Of the pyarrow that is installed."""
    return str(pa.__version__).partition(".")[0]


def schema_of(columns: Sequence[Column]) -> Any:
    """The schema of columns whose kinds are known."""
    return pa.schema([(column.name, _type(column.kind)) for column in columns])


def batch_of(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
    """A record batch of these columns' values, all of one length.

    Raises:
        ReportRefused: a value cannot be what its column is; names both.
    """
    arrays = [_array(column, many) for column, many in zip(columns, values, strict=True)]
    return pa.record_batch(arrays, schema=schema_of(columns))


def _type(kind: str) -> Any:
    if (digits := _decimal_of(kind)) is not None:
        return pa.decimal128(*digits)
    if (item := item_of(kind)) is not None:
        return pa.list_(_type(item))
    name, *arguments = _TYPES[kind]
    return getattr(pa, name)(*arguments)


def _array(column: Column, values: Sequence[Any]) -> Any:
    """At once where all values are of the kind's own type, else each by itself; times of day may have a zone."""
    type_ = _type(column.kind)
    if set(map(type, values)) <= {_own_type(column.kind), _NONE}:
        try:
            return pa.array(values, type_)
        except _UNFIT:
            pass  # the value is found below
    convert = _converter(column.kind)
    return pa.array([_exactly(column, type_, convert, value) for value in values], type_)


def _exactly(column: Column, type_: Any, convert: Callable[[Any], Any], value: Any) -> Any:
    if value is None:
        return None
    try:
        exact = convert(value)
        pa.scalar(exact, type_)
    except _UNFIT as error:
        shown = repr(str(value)) if isinstance(value, str) else described(value)
        raise ReportRefused(
            f"column {column.name!r} is {column.kind} and holds {shown}, which that cannot be: give its type in types= "
            "of @report, leave such rows out, or ask for csv",
            code="value_of_another_type",
        ) from error
    return exact


def _own_type(kind: str) -> type:
    return list if item_of(kind) is not None else _OWN.get(kind, decimal.Decimal)


def _converter(kind: str) -> Callable[[Any], Any]:
    item = item_of(kind)
    return _CONVERT.get(kind, _to_decimal) if item is None else partial(_to_list, _converter(item))


# -- values of another type that are the same value ----------------------------------------------------------------


def _to_int(value: Any) -> int:
    if isinstance(value, str) or value != int(value):
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, str):
        raise ValueError
    return float(value)


def _to_bool(value: Any) -> bool:
    if value not in (0, 1) or isinstance(value, str):
        raise ValueError
    return bool(value)


def _to_decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, str | bytes):
        raise ValueError
    exact = decimal.Decimal(text_of(value))
    if not exact.is_finite():
        raise ValueError
    return exact


def _to_date(value: Any) -> dt.date:
    if not isinstance(value, dt.date) or isinstance(value, dt.datetime):
        raise ValueError
    return value


def _to_time(value: Any) -> dt.time:
    if not isinstance(value, dt.time) or value.tzinfo is not None:
        raise ValueError
    return value


def _to_moment(value: Any) -> dt.datetime:
    if not isinstance(value, dt.datetime):
        raise ValueError
    return value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError
    return bytes(value)


def _to_list(convert: Callable[[Any], Any], value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError
    return [None if item is None else convert(item) for item in value]


def _to_text(value: Any) -> str:
    return text_of(value).encode("utf-8", "replace").decode()


_UNFIT = (ValueError, TypeError, ArithmeticError)  # Arrow's own errors are kinds of the first two
# Of each kind the function of pyarrow that makes its type, and what that takes.
_TYPES: dict[str, tuple[str, ...]] = {
    "int64": ("int64",), "float64": ("float64",), "bool": ("bool_",), "date": ("date32",), "time": ("time64", "us"),
    "zoned": ("timestamp", "us", "UTC"), "moment": ("timestamp", "us"), "binary": ("binary",), "text": ("string",),
}  # fmt: skip
_OWN: dict[str, type] = {
    "int64": int, "float64": float, "bool": bool, "date": dt.date, "time": _NONE, "zoned": dt.datetime,
    "moment": dt.datetime, "binary": bytes, "text": str,
}  # fmt: skip
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "int64": _to_int, "float64": _to_float, "bool": _to_bool, "date": _to_date, "time": _to_time,
    "zoned": _to_moment, "moment": _to_moment, "binary": _to_bytes, "text": _to_text,
}  # fmt: skip


GROUP_ROWS = 100_000
# Of Arrow's arrays; a group ends with the batch that reaches it. An Arrow file's are not compressed, so that they are
# held several times while they are written.
GROUP_BYTES = {"parquet": 4 * 1024 * 1024, "arrow": 1024 * 1024}
_PIECE_BYTES = 256 * 1024


class FrameOf(Protocol):
    """What makes the bytes of a part of a group of rows, in pieces."""

    def __call__(self, table: Any, /) -> Iterable[bytes]: ...


class GroupPacker:
    """Writes record batches as groups of rows. `end` completes the part; the writer's `finish` is the caller's.

    Args:
        bytes_max: of a group, one of `GROUP_BYTES`.

    Attributes:
        bytes: how many were written so far.
        plain_bytes, plain_crc32: 0, as of no gzip file.
    """

    def __init__(self, out: Writer, frame_of: FrameOf, bytes_max: int) -> None:
        self.bytes = self.plain_bytes = self.plain_crc32 = 0
        self._out, self._frame_of, self._bytes_max = out, frame_of, bytes_max
        self._batches: list[Any] = []
        self._rows = self._size = 0

    def write(self, batch: Any) -> None:
        """Append."""
        self._batches.append(batch)
        self._rows += batch.num_rows
        self._size += batch.nbytes
        if self._rows >= GROUP_ROWS or self._size >= self._bytes_max:
            self.end()

    def end(self) -> None:
        """Write what is gathered."""
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches)
        self._batches, self._rows, self._size = [], 0, 0
        for piece in self._frame_of(table):
            self._out.write(piece)
            self.bytes += len(piece)


def pieces_of(buffer: Any, start: int = 0, end: int | None = None) -> Iterable[bytes]:
    """The bytes of a buffer of Arrow's, of which no second copy is made."""
    view = memoryview(buffer)[start:end]
    for place in range(0, len(view), _PIECE_BYTES):
        yield bytes(view[place : place + _PIECE_BYTES])


_LENGTH = struct.Struct("<I")


class Arrow:
    """Columns of their own types, not compressed, in record batches of about 100,000 rows or 1 MiB."""

    name = "arrow"
    extension = ".arrow"
    content_type = "application/vnd.apache.arrow.file"
    rows_max: int | None = None
    columns_max: int | None = None
    by_copy = False
    typed = True
    packing: Packing = "arrow"

    def encode(self, columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> Any:
        """As `Format.encode`: a record batch.

        Raises:
            ReportRefused: a value is not of its column's type.
        """
        return batch_of(with_kinds(columns), values)

    def assemble(self, columns: Sequence[Column], parts: Iterable[Part], out: Writer) -> None:
        """As `Format.assemble`; one batch at a time is held."""
        with pa.ipc.new_file(pa.PythonFile(_Sink(out), mode="w"), schema_of(with_kinds(columns))) as file:
            for part in parts:
                for batch in _batches(part):
                    file.write_batch(batch)


def record_batch(table: Any) -> Iterator[bytes]:
    """The frame of a part that holds these rows: an Arrow stream of one batch behind its length."""
    [batch] = table.combine_chunks().to_batches()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data = sink.getvalue()
    yield _LENGTH.pack(len(data))
    yield from pieces_of(data)


def _batches(part: Iterable[bytes]) -> Iterator[Any]:
    """A part's record batches; a broken part is read to its end, where it is known to be broken."""
    pieces = Pieces(part)
    while header := pieces.take(_LENGTH.size):
        try:
            [size] = _LENGTH.unpack(header)
            yield pa.ipc.open_stream(pieces.take(size)).read_next_batch()
        except (struct.error, pa.ArrowException, OSError):
            for _ in pieces.up_to(sys.maxsize):
                pass
            raise


class _Sink:
    """What pyarrow writes to."""

    closed = False

    def __init__(self, out: Writer) -> None:
        self._out, self._written = out, 0

    def write(self, data: Any) -> int:
        taken = bytes(data)
        self._out.write(taken)
        self._written += len(taken)
        return len(taken)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        """All is written at once."""

    def close(self) -> None:
        """The writer is the caller's."""
