"""Rows as PostgreSQL writes them: COPY … TO STDOUT in the format of the file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from effects.extend import lazy
from effects_reports.formats.base import ChunkSource, Format
from effects_reports.formats.csv import Csv
from effects_reports.readers.defending import BlockDefence
from effects_reports.source.copying import copy_statement

if TYPE_CHECKING:
    import psycopg
    from psycopg import pq
else:
    psycopg, pq = lazy.module("psycopg"), lazy.module("psycopg.pq")

BLOCK_BYTES = 256 * 1024
KEPT_BYTES = 4 * BLOCK_BYTES
_ROW = itemgetter(1)
_NOT_ARRIVED = (0, b"")  # what libpq gives for a row that is under way; after the last one a length below 0
PAUSE_SECONDS = 0.0005  # a socket holds 0.2 MB: 400 MB/s


def can_copy(connection: Connection) -> bool:
    """Whether the driver is psycopg and the database is in UTF-8: a text's first character is then a code point."""
    driver = _driver(connection)
    return isinstance(driver, psycopg.Connection) and driver.info.parameter_status("server_encoding") == "UTF8"


def copy_rows(
    source: ChunkSource, file: Format, connection: Connection
) -> Iterator[tuple[bytes | memoryview, int, int]]:
    """Blocks of about 256 KiB, not packed, each with the number of its rows, and of those that looked like formulas.

    A block is good until the next one.

    Raises:
        psycopg.Error: what the server says.
    """
    assert source.select is not None
    statement = copy_statement(connection, source.select, source.columns, file, defends=source.formulas)
    driver = _driver(connection)
    with driver.cursor() as cursor, cursor.copy(statement.text, statement.parameters) as copy:
        blocks = _blocks(copy, driver.pgconn)
        if not isinstance(file, Csv) or file.line_end == "\n":
            yield from ((block, rows, 0) for block, rows in blocks)
            return
        defence, line_end = BlockDefence(file, statement.undefended), file.line_end.encode()
        for block, rows in blocks:
            lines, suspicious = _as_in_file(bytes(block), rows, line_end, defence)
            yield lines, rows, suspicious


def _as_in_file(lines: bytes, rows: int, line_end: bytes, defence: BlockDefence) -> tuple[bytes, int]:
    """The rows with their texts defended and the file's line ends, and how many of them looked like formulas."""
    ended = lines.replace(b"\n", line_end)
    broken = len(ended) - len(lines) != rows * (len(line_end) - 1)  # a text has breaks of its own; not counted again
    defended, suspicious = defence.defended(lines, rows, broken=broken)
    if broken:
        return _ended_outside_quotes(defended, line_end), suspicious
    return ended if defended is lines else defended.replace(b"\n", line_end), suspicious


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _blocks(copy: Any, pgconn: Any) -> Iterator[tuple[memoryview, int]]:
    """Rows joined, and how many: at most `BLOCK_BYTES`, one row, and what libpq holds at a time.

    `copy` waits for a row; those that have arrived by then are taken at once. To ask psycopg for every row costs
    the client three times as much. To wake for each of the server's sends of 8 KiB makes a whole report a thirtieth
    slower: a moment later the socket is full.
    """
    buffer, rows, ended = BytesIO(), 0, False
    while not ended and (row := copy.read()):
        buffer.write(row)
        rows += 1
        arrived = 1
        while arrived and not ended and buffer.tell() < BLOCK_BYTES:  # a server that is faster never lets it run dry
            pgconn.consume_input()
            arrived, ended = _take_arrived(pgconn, buffer)
            rows += arrived
        if ended:
            _end(pgconn)
        if buffer.tell() >= BLOCK_BYTES:
            yield from _written(buffer, rows)
            rows = 0
        elif not ended:
            time.sleep(PAUSE_SECONDS)
    if rows:
        yield from _written(buffer, rows)


def _written(buffer: BytesIO, rows: int) -> Iterator[tuple[memoryview, int]]:
    """What the buffer holds, not copied; then it is empty, in the same memory unless a long row made that large."""
    with buffer.getbuffer() as whole, whole[: buffer.tell()] as block:
        yield block, rows
    buffer.seek(0)
    if len(buffer.getbuffer()) > KEPT_BYTES:
        buffer.truncate()


def _take_arrived(pgconn: Any, buffer: BytesIO) -> tuple[int, bool]:
    """Append the rows that libpq holds: how many, and whether the last one is among them.

    A report is as fast as this loop. Each row is copied before the next is taken, while it is in the CPU's cache:
    kept until they are joined, the rows would cost three times as much. After the last one comes an empty one.
    """
    rows = 0
    for length in map(buffer.write, map(_ROW, iter(partial(pgconn.get_copy_data, 1), _NOT_ARRIVED))):
        if not length:
            return rows, True
        rows += 1
    return rows, False


def _end(pgconn: Any) -> None:
    """Take the result that ends a COPY.

    Raises:
        psycopg.Error: the server broke off.
    """
    result = pgconn.get_result()
    while (following := pgconn.get_result()) is not None:
        result = following
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("COPY ended early")


def _ended_outside_quotes(block: bytes, line_end: bytes) -> bytes:
    """The rows, which end with LF, ending as the file's lines do. A LF inside quotes is a text's own."""
    pieces = block.split(b'"')
    for number in range(0, len(pieces), 2):  # what stands between quoted texts; a doubled quote leaves none between
        pieces[number] = pieces[number].replace(b"\n", line_end)
    return b'"'.join(pieces)
