"""A sheet of twenty parts, planned rightly or wrongly: CPU of its chunks and of its assembly, and its size."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from benchmarks.processes import await_go
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.fragments import read_frames
from effects_reports.formats.xlsx import Xlsx
from effects_reports.readers import write_chunk

PARTS = 20
PIECE_BYTES = 1024 * 1024  # as storages read
# The parts that expected one row more before them.
WRONG = {"planned": (), "half": range(PARTS // 2, PARTS), "all": range(PARTS)}
COLUMNS = tuple(Column(f"column_{number}", f"Column {number}") for number in range(10))


class _Out:
    """A writer that keeps what it gets, and appends nothing."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes | memoryview) -> None:
        self.data += data


class _Stored:
    """A part, read in pieces."""

    plain_bytes = plain_crc32 = 0

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self.data), PIECE_BYTES):
            yield self.data[start : start + PIECE_BYTES]


def work(which: str, rows: str) -> None:
    size, file = int(rows) // PARTS, Xlsx()
    data = [_row(number) for number in range(size)]
    await_go()
    before = time.process_time()
    parts = [_Stored(_part(file, data, number * size + (number in WRONG[which]))) for number in range(PARTS)]
    chunks = time.process_time() - before
    out = _Out()
    before = time.process_time()
    file.assemble(COLUMNS, parts, out)  # type: ignore[arg-type]
    assembly = time.process_time() - before
    places = [number * size + 2 for number in range(PARTS)]
    elsewhere = [next(read_frames(part))[0].first != place for part, place in zip(parts, places, strict=True)]
    print(1e6 * chunks / (PARTS * size), 1e6 * assembly / (PARTS * size), sum(elsewhere) / PARTS, len(out.data) / 2**20)


def _part(file: Xlsx, rows: list[tuple[Any, ...]], rows_before: int) -> bytes:
    out = _Out()
    source = ChunkSource(COLUMNS, rows=rows, rows_before=rows_before)
    write_chunk(source, file, None, out, progress=lambda *_: None)  # type: ignore[arg-type]
    return bytes(out.data)


def _row(number: int) -> tuple[Any, ...]:
    return (
        number, f"customer {number % 1000}", Decimal(number * 735 % 10_000_000) / 100, number % 3 == 0,
        dt.datetime(2024, 1, 1) + dt.timedelta(seconds=number), dt.date(2024, 1, 1) + dt.timedelta(number % 365),  # noqa: DTZ001 - cells have no zone
        number * 0.37, f"a note with some text for order {number}", number % 97, None,
    )  # fmt: skip
