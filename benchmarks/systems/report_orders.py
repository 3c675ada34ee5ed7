"""The table that reports are made of: eight columns of six types."""

from __future__ import annotations

import os
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy import Row, Select, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from benchmarks.servers import effects_url
from effects import Effects

_TABLE = """
CREATE TABLE bench_orders AS SELECT
    i::bigint AS id, 'customer ' || i % 1000 AS customer, (i * 7.35 % 100000)::numeric(12, 2) AS amount,
    i % 3 = 0 AS paid, timestamptz '2024-01-01 00:00:00+00' + i * interval '1 second' AS created_at,
    date '2024-01-01' + (i % 365)::integer AS due_on, i * 0.37::double precision AS weight,
    'a note with some text for order ' || i AS note
FROM generate_series(1, {rows}) AS i
"""


class _Base(DeclarativeBase):
    pass


class Order(_Base):
    __tablename__ = "bench_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    amount: Mapped[Decimal]
    paid: Mapped[bool]
    created_at: Mapped[datetime]
    due_on: Mapped[date]
    weight: Mapped[float]
    note: Mapped[str]


COLUMNS = [column.name for column in Order.__table__.columns]


def orders(rows: int) -> Select[Any]:
    return select(*Order.__table__.columns).where(Order.__table__.c.id <= rows)


def ten_columns(rows: int) -> Select[Any]:
    """The rows with two columns more, for a sheet."""
    lot, billed = (Order.id % 97).label("lot"), Order.paid.label("billed")
    return select(*Order.__table__.columns, lot, billed).where(Order.__table__.c.id <= rows)


def map_order(row: Row[Any]) -> tuple[Any, ...]:
    """Some work of Python's, the same for all."""
    return (
        row.id, row.customer.upper(), row.amount, row.paid, row.created_at, row.due_on, row.weight, row.note,
    )  # fmt: skip


def fill(database: str, rows: int) -> None:
    """The table and those of effects, in a fresh database."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(_TABLE.format(rows=rows))
        connection.execute("ALTER TABLE bench_orders ADD PRIMARY KEY (id)")
        effects = Effects(effects_url(database), log_level="WARNING")
        effects.create_tables()
        effects.dispose()
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


def forget(folder: str) -> None:
    """Delete the files of a run that no one measures, before they are on the disk."""
    for inside, _, names in os.walk(folder):  # its parts are being cleared away
        for name in names:
            Path(inside, name).unlink(missing_ok=True)


class NoPandas:
    """An import hook by which pyarrow does not find the readers of the tests, which it would import: 60 MiB."""

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in ("numpy", "pandas"):
            raise ImportError(name)


def peak_mebibytes() -> float:
    """The highest resident size of this process. `ru_maxrss` would begin with that of the process which started it."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024
