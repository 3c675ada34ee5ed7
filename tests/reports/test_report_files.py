"""Reports over files: DuckDB reads those that are named and nothing else; a crash begins no finished chunk again."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import duckdb
import msgspec
import pyarrow
import pyarrow.parquet
import pytest
import sqlalchemy as sa

from effects import Effects
from effects_reports import DefinitionInvalid, file_report, preview_report, report_status, request_report, resume_report
from effects_reports.source.files import PAGE_ROWS, SPILL_PREFIX
from effects_reports.state import state_of
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import csv_rows

COUNT = 2600
MakeApp = Callable[..., Effects]


class Since(msgspec.Struct, frozen=True):
    since: dt.date = dt.date(2026, 1, 1)
    kind: Literal["web", "shop"] = "web"


SQL = """
SELECT number, day, 'costs $5' AS note -- of $nobody
FROM visits WHERE day >= $since AND kind = $kind AND $as_of > '2020-01-01'
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of Parquet with 2,600 visits, one of CSV, and one that is nobody's business."""
    folder = tmp_path / "exports"
    (folder / "visits").mkdir(parents=True)
    for name, numbers in (("a", range(1, COUNT, 2)), ("it's b", range(0, COUNT, 2))):
        write(folder / "visits" / f"{name}.parquet", list(numbers))
    (folder / "codes.csv").write_text("code,city\n007,Bonn\n040,Rome\n")
    (tmp_path / "secret.csv").write_text("secret\nrosebud\n")
    return folder


def write(path: Path, numbers: list[int]) -> None:
    days = [dt.date(2026, 1, 1) + dt.timedelta(days=number % 28) for number in numbers]
    pyarrow.parquet.write_table(
        pyarrow.table({"number": numbers, "day": days, "kind": ["web"] * len(numbers)}), path, row_group_size=500
    )


@pytest.fixture
def make_app(shop_factory: Shop, folder: Path) -> MakeApp:
    def make(sql: str = SQL, **options: Any) -> Effects:
        settings = {
            "folder": folder, "files": {"visits": "visits/*.parquet"}, "columns": ("number", "day", "note"),
            "key": ("number",), "params": Since, "dialect": "rfc4180", **options,
        }  # fmt: skip
        return shop_factory(reports=[file_report("visits", sql, **settings)])

    return make


def made(app: Effects, params: Any = None, **options: Any) -> str:
    run_id = request_report("visits", params, effects=app, **options).run_id
    drain(app)
    return run_id


def error_of(app: Effects, run_id: str) -> str | None:
    return report_status(run_id, effects=app).error_code


def numbers_of(app: Effects, run_id: str) -> list[int]:
    return [int(cells[0]) for cells in csv_rows(content(app, run_id))[1:]]


def test_its_rows_come_in_the_order_of_the_key_in_chunks(make_app: MakeApp) -> None:
    app = make_app(chunk_rows=1000)
    run_id = made(app)
    assert numbers_of(app, run_id) == list(range(COUNT))
    assert report_status(run_id, effects=app).progress.chunks_total == 3
    assert numbers_of(app, made(app, {"since": "2026-01-28"})) == [n for n in range(COUNT) if n % 28 == 27]
    assert numbers_of(app, made(app, {"kind": "shop"})) == []
    assert preview_report("visits", rows=1, effects=app).rows == [["0", "2026-01-01", "costs $5"]]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the database decides nothing here
def test_the_temporary_folder_of_a_killed_worker_is_deleted(
    make_app: MakeApp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, under_way = (tmp_path / f"{SPILL_PREFIX}{name}" for name in ("killed", "under-way"))
    for folder in (killed, under_way):
        folder.mkdir()
        (folder / "duckdb_temp_storage-0.tmp").touch()
    os.utime(killed, (0, 0))
    assert preview_report("visits", rows=1, effects=make_app()).rows == [["0", "2026-01-01", "costs $5"]]
    assert list(tmp_path.glob(f"{SPILL_PREFIX}*")) == [under_way]


def test_its_values_have_types(make_app: MakeApp) -> None:
    app = make_app(types={"number": sa.BigInteger, "day": sa.Date, "note": sa.Text}, formats=("parquet",))
    table = pyarrow.parquet.read_table(pyarrow.BufferReader(content(app, made(app))))
    assert [str(field.type) for field in table.schema] == ["int64", "date32[day]", "string"]
    assert table["number"].to_pylist() == list(range(COUNT))


def test_a_composite_key_and_columns_of_csv(make_app: MakeApp) -> None:
    sql = "SELECT day, city, number, code FROM visits, codes WHERE number < 1400"
    app = make_app(
        sql, files={"visits": "visits/*.parquet", "codes": "*.csv"}, columns=("city", "code", "number", "day"),
        key=("day", "code", "number"), params=None, chunk_rows=1000, csv_types={"code": "VARCHAR"},
    )  # fmt: skip
    run_id = made(app)
    records = csv_rows(content(app, run_id))[1:]
    assert len(records) == 2800
    assert records == sorted(records, key=lambda record: (record[3], record[1], int(record[2])))
    assert {record[1] for record in records} == {"007", "040"}


def test_it_continues_with_the_same_bytes_unless_a_file_has_changed(make_app: MakeApp, folder: Path) -> None:
    app = make_app(chunk_rows=1000)
    whole = content(app, made(app, key="whole"))
    run_id = request_report("visits", key="resumed", effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(2):  # the plan and the first chunk
        worker.do_next()
    status = (folder / "visits" / "a.parquet").stat()
    os.utime(folder / "visits" / "a.parquet", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    worker.do_next()
    assert (report_status(run_id, effects=app).state, error_of(app, run_id)) == ("failed", "files_changed")
    os.utime(folder / "visits" / "a.parquet", ns=(status.st_atime_ns, status.st_mtime_ns))
    resume_report(run_id, effects=app)
    drain(app)
    assert content(app, run_id) == whole


def test_a_file_that_changes_while_it_is_read_in_one_part(make_app: MakeApp, folder: Path) -> None:
    app = make_app(key=())
    source = app_source(app)
    rows = iter(source)
    assert next(rows)[0] in (0, 1)
    write(folder / "visits" / "c.parquet", [COUNT])
    with pytest.raises(Exception, match="files have changed"):
        list(rows)
    assert sorted(numbers_of(app, made(app))) == list(range(COUNT + 1))


def app_source(app: Effects) -> Any:
    definition = state_of(app).registry.get("visits")
    return definition.rows(Since(), dt.datetime(2026, 1, 14, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT secret FROM read_csv('{outside}/secret.csv')",
        "SELECT secret FROM 'https://127.0.0.1:9/secret.csv'",
        "SELECT content AS secret FROM read_text('/etc/hostname')",
        "SELECT file AS secret FROM glob('{outside}/*')",
        "COPY (SELECT 1) TO '{outside}/visits/a.parquet'",
        "SELECT 1 AS secret; SELECT 2",
        "INSTALL httpfs",
        "SELECT nothing AS secret FROM visits",
        "SELECT CAST('x' AS INTEGER) AS secret",
    ],
)
def test_it_can_open_nothing_else(sql: str, make_app: MakeApp, folder: Path) -> None:
    for key in ((), ("secret",)):
        app = make_app(sql.format(outside=folder.parent), params=None, columns=("secret",), key=key)
        assert error_of(app, made(app)) == "duckdb"
    assert sorted(path.name for path in folder.rglob("*.parquet")) == ["a.parquet", "it's b.parquet"]


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT number // 2 AS number, day, 1 AS note FROM visits", "key_not_unique"),
        ("SELECT CASE WHEN number > 9 THEN number END AS number, day, 1 AS note FROM visits", "key_null"),
    ],
)
def test_a_key_that_identifies_no_row_is_refused(sql: str, code: str, make_app: MakeApp) -> None:
    app = make_app(sql, params=None, chunk_rows=500)
    assert error_of(app, made(app)) == code


def test_a_repeated_key_at_the_end_of_a_chunk_is_seen(make_app: MakeApp) -> None:
    sql = f"SELECT number - CASE WHEN number >= {PAGE_ROWS} THEN 1 ELSE 0 END AS number, day, 1 AS note FROM visits"
    app = make_app(sql, params=None, chunk_rows=PAGE_ROWS)
    assert error_of(app, made(app)) == "key_not_unique"


def test_files_that_are_missing_mixed_or_elsewhere(make_app: MakeApp, folder: Path) -> None:
    (folder / "linked.csv").symlink_to(folder.parent / "secret.csv")
    for pattern, code in (("none/*.csv", "files_missing"), ("**/*.*", "files_kind"), ("linked.csv", "files_outside")):
        app = make_app("SELECT 1 AS number", files={"visits": pattern}, columns=("number",), params=None)
        assert error_of(app, made(app)) in (code, "files_outside")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"params": None}, "its SQL names \\$kind, which is no field of its params"),
        ({"sql": "SELECT 1 AS number"}, "its params have the field 'kind', which its SQL does not name"),
        (
            {"params": msgspec.defstruct("P", ["kind", "as_of"])},
            "the field 'as_of', and that name is the time of the plan",
        ),
        ({"files": {}}, "give files"),
        ({"files": {"a b": "*.csv"}}, "files names 'a b'"),
        ({"files": {"visits": "../*.csv"}}, "the pattern of 'visits' leaves the folder"),
        ({"files": {"visits": "/etc/*.csv"}}, "the pattern of 'visits' leaves the folder"),
        ({"key": ("id",)}, "columns does not have 'id'"),
        ({"threads": 0}, "memory_mib and threads are above 0"),
        ({"engine": "replica"}, "an iterable has no key, no mapping and no engine"),
    ],
    ids=str,
)
def test_a_wrong_declaration_is_named(options: dict[str, Any], message: str, make_app: MakeApp) -> None:
    with pytest.raises(DefinitionInvalid, match=message):
        make_app(**options)


EXACT = {
    "INTERVAL '1 month 25 hours'": "1 month 25:00:00",
    "TIMESTAMP_NS '2026-01-01 00:00:00.123456789'":
        "2026-01-01 00:00:00.123456789",
    "CAST(0.1 AS FLOAT)": "0.1",
    "[INTERVAL '1 month']": '["1 month"]', "DATE '12026-01-01'": "12026-01-01",
    "'50%% :x ? $$'": "50%% :x ? $$",
    "TIMESTAMP '2026-01-01'": "2026-01-01 00:00:00", "CAST(1.50 AS DECIMAL(5, 2))": "1.50", "1e30::HUGEINT % 7": None,
}  # fmt: skip


@pytest.mark.parametrize("key", [("number",), ()], ids=["by key", "whole"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the database decides nothing here
def test_values_that_python_has_not_are_what_duckdb_prints(make_app: MakeApp, key: tuple[str, ...]) -> None:
    cells = ", ".join(f"{value} AS c{number}" for number, value in enumerate(EXACT))
    columns = ("number", *(f"c{number}" for number in range(len(EXACT))))
    app = make_app(f"SELECT number, {cells} FROM visits WHERE number < 3", columns=columns, key=key, params=None)
    [_, first, *_] = csv_rows(content(app, made(app)))
    with duckdb.connect() as connection:
        printed = [str(connection.sql(f"SELECT CAST({value} AS VARCHAR)").fetchall()[0][0]) for value in EXACT]
    assert first[1:] == [text or own for text, own in zip(EXACT.values(), printed, strict=True)]


@pytest.mark.parametrize("value", ["DATE 'infinity'", "TIMESTAMPTZ '-infinity'", "TIMESTAMP 'infinity'"])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the database decides nothing here
def test_infinity_is_refused_by_its_column(make_app: MakeApp, value: str) -> None:
    """Python would take it for the last day of the year 9999."""
    app = make_app(f"SELECT number, {value} AS valid_to FROM visits", columns=("number", "valid_to"), params=None)
    status = report_status(made(app), effects=app)
    assert (status.state, status.error_code) == ("failed", "duckdb")
    assert "the column valid_to holds infinity" in str(status.error_text)
