"""Rows from databases and iterables: in stated batches, mapped as asked, refused where they do not fit."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from effects_reports.errors import ReportRefused
from effects_reports.formats.base import ChunkSource, Column, Route
from effects_reports.formats.opening import open_format
from effects_reports.readers import choose_route, write_chunk
from tests.formats.rows import Memory, columns_of, part, values
from tests.support import databases

COUNT = 12_345


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Connection]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.connect() as connection:
        yield connection
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def connection(request: pytest.FixtureRequest) -> sa.Connection:
    connected: sa.Connection = request.getfixturevalue(request.param)
    connected.exec_driver_sql("CREATE TEMPORARY TABLE numbers (id integer PRIMARY KEY, label text)")
    rows = ", ".join(f"({number}, 'number {number}')" for number in range(COUNT))
    connected.exec_driver_sql(f"INSERT INTO numbers VALUES {rows}")
    return connected


NUMBERS = sa.table("numbers", sa.column("id", sa.Integer), sa.column("label", sa.Text))
SELECT = sa.select(NUMBERS.c.id, NUMBERS.c.label).where(NUMBERS.c.id >= 5).order_by(NUMBERS.c.id)
EXPECTED = "".join(f"{number},number {number}\n" for number in range(5, COUNT)).encode()


def test_every_route_writes_the_same(connection: sa.Connection) -> None:
    columns = columns_of(SELECT)
    sources = [
        ChunkSource(columns, SELECT),
        ChunkSource(columns, SELECT, map_row=tuple),
        ChunkSource(columns, SELECT, map_row=lambda row: {"label": row.label, "id": row.id}),
        ChunkSource(columns, SELECT, map_batch=list, batch_rows=100),
        ChunkSource(columns, rows=((number, f"number {number}") for number in range(5, COUNT))),
        ChunkSource(columns, rows=({"id": number, "label": f"number {number}"} for number in range(5, COUNT))),
    ]
    for source in sources:
        written, result = part(source, "csv", "raw", None if source.rows is not None else connection)
        assert written == EXPECTED
        assert result.rows == COUNT - 5


def test_a_mapping_is_given_batches_of_the_stated_size(connection: sa.Connection) -> None:
    """A plain text statement too, for which the driver's default is everything at once."""
    sizes: list[int] = []

    def count(rows: Sequence[Any]) -> list[Any]:
        sizes.append(len(rows))
        return [tuple(row) for row in rows]

    text = sa.text("SELECT id, label FROM numbers WHERE id >= 5 ORDER BY id").columns(id=sa.Integer, label=sa.Text)
    for select in (SELECT, sa.select(text.subquery())):
        sizes.clear()
        written, _ = part(
            ChunkSource(columns_of(SELECT), select, map_batch=count, batch_rows=1000), "csv", "raw", connection
        )
        assert written == EXPECTED
        assert set(sizes[:-1]) == {1000}


def test_rows_may_be_left_out_and_added(connection: sa.Connection) -> None:
    columns = columns_of(SELECT)
    source = ChunkSource(columns, SELECT, map_row=lambda row: tuple(row) if row.id % 1000 == 0 else None)
    assert part(source, "csv", "raw", connection)[1].rows == 12
    source = ChunkSource(columns, SELECT, map_batch=lambda rows: [])
    assert part(source, "csv.gz", "raw", connection)[0] == b""
    source = ChunkSource(columns, SELECT, map_batch=lambda rows: [row for row in rows for _ in "ab"])
    assert part(source, "csv", "raw", connection)[1].rows == 2 * (COUNT - 5)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ((1, 2, 3), "3 values and the report 2 columns"),
        ((), "0 values"),
        ({"id": 1}, "no column 'label'"),
        (7, "it is an int"),
        ("ab", "it is a str"),
        ({1, 2}, "it is a set"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: Any, says: str) -> None:
    with pytest.raises(ReportRefused, match=says) as caught:
        part(ChunkSource(columns_of(SELECT), rows=[row]))
    assert caught.value.code == "row_shape"


def test_rows_of_two_kinds_are_refused() -> None:
    with pytest.raises(ReportRefused, match="some rows are mappings"):
        part(ChunkSource(columns_of(SELECT), rows=[{"id": 1, "label": "x"}, (1, "x")]))


class Stop(Exception):
    pass


@pytest.mark.parametrize("mapped", [False, True])
def test_what_progress_raises_ends_the_chunk_and_leaves_the_connection_usable(
    connection: sa.Connection, mapped: bool
) -> None:
    reports: list[tuple[int, int]] = []

    def progress(rows: int, size: int) -> None:
        reports.append((rows, size))
        if rows > 2000:
            raise Stop

    wide = sa.select(NUMBERS.c.id, sa.func.replace("x" * 2000, "x", "yz").label("label")).order_by(NUMBERS.c.id)
    source = ChunkSource(columns_of(SELECT), wide, map_batch=list if mapped else None, batch_rows=500)
    out = Memory()
    with pytest.raises(Stop), connection.begin_nested():
        write_chunk(source, open_format("csv", "raw"), connection, out, progress=progress)
    assert reports == sorted(set(reports))
    assert reports[-1][0] < COUNT
    assert reports[-1][1] == len(out.data)
    assert connection.scalar(sa.select(sa.func.count()).select_from(NUMBERS)) == COUNT


# -- routes ------------------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


class Shouted(sa.TypeDecorator[str]):
    impl = sa.Text
    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value.upper()


@pytest.mark.parametrize(
    ("kind", "route"),
    [
        (sa.Integer(), "copy"), (sa.types.NullType(), "copy"), (sa.Interval(), "copy"), (sa.JSON(), "copy"),
        (sa.Enum("a", "b"), "copy"), (sa.Enum(Colour), "batch"), (Shouted(), "batch"), (sa.PickleType(), "batch"),
        (sa.Text().with_variant(Shouted(), "postgresql"), "batch"),
    ],
)  # fmt: skip
def test_a_type_that_needs_python_is_not_copied(kind: Any, route: Route) -> None:
    source = ChunkSource((Column("x", "x", kind),), sa.select(sa.column("x", kind)))
    assert choose_route(source, open_format("csv"), "postgresql") == route
    assert choose_route(source, open_format("xlsx"), "postgresql") == "batch"
    assert choose_route(source, open_format("csv"), "sqlite") == "sqlite"


def test_routes_of_mappings_and_iterables() -> None:
    columns = columns_of(SELECT)
    csv = open_format("csv")
    assert choose_route(ChunkSource(columns, SELECT, map_row=tuple), csv, "postgresql") == "row"
    assert choose_route(ChunkSource(columns, SELECT, map_batch=list), csv, "sqlite") == "batch"
    assert choose_route(ChunkSource(columns, rows=[]), csv, None) == "iterable"


def test_a_type_decorator_is_applied(postgresql: sa.Connection) -> None:
    select = sa.select(sa.literal_column("'quiet'", Shouted()).label("x"))
    assert part(ChunkSource(columns_of(select), select), "csv", "raw", postgresql)[0] == b"QUIET\n"


def test_a_name_that_postgresql_would_cut_is_whole(postgresql: sa.Connection) -> None:
    select = sa.select(sa.literal(1).label("ж" * 40))
    assert (
        part(ChunkSource(columns_of(select), select), "ndjson", "raw", postgresql)[0].decode()
        == f'{{"{"ж" * 40}":1}}\n'
    )


def test_parameters_are_quoted_by_the_driver(postgresql: sa.Connection) -> None:
    nasty = "'; DROP TABLE x; -- %s %(a)s \\ \" é"
    select = sa.select(
        sa.literal(nasty).label("text"),
        sa.literal("100%").label('a "%" column'),
        sa.literal({"k": [1]}, sa.JSON()).label("json"),
    ).where(sa.literal(2).in_([1, 2, 3]), sa.literal("x").in_([nasty, "x"]))
    for name in ("csv", "ndjson"):
        with postgresql.begin_nested() as savepoint:
            written, result = part(ChunkSource(columns_of(select), select), name, "raw", postgresql)
            savepoint.rollback()
        assert result.route == "copy"
        mapped, _ = part(ChunkSource(columns_of(select), select, map_batch=list), name, "raw", postgresql)
        assert written == mapped
        assert "DROP TABLE x; -- %s %(a)s" in written.decode()


@pytest.mark.parametrize("rows", [0, 1, 40_000])
def test_an_error_of_the_server_is_its_own(postgresql: sa.Connection, rows: int) -> None:
    """Before the first row, and after many."""
    number = sa.func.generate_series(1, rows + 1).column_valued("number")
    select = sa.select((sa.literal(1) / (sa.literal(rows + 1) - number)).label("x"), sa.literal("x" * 100).label("y"))
    with pytest.raises(psycopg.errors.DivisionByZero), postgresql.begin_nested():
        part(ChunkSource(columns_of(select), select), "csv", "raw", postgresql)
    assert postgresql.scalar(sa.select(1)) == 1


def test_a_statement_that_takes_too_long_is_cancelled_by_the_server(postgresql: sa.Connection) -> None:
    select = sa.select(sa.func.pg_sleep(30).label("x"))
    postgresql.exec_driver_sql("SET LOCAL statement_timeout = 50")
    with pytest.raises(psycopg.errors.QueryCanceled):
        part(ChunkSource(columns_of(select), select), "csv", "raw", postgresql)


def test_entities_of_the_orm_are_read_through_their_columns(sqlite: sa.Connection) -> None:
    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        note: Mapped[str]

    Base.metadata.create_all(sqlite)
    sqlite.execute(sa.insert(Order), [{"id": 1, "note": "x"}])
    select = sa.select(Order)
    assert part(ChunkSource(columns_of(select), select), "csv", "raw", sqlite)[0] == b"1,x\n"


def test_types_of_sqlite_are_those_of_the_columns(sqlite: sa.Connection) -> None:
    kinds = [sa.Boolean(), sa.Numeric(8, 2), sa.DateTime(), sa.Date(), sa.Uuid(), sa.LargeBinary(), sa.JSON()]
    stored = ["1", "12.5", "'2013-01-01 05:17:00.500000'", "'2013-01-01'", f"'{'0' * 32}'", "x'00ff'", "'{\"a\": [1]}'"]
    select = sa.select(
        *(
            sa.literal_column(text, kind).label(f"c{at}")
            for at, (text, kind) in enumerate(zip(stored, kinds, strict=True))
        )
    )
    written, result = part(ChunkSource(columns_of(select), select), "csv", "raw", sqlite)
    assert result.route == "sqlite"
    zero = "00000000-0000-0000-0000-000000000000"
    assert written.decode() == f'true,12.50,2013-01-01 05:17:00.5,2013-01-01,{zero},\\x00ff,"{{""a"": [1]}}"\n'


@pytest.mark.slow
def test_a_database_in_another_encoding_is_not_copied(postgresql_server: str) -> None:
    """A text's first character is no code point there."""
    databases.execute(postgresql_server, "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        engine = sa.create_engine(sa.make_url(postgresql_server).set(drivername="postgresql+psycopg", database="latin"))
        with engine.connect() as connection:
            select = values(connection, ["text"], [["=é"]])
            written, result = part(ChunkSource(columns_of(select), select), connection=connection)
        engine.dispose()
    finally:
        databases.execute(postgresql_server, "DROP DATABASE latin WITH (FORCE)")
    assert result.route == "batch"
    assert written == "'=é\r\n".encode()
