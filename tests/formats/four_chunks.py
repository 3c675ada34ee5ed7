"""`python -m tests.formats.four_chunks FORMAT`: four chunks of wide rows at once; prints the memory they took, MiB."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from effects.kit.files import Stored
from effects_reports.formats.base import ChunkSource, Column
from effects_reports.formats.opening import open_format
from effects_reports.readers import write_chunk

CHUNKS, ROWS, WIDTH = 4, 15_000, 2_000


class Nowhere:
    """A writer that keeps nothing."""

    def write(self, data: bytes | memoryview) -> None:
        pass

    def append(self, name: str) -> int:
        raise AssertionError(name)

    def finish(self) -> Stored:
        raise AssertionError


def _rows(chunk: int, count: int) -> Iterator[tuple[int, str]]:
    for number in range(count):
        yield number, f"{chunk}:{number}:".ljust(WIDTH, "x")


def _mebibytes(name: str) -> float:
    [kib] = re.findall(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(kib) / 1024


def main(format_name: str) -> None:
    columns = (Column("id", "id", kind="int64"), Column("body", "body", kind="text"))

    def write(chunk: int, count: int = ROWS) -> None:
        source = ChunkSource(columns, rows=_rows(chunk, count))
        write_chunk(source, open_format(format_name, "raw"), None, Nowhere(), progress=lambda rows, size: None)

    write(0, 10)  # imports what the format needs
    before = _mebibytes("VmRSS")
    with ThreadPoolExecutor(CHUNKS) as threads:
        list(threads.map(write, range(CHUNKS)))
    print(_mebibytes("VmHWM") - before)


if __name__ == "__main__":
    main(sys.argv[1])
