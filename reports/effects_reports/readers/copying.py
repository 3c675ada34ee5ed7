"""Rows as PostgreSQL writes them: COPY … TO STDOUT in the format of the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from sqlalchemy import Connection

from effects_reports.formats.base import ChunkSource, Format
from effects_reports.formats.csv import Csv
from effects_reports.tables.copying import copy_statement, prepare_session

BLOCK_BYTES = 1024 * 1024


def can_copy(connection: Connection) -> bool:
    """Whether the driver is psycopg and the database is in UTF-8: a text's first character is then a code point."""
    driver = _driver(connection)
    return isinstance(driver, psycopg.Connection) and driver.info.parameter_status("server_encoding") == "UTF8"


def copy_rows(source: ChunkSource, file: Format, connection: Connection) -> Iterator[tuple[bytes, int]]:
    """Blocks of about 1 MiB, not packed, each with the number of its rows.

    Raises:
        psycopg.Error: what the server says.
    """
    assert source.select is not None
    prepare_session(connection)
    statement, parameters = copy_statement(connection, source.select, source.columns, file)
    driver = _driver(connection)
    line_end = file.line_end.encode() if isinstance(file, Csv) else b"\n"
    with driver.cursor() as cursor, cursor.copy(statement, parameters) as copy:
        for rows in _blocks(copy, driver.pgconn):
            yield _joined(rows, line_end), len(rows)


def _driver(connection: Connection) -> Any:
    return connection.connection.driver_connection


def _blocks(copy: Any, pgconn: Any) -> Iterator[list[Any]]:
    """Lists of rows. `copy` waits for the first row of those that have arrived; the others are at hand.

    A step of psycopg's own reading costs more than the row: 2,000,000 of them are half of a COPY's time.
    """
    block: list[Any] = []
    size = 0
    more = True
    while more and (row := copy.read()):
        while row:
            block.append(row)
            size += len(row)
            if size >= BLOCK_BYTES:
                yield block
                block, size = [], 0
            length, row = pgconn.get_copy_data(1)
            if length < 0:
                _end(pgconn)
                more = False
    if block:
        yield block


def _end(pgconn: Any) -> None:
    """Take the result that ends a COPY.

    Raises:
        psycopg.Error: the server broke off.
    """
    result = pgconn.get_result()
    while (following := pgconn.get_result()) is not None:
        result = following
    if result is None or result.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result) if result else psycopg.OperationalError("COPY ended early")


def _joined(rows: list[Any], line_end: bytes) -> bytes:
    """The rows, which end with LF, ending as the file's lines do."""
    block = b"".join(rows)
    if line_end == b"\n":
        return block
    if block.count(b"\n") == len(rows):
        return block.replace(b"\n", line_end)
    return b"".join([bytes(row[:-1]) + line_end for row in rows])  # some texts hold line breaks of their own
