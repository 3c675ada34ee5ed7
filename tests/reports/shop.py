"""A table of orders, reports over it, and what their files must hold."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy import Column, Integer, MetaData, Row, Table, Text

from effects import Effects
from effects_reports import ReportDefinition, Since, report

metadata = MetaData()
orders = Table(
    "orders",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("customer", Text, nullable=False),
    Column("cents", Integer, nullable=False),
)
# Nothing declares what its keys are.
lines = Table(
    "order_lines", metadata, Column("order_id", Integer), Column("place", Integer), Column("article", Text)
)  # fmt: skip

CHUNK_ROWS = 100


class OrdersParams(msgspec.Struct, frozen=True):
    above: int = 0


@report("orders", key=("id",), params=OrdersParams, chunk_rows=CHUNK_ROWS, dialect="rfc4180")
def orders_report(params: OrdersParams) -> sa.Select[Any]:
    return sa.select(orders).where(orders.c.id > params.above)


@report("order_lines", key=("order_id", "place"), chunk_rows=CHUNK_ROWS, dialect="rfc4180", rows_max=1000)
def lines_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(lines)


def in_euros(row: Row[Any]) -> Sequence[Any]:
    return (row.customer, f"{row.cents / 100:.2f}")


@report(
    "euros", key=("id",), columns={"customer": "Customer", "euros": "Sum in euros"}, map_row=in_euros,
    chunk_rows=CHUNK_ROWS, dialect="rfc4180", formats=("csv",),
)  # fmt: skip
def euros_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(orders.c.id, orders.c.customer, orders.c.cents)


@report("totals", consistency="single", dialect="rfc4180")
def totals_report(params: dict[str, Any]) -> sa.Select[Any]:
    """In an order of its own: that of GROUP BY alone changes with what the server knows of the table."""
    cents = sa.func.sum(orders.c.cents).label("cents")
    return sa.select(orders.c.customer, cents).group_by(orders.c.customer).order_by(orders.c.customer)


@report("primes", iterable=True, columns=("prime",), dialect="rfc4180")
def primes_report(params: dict[str, Any]) -> Iterator[Sequence[int]]:
    for number in range(2, int(params.get("below", 50))):
        if all(number % smaller for smaller in range(2, number)):
            yield (number,)


@report("frozen", key=("id",), consistency="snapshot", chunk_rows=CHUNK_ROWS, dialect="rfc4180")
def frozen_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(orders)


@report("fresh", key=("id",), dialect="rfc4180")
def fresh_report(since: Since) -> sa.Select[Any]:
    return sa.select(orders).where(since.new_rows(orders))


class Starved:
    """A mapping that runs out of memory once."""

    def __init__(self) -> None:
        self.is_starved = True

    def __call__(self, batch: Any) -> Any:
        is_starved, self.is_starved = self.is_starved, False
        if is_starved:
            raise MemoryError
        return batch


REPORTS: tuple[ReportDefinition, ...] = (
    orders_report, lines_report, euros_report, totals_report, primes_report, frozen_report,
    fresh_report,
)  # fmt: skip


def fill(app: Effects, count: int) -> None:
    """Make the tables, with that many orders of ids 3, 6, 9, …"""
    metadata.create_all(app.engine)
    rows = [{"id": 3 * n, "customer": f'customer {n % 7}, "Ltd"', "cents": n * 11} for n in range(1, count + 1)]
    with app.engine.begin() as connection:
        for start in range(0, count, 500):
            connection.execute(orders.insert(), rows[start : start + 500])


def csv_rows(file: bytes) -> list[list[str]]:
    """The rows of a CSV file, its header first, as Python's own reader has them."""
    return list(csv.reader(io.StringIO(file.decode(), newline="")))
