"""The ends of chunks: every n-th key and the last one, the same on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from effects_reports.source.bounds import read_bounds

PLACES = sa.table("places", sa.column("region", sa.Text), sa.column("number", sa.Integer))
KEY = ("region", "number")


@pytest.fixture(params=["sqlite", "postgresql"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Connection]:
    if request.param == "postgresql":
        engine: sa.Engine = request.getfixturevalue("postgresql_engine")
    else:
        engine = sa.create_engine(f"sqlite:///{tmp_path / 'places.db'}")
    with engine.connect() as connected:
        connected.exec_driver_sql("CREATE TEMPORARY TABLE places (region text, number integer)")
        yield connected
    if request.param == "sqlite":
        engine.dispose()


@pytest.mark.parametrize("count", [0, 1, 2, 6, 7, 8, 14, 20])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_every_nth_key_and_the_last(connection: sa.Connection, count: int, size: int) -> None:
    keys = [(region, number) for region in ("north", "south") for number in range(10)][:count]
    if keys:
        rows = [{"region": region, "number": number} for region, number in reversed(keys)]
        connection.execute(sa.insert(PLACES), rows)
    expected = [(keys[at - 1], at) for at in range(1, count + 1) if at % size == 0 or at == count]
    select = sa.select(PLACES).where(PLACES.c.number < sa.literal(1000))
    assert list(read_bounds(connection, select, KEY, size, 1000)) == expected
    assert list(read_bounds(connection, select, KEY, size, 1000)) == expected  # twice on one connection


def test_no_more_rows_are_looked_at_than_asked(connection: sa.Connection) -> None:
    connection.execute(sa.insert(PLACES), [{"region": "x", "number": number} for number in range(50)])
    bounds = list(read_bounds(connection, sa.select(PLACES), KEY, 10, 25))
    assert bounds[-1][1] == 26
    assert [number for _, number in bounds[:-1]] == [10, 20]
