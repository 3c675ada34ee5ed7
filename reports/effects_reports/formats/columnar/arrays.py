"""Python's values as Arrow's arrays: exactly, or not at all."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from effects import ConfigurationError
from effects.extend import described, lazy
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import Column
from effects_reports.formats.columnar.kinds import decimal_of
from effects_reports.formats.values import in_utc, text_of

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy.module("pyarrow")

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
    if (digits := decimal_of(kind)) is not None:
        return pa.decimal128(*digits)
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
    convert = _CONVERT.get(column.kind, _to_decimal)
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
    return _OWN.get(kind, decimal.Decimal)


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
    return in_utc(value).replace(tzinfo=None)


def _to_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise ValueError
    return bytes(value)


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
