"""The table of the package's page: what programs make of values that they like to guess at, each with its defaults."""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pytest
import sqlalchemy as sa

from effects_reports.formats.arrow import with_kinds
from effects_reports.formats.base import ChunkSource, Column, Dialect
from tests.formats.rows import part, whole
from tests.support import needs

PAGE = Path(__file__).parents[2] / "docs" / "report-formats.md"
VALUES: dict[str, Any] = {
    "007": "007",
    "1/2": "1/2",
    "1234567890123456789": 1234567890123456789,
    "12.50": Decimal("12.50"),
}
COLUMNS = (
    Column("zeros", "zeros", sa.Text()), Column("half", "half", sa.Text()), Column("long", "long", sa.BigInteger()),
    Column("price", "price", sa.Numeric(12, 2)),
)  # fmt: skip
FILES: dict[str, tuple[str, Dialect]] = {
    "csv": ("csv", "excel"), "csv, exact": ("csv", "excel_exact"),
    "csv, semicolon": ("csv", "excel_semicolon"), "xlsx": ("xlsx", "excel"),
    "parquet": ("parquet", "excel"),
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("kept")
    paths = {}
    for title, (name, dialect) in FILES.items():
        paths[title] = folder / f"{dialect}.{name}"
        columns = with_kinds(COLUMNS) if name == "parquet" else COLUMNS
        written = part(ChunkSource(COLUMNS, rows=[tuple(VALUES.values())]), name, dialect)[0]
        paths[title].write_bytes(whole(columns, [written], name, dialect))
    return paths


def by_pandas(path: Path, title: str) -> list[Any]:
    if title == "csv, semicolon":
        frame = pd.read_csv(path, sep=";", decimal=",")
    else:
        readers = {
            "csv": pd.read_csv,
            "csv, exact": pd.read_csv,
            "xlsx": partial(pd.read_excel, engine="openpyxl"),
            "parquet": pd.read_parquet,
        }
        frame = readers[title](path)
    return list(frame.iloc[0])


def by_polars(path: Path, title: str) -> list[Any]:
    if title == "csv, semicolon":
        return list(pl.read_csv(path, separator=";", decimal_comma=True).row(0))
    return list((pl.read_parquet(path) if title == "parquet" else pl.read_csv(path)).row(0))


def by_duckdb(path: Path, title: str) -> list[Any]:
    options = ", decimal_separator=','" if title == "csv, semicolon" else ""
    read = f"read_parquet('{path}')" if title == "parquet" else f"read_csv('{path}'{options})"
    with duckdb.connect() as connection:
        return list(connection.sql(f"SELECT * FROM {read}").fetchall()[0])


def by_libreoffice(path: Path, title: str) -> list[Any]:
    """As it shows them, in its English locale; of CSV with the separator that the file has."""
    separator = {"csv": "44", "csv, exact": "44", "csv, semicolon": "59"}.get(title)
    filters = [] if separator is None else [f"--infilter=CSV:{separator},34,76"]
    folder = path.parent / "shown"
    profile = f"-env:UserInstallation={(path.parent / 'profile').as_uri()}"
    target = "csv:Text - txt - csv (StarCalc):44,34,76"
    program = needs.program("soffice")
    command = [program, profile, "--headless", *filters, "--convert-to", target, "--outdir", str(folder), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    text = (folder / f"{path.stem}.csv").read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline="")))[1]


READERS: dict[str, tuple[Callable[[Path, str], list[Any]], tuple[str, ...]]] = {
    "LibreOffice": (by_libreoffice, ("csv", "csv, exact", "csv, semicolon", "xlsx")),
    "pandas": (by_pandas, ("csv", "csv, exact", "csv, semicolon", "xlsx", "parquet")),
    "polars": (by_polars, ("csv", "csv, exact", "csv, semicolon", "parquet")),
    "DuckDB": (by_duckdb, ("csv", "csv, exact", "csv, semicolon", "parquet")),
}


def shown(value: Any) -> str:
    """LibreOffice takes `1/2` for a day of the year in which it runs."""
    return "a day" if re.fullmatch(r"\d\d/\d\d/\d\d", str(value)) else f"`{value}`"


def line_of(reader: str, title: str, files: dict[str, Path]) -> str:
    """A line of the page's table."""
    values = READERS[reader][0](files[title], title)
    cells = ["kept" if str(value) == text else shown(value) for text, value in zip(VALUES, values, strict=True)]
    return f"| {reader} | {title} | {' | '.join(cells)} |"


@pytest.mark.parametrize(
    ("reader", "title"), [(name, title) for name, (_, titles) in READERS.items() for title in titles]
)
def test_the_page_says_what_a_program_makes_of_each_value(reader: str, title: str, files: dict[str, Path]) -> None:
    if reader == "LibreOffice" and not os.environ.get("EFFECTS_TEST_LIBREOFFICE"):
        pytest.skip("on demand: EFFECTS_TEST_LIBREOFFICE=1")
    [line] = re.findall(rf"^\| {reader} \| {title} \|.*$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert line == line_of(reader, title, files)
