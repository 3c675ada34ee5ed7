"""Keys and cursors as JSON, and rows in pages: where a chunk ends, the next one begins, in whatever process."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, TypeAlias

import msgspec

from effects.extend.text import described
from effects_reports.errors import ReportRefused
from effects_reports.formats.base import MappedRow

Key: TypeAlias = tuple[Any, ...]

# What JSON has no word for is written as {"type": text}.
_WRITE: dict[type, tuple[str, Callable[[Any], str]]] = {
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    decimal.Decimal: ("decimal", str),
    uuid.UUID: ("uuid", str),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode()),
}
_READ: dict[str, Callable[[str], Any]] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
    "bytes": base64.b64decode,
    "float": float,
}


def key_to_json(key: Sequence[Any]) -> list[Any]:
    """A key as JSON can hold it.

    Raises:
        ReportRefused: a value is of a type that cannot be a bound.
    """
    return [_write(value) for value in key]


def _write(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    if isinstance(value, str):
        return str.__str__(value)  # of a subclass too: a moment beyond Python, an Enum's member
    if isinstance(value, bool | int | float):
        return value
    try:
        name, write = _WRITE[type(value)]
    except KeyError:
        raise ReportRefused(
            f"a key or cursor holds {described(value)}; give numbers, texts, times, UUIDs or bytes",
            code="key_type",
        ) from None
    return {name: write(value)}


def key_from_json(text: str | None) -> Key | None:
    """The key that `key_to_json` wrote; None for an open end."""
    if text is None:
        return None
    return tuple(_read(value) for value in msgspec.json.decode(text))


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    [(name, text)] = value.items()
    return _READ[name](text)


Cursor: TypeAlias = Any  # a number, text, time, UUID or bytes, or a tuple of these


class RowPage(msgspec.Struct, frozen=True):
    """Some rows, and the cursor behind them: what an iterable report with an argument `after` yields.

    A chunk ends only behind a page, so that a page is what a crash repeats at most beside its chunk.

    Args:
        rows: sequences in the order of the columns, or mappings by their names; may be empty. Held in memory.
        cursor: a number, text, time, UUID or bytes, or a tuple of these, other than that of the page before. The
            function is called with it as `after` to get all that follows. None (default): nothing follows.
    """

    rows: Sequence[MappedRow]
    cursor: Cursor = None


class PagedRows:
    """The rows of one chunk, once: of whole pages, up to the first that ends it.

    Args:
        pages: what the function yields, called with `after`.
        after: the cursor that this chunk begins behind; None at the beginning.
        until: the cursor that it ended with before, where its part is made again; None the first time.
        rows_min: with so many rows it ends.
        seconds: after so long it ends too.

    `end` is its cursor once all are read: None where nothing follows.
    """

    def __init__(self, pages: Iterable[Any], *, after: Cursor, until: Cursor, rows_min: int, seconds: float) -> None:
        self._pages, self._after, self._until = pages, after, until
        self._rows_min, self._seconds = rows_min, seconds
        self.end: Cursor = None

    def __iter__(self) -> Iterator[MappedRow]:
        """Read them.

        Raises:
            ReportRefused: the function yields something else than pages, a cursor that does not move on, or other pages
                than it did for this chunk before.
        """
        began, rows, last = time.monotonic(), 0, self._after
        for page in self._pages:
            _check(page, last)
            yield from page.rows
            rows, last = rows + len(page.rows), page.cursor
            if last is None:
                break
            if self._until is None and (rows >= self._rows_min or time.monotonic() - began >= self._seconds):
                self.end = last
                return
            if self._until is not None and last == self._until:
                self.end = last
                return
        if self._until is not None:
            raise ReportRefused(
                "the report's function no longer yields the cursor at which this chunk ended before; the same `after` "
                "must yield the same pages; request the report again",
                code="cursor_missed",
            )


def _check(page: Any, last: Cursor) -> None:
    if not isinstance(page, RowPage):
        raise ReportRefused(
            f"the report's function takes `after` and yields {described(page)}; it must yield RowPage(rows, cursor)",
            code="row_shape",
        )
    if not isinstance(page.rows, Sized):
        raise ReportRefused(
            f"the report's function yields a RowPage whose rows are {described(page.rows)}; give a list of rows",
            code="row_shape",
        )
    if page.cursor is not None and page.cursor == last:
        raise ReportRefused(
            "the report's function yields the same cursor twice in a row, so the run would never end",
            code="cursor_stuck",
        )


def first_rows(pages: Iterable[Any]) -> Iterator[MappedRow]:
    """The rows from the beginning on."""
    return iter(PagedRows(pages, after=None, until=None, rows_min=_NO_END, seconds=float(_NO_END)))


_NO_END = 1 << 62


def cursor_to_json(cursor: Cursor) -> list[Any]:
    """A cursor as a chunk keeps it.

    Raises:
        ReportRefused: it holds something of another type.
    """
    values = cursor if isinstance(cursor, tuple) else (cursor,)
    return [isinstance(cursor, tuple), *key_to_json(values)]


def cursor_from_json(text: str | None) -> Cursor:
    """The cursor that `cursor_to_json` wrote; None for none."""
    values = key_from_json(text)
    if values is None:
        return None
    return values[1:] if values[0] else values[1]
