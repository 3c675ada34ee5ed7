"""Flights in and out again: rows of 19 columns with missing values, read back by other readers."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from python_calamine import CalamineWorkbook

from effects import Effects
from effects.worker import Worker
from effects_reports import open_result, report, report_status, request_report
from tests.reports.conftest import Shop
from tests.support import needs
from tests.support.sampling import is_full

ROWS = 336_776 if is_full() else 30_000  # of the year's flights
TEXTS = ("carrier", "tailnum", "origin", "dest")
MISSING = "NA"
BATCH = 20_000
WORK_SECONDS = 500.0  # the workbook has 6.7 million cells


def source() -> Iterator[list[str]]:
    """The bundled file's lines, the header first."""
    with (files("examples.demo") / "flights.csv.xz").open("rb") as packed, lzma.open(packed) as plain:
        yield from csv.reader(io.TextIOWrapper(plain, newline=""))


NAMES = next(source())


def _type_of(name: str) -> sa.types.TypeEngine[Any]:
    return sa.Text() if name in TEXTS else sa.DateTime(timezone=True) if name == "time_hour" else sa.Integer()


flights = sa.Table(
    "flights", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
    *(sa.Column(name, _type_of(name)) for name in NAMES),
)  # fmt: skip


@report("flights", key=("id",))
def flights_report(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(flights).where(flights.c.id <= ROWS)


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    flights_app = shop_factory(reports=[flights_report])
    flights.create(flights_app.engine)
    _load_postgresql(flights_app) if flights_app.store.is_postgresql else _load_sqlite(flights_app)
    return flights_app


def _load_postgresql(app: Effects) -> None:
    with (files("examples.demo") / "flights.csv.xz").open("rb") as packed, lzma.open(packed) as plain:
        url = app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        copy = f"COPY flights ({', '.join(NAMES)}) FROM STDIN (FORMAT csv, HEADER, NULL '{MISSING}')"
        with psycopg.connect(url) as connection, connection.cursor().copy(copy.encode()) as writing:
            for line in islice(plain, ROWS + 1):
                writing.write(line)


def _load_sqlite(app: Effects) -> None:
    """Numbers come as texts; the columns' affinity makes numbers of them."""
    lines = (
        [*(None if value == MISSING else value for value in line[:-1]), line[-1].removesuffix("Z")]
        for line in islice(source(), 1, ROWS + 1)
    )
    marks = ", ".join("?" * len(NAMES))
    with app.engine.begin() as connection:
        cursor = connection.connection.cursor()
        cursor.executemany(f"INSERT INTO flights ({', '.join(NAMES)}) VALUES ({marks})", lines)


def checksums(rows: Iterable[Iterable[str]]) -> dict[str, object]:
    """How many rows, and a digest of each column's values in their order."""
    digests = [hashlib.sha256() for _ in NAMES]
    count, remaining = 0, iter(rows)
    while batch := list(islice(remaining, BATCH)):
        count += len(batch)
        for digest, values in zip(digests, zip(*batch, strict=True), strict=True):
            digest.update("\n".join(values).encode() + b"\n")
    return {"rows": count, **{name: digest.hexdigest() for name, digest in zip(NAMES, digests, strict=True)}}


@pytest.fixture(scope="module")
def expected() -> dict[str, object]:
    sums = checksums(
        [*("" if value == MISSING else value for value in line[:-1]), line[-1].removesuffix("Z")]
        for line in islice(source(), 1, ROWS + 1)
    )
    assert sums["rows"] == ROWS
    return sums


def finished_file(app: Effects, file: str) -> Path:
    """The finished file, which a worker made, as a path."""
    run_id = request_report("flights", format=file, effects=app).run_id
    assert Worker(app).drain(WORK_SECONDS).finished
    status = report_status(run_id, effects=app)
    assert (status.state, status.rows) == ("ready", ROWS), status.error_text
    path = Path(str(app.storage.url).removeprefix("file:")) / str(status.artifact)
    digest = hashlib.sha256()
    for piece in open_result(run_id, effects=app):
        digest.update(piece)
    assert digest.hexdigest() == status.sha256
    return path


def from_csv(path: Path) -> Iterator[list[str]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        assert next(lines) == ["id", *NAMES]
        for number, line in enumerate(lines, 1):
            assert line[0] == str(number)
            yield [*line[1:-1], line[-1].replace(" ", "T").removesuffix("+00")]


def from_ndjson(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            assert [*row] == ["id", *NAMES]
            *values, moment = list(row.values())[1:]
            yield [*("" if value is None else str(value) for value in values), moment.removesuffix("+00:00")]


def from_xlsx(path: Path) -> Iterator[list[str]]:
    """Numbers come as floats, moments as datetimes: so they were written."""
    rows = CalamineWorkbook.from_path(path).get_sheet_by_index(0).iter_rows()
    assert next(rows) == ["id", *NAMES]
    for row in rows:
        *values, moment = row[1:]
        midnight = "" if isinstance(moment, datetime) else "T00:00:00"  # this reader makes a day of it
        yield [*(_shown(value) for value in values), f"{moment.isoformat()}{midnight}"]


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) else str(value)


READERS: dict[str, Callable[[Path], Iterator[list[str]]]] = {"csv": from_csv, "ndjson": from_ndjson, "xlsx": from_xlsx}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_value_is_read_back(app: Effects, expected: dict[str, object]) -> None:
    formats = ["csv", "ndjson", *([] if app.store.is_postgresql else ["xlsx"])]  # one of that size is enough
    for file in formats:
        path = finished_file(app, file)
        assert checksums(READERS[file](path)) == expected
        _with_libreoffice(path, expected)


def _with_libreoffice(path: Path, expected: dict[str, object]) -> None:
    """On demand: what LibreOffice makes of the workbook, as CSV again."""
    if path.suffix != ".xlsx" or not os.environ.get("EFFECTS_TEST_LIBREOFFICE"):
        return
    converted = path.parent / "converted"
    command = [needs.program("soffice"), "--headless", "--convert-to", "csv", "--outdir", str(converted), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    [spreadsheet] = converted.iterdir()
    with spreadsheet.open(newline="", encoding="utf-8-sig") as file:
        rows = [[*line[1:-1], line[-1].replace(" ", "T")] for line in islice(csv.reader(file), 1, None)]
    assert checksums(rows) == expected
    shutil.rmtree(converted)
