"""The ends of chunks: every n-th key and the last one, the same on both databases."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects_reports.source.statements import nth_key, read_bounds
from tests.formats.rows import numbers_by_ranges

PLACES = sa.table("places", sa.column("region", sa.Text), sa.column("number", sa.Integer))
KEY = ("region", "number")


class Colour(str, enum.Enum):  # noqa: UP042 - as apps have them: its `str` is not its value
    BLUE, RED = "azure", "crimson"


class Reversed(sa.TypeDecorator[str]):
    """What the app reads is the stored text from its end on."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return value and value[::-1]

    process_result_value = process_bind_param


# What SQLite holds, in its order, of types that read something else, or write it otherwise.
STORED: dict[str, tuple[Any, list[Any]]] = {
    "moments with a T": (sa.DateTime(), ["2026-01-01 23:00:00.000000", "2026-01-01T01:00:00", "2026-01-02T01:00:00"]),
    "moments with a zone": (sa.DateTime(), [f"2026-01-0{day} 01:00:00.123456+00:00" for day in (1, 2, 3)]),
    "more digits than declared": (sa.Numeric(10, 2), [0.121, 0.122, 0.129]),
    "an Enum that is a text": (sa.Enum(Colour), ["BLUE", "RED"]),
    "a type of the app's own": (Reversed(), ["ab", "ba", "bc"]),
}


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


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", STORED)
def test_sqlite_every_row_is_in_one_range_whatever_the_key_is_read_as(name: str, size: int, tmp_path: Path) -> None:
    type_, stored = STORED[name]
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'things.db'}")
    select = sa.select(sa.table("things", sa.column("k", type_), sa.column("n", sa.Integer)))
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE things (k, n)")
        for n, key in enumerate(stored):
            connection.exec_driver_sql("INSERT INTO things VALUES (?, ?)", (key, n))
        assert numbers_by_ranges(connection, select, ("k",), size) == list(range(len(stored)))
        assert nth_key(connection, select, ("k",), None, None, 1) == (stored[0],)
    engine.dispose()
