"""Which rows are new since the last run: by the transactions that wrote them, or on SQLite by their numbers.

PostgreSQL numbers a transaction when it first writes, and every row keeps that number (`xmin`). A run covers the rows
of transactions from its watermark on, up to the oldest that was still open when it was planned: all before that one
have ended, so that none of their rows can come later, whatever their keys and times. What lies beyond is the next
run's. A subtransaction's number is higher than that of its transaction, and so is never below the oldest open one.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, ColumnElement, Connection, Table, Text

from effects_reports.errors import DefinitionInvalid, ReportRefused

_TURN = 1 << 32  # a row keeps the last 32 bits of the number
_BOUNDS = sa.text(
    "SELECT CAST(CAST(pg_snapshot_xmin(s) AS text) AS bigint) AS oldest, "
    "CAST(CAST(pg_snapshot_xmax(s) AS text) AS bigint) AS next FROM pg_current_snapshot() AS s"
)
_NEXT = sa.cast(sa.cast(sa.func.pg_snapshot_xmax(sa.func.pg_current_snapshot()), Text), BigInteger)


class Since:
    """What an incremental report's function takes as its argument `since`.

    Outside of a run, as in `effects reports explain` and in previews, every row counts as new.
    """

    def __init__(self, dialect: str | None = None, lo: int | None = None, hi: int | None = None) -> None:
        self._dialect, self._lo, self._hi = dialect, lo, hi
        self.tables: list[Table] = []

    def new_rows(self, table: Table) -> ColumnElement[bool]:
        """The condition for rows of this table that no run of the report has had. Use it for one table.

        On PostgreSQL a row that was changed is new again, and so is every row of a table that ALTER TABLE has written
        again; on SQLite the table needs `sqlite_autoincrement=True`, and changes do not count.

        Raises:
            DefinitionInvalid: it is no table, or on SQLite not such a one.
        """
        if not isinstance(table, Table):
            raise DefinitionInvalid("since.new_rows takes the Table whose new rows are wanted")
        self.tables.append(table)
        if self._dialect is None or self._hi is None:
            return sa.true()
        return self._of_transactions(table) if self._dialect == "postgresql" else self._numbered(table)

    def _of_transactions(self, table: Table) -> ColumnElement[bool]:
        assert self._hi is not None  # as `new_rows` has seen
        written = sa.cast(sa.cast(sa.column("xmin", _selectable=table), Text), BigInteger)
        if self._lo is None:
            return sa.not_(_beyond(written, self._hi) < _NEXT - self._hi)
        return _beyond(written, self._lo) < self._hi - self._lo

    def _numbered(self, table: Table) -> ColumnElement[bool]:
        assert self._hi is not None  # as `new_rows` has seen
        number = number_of(table)
        upto = number <= self._hi
        return upto if self._lo is None else sa.and_(number > self._lo, upto)


def _beyond(written: ColumnElement[int], bound: int) -> ColumnElement[int]:
    """How many numbers after this one."""
    return (written + (_TURN - bound % _TURN)) % _TURN


def number_of(table: Table) -> ColumnElement[Any]:
    """The column by which SQLite numbers the rows, and no number twice.

    Raises:
        DefinitionInvalid: the table has none.
    """
    if not table.dialect_options["sqlite"]["autoincrement"]:
        raise DefinitionInvalid(
            f"since.new_rows({table.name}): SQLite may reuse the number of a deleted row; declare the table with "
            "sqlite_autoincrement=True"
        )
    [column] = table.primary_key.columns
    return column


def read_bound(connection: Connection, table: Table, lo: int | None) -> int:
    """How far a run may go now, beginning at `lo`; `lo` itself where it is not beyond.

    Raises:
        ReportRefused: the database's numbers are behind the watermark, or so far beyond it that they repeat.
    """
    if connection.dialect.name != "postgresql":
        newest = connection.scalar(sa.select(sa.func.max(number_of(table))))
        return max(int(newest or 0), lo or 0)
    row = connection.execute(_BOUNDS).one()
    if lo is not None and row.next < lo:
        raise ReportRefused(
            f"the database has had {row.next:,} transactions, and the report's last run saw {lo:,}: it was "
            "restored from a dump, or is behind; `effects reports rewind` starts over with all rows",
            code="watermark_ahead",
        )
    if lo is not None and row.oldest - lo >= _TURN:
        raise ReportRefused(
            "there were over 4 billion transactions since the report's last run, so new rows cannot be told apart: "
            "`effects reports rewind` starts over with all rows",
            code="watermark_too_old",
        )
    return max(int(row.oldest), lo or 0)
