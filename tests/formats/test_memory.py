"""What is held at once is bounded by bytes, whatever the server's speed and the rows' width."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from psycopg import pq

from effects_reports import readers
from effects_reports.formats.base import ChunkSource
from effects_reports.formats.opening import open_format
from effects_reports.source import copying
from tests.formats.rows import columns_of, part
from tests.support.sampling import sample

ROOT = Path(__file__).parents[2]
ROWS, WIDTH = 5_000, 2_000
BUFFERED_ROWS = 16  # 32 KB
SMALL, LARGE = 300, 12
LARGE_BYTES = 1_000_000


class EagerServer:
    """libpq's side of a COPY whose rows have always arrived: a server that is never slower than we are.

    libpq holds a bufferful of them, and takes more when it is told to.
    """

    def __init__(self, rows: int) -> None:
        self._rows = iter([b"x" * (WIDTH - 1) + b"\n"] * rows)
        self._held = 0
        self._results: Iterator[Any] = iter([self, None])
        self.status = pq.ExecStatus.COMMAND_OK

    def read(self) -> bytes:
        """As psycopg's `Copy.read`, which waits."""
        return next(self._rows, b"")

    def consume_input(self) -> None:
        self._held = BUFFERED_ROWS

    def get_copy_data(self, asynchronous: int) -> tuple[int, bytes]:
        if not self._held:
            return 0, b""
        self._held -= 1
        row = next(self._rows, b"")
        return (len(row), row) if row else (-1, b"")

    def get_result(self) -> Any:
        return next(self._results)


def test_a_block_of_copied_rows_is_bounded_however_fast_the_server_is() -> None:
    server = EagerServer(ROWS)

    blocks = [(len(block), rows) for block, rows in copying._blocks(server, server)]

    assert sum(rows for _, rows in blocks) == ROWS
    assert sum(size for size, _ in blocks) == ROWS * WIDTH
    assert max(size for size, _ in blocks) < copying.BLOCK_BYTES + WIDTH * (1 + BUFFERED_ROWS)


def _sizes(taken: list[int]) -> Any:
    def take(rows: Sequence[Any]) -> Iterable[Any]:
        taken.append(sum(len(row[1]) for row in rows))
        return [tuple(row) for row in rows]

    return take


@pytest.mark.parametrize("large_first", [True, False], ids=["large first", "small first"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_batch_is_bounded_by_bytes(
    database: str, large_first: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """300 small rows and 12 of 1 MB: of the large ones a batch holds a few, and one fetch of them at most."""
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'wide.db'}") if database == "sqlite" else None
    connection: sa.Connection = engine.connect() if engine else request.getfixturevalue("postgresql")
    table = sa.table("wide", sa.column("id", sa.Integer), sa.column("body", sa.Text))
    connection.exec_driver_sql("CREATE TEMPORARY TABLE wide (id integer, body text)")
    bodies = ["x" * LARGE_BYTES] * LARGE + ["y"] * SMALL
    rows = [{"id": number, "body": body} for number, body in enumerate(bodies if large_first else bodies[::-1])]
    connection.execute(table.insert(), rows)
    select, taken = sa.select(table).order_by(table.c.id), list[int]()

    written, result = part(ChunkSource(columns_of(select), select, map_batch=_sizes(taken)), "csv", "raw", connection)

    assert result.rows == SMALL + LARGE
    assert len(written) > LARGE * LARGE_BYTES
    ceiling = readers.BATCH_BYTES + LARGE_BYTES if large_first else LARGE * LARGE_BYTES
    assert max(taken) <= ceiling + SMALL
    connection.close()
    if engine:
        engine.dispose()


def test_an_iterables_rows_are_taken_one_by_one() -> None:
    """The next row is not asked for before the batch is written that the one before has filled."""
    columns = columns_of(sa.select(sa.column("body", sa.Text)))
    source = ChunkSource(columns, rows=(["x" * LARGE_BYTES] for _ in range(LARGE)))

    longest = max(len(batch) for batch in readers.batches(source, None, open_format("csv")))

    assert longest * LARGE_BYTES <= readers.BATCH_BYTES + LARGE_BYTES


GROWN_MAX = 100.0  # MiB; the rows of four chunks come to 114


@pytest.mark.parametrize("name", sample(("csv", "csv.gz", "csv.zst", "ndjson", "xlsx", "parquet", "arrow"), 1))
def test_four_chunks_at_once_hold_none_of_their_rows(name: str) -> None:
    command = [sys.executable, "-m", "tests.formats.four_chunks", name]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < GROWN_MAX
