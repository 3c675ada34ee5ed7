"""A report from its request to its file, on both databases."""

from __future__ import annotations

import datetime as dt
import enum
import gzip
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import sqlalchemy as sa

from effects import Attempt, Effects, JobType, KeyUnavailable, Sensitive, enqueue
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.operate.tables.rotate import count_keys, rotate
from effects_reports import (
    Notify,
    ReportInvalid,
    ReportRefused,
    explain_report,
    preview_report,
    report,
    report_status,
    request_report,
)
from effects_reports.state import state_of
from tests.reports.conftest import ReportWorker, Shop, content, drain, refused
from tests.reports.shop import OrdersParams, csv_rows, fill, lines, orders
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted

Files = Callable[[], list[str]]


def expected(count: int, above: int = 0) -> list[list[str]]:
    orders = [[str(3 * n), f'customer {n % 7}, "Ltd"', str(n * 11)] for n in range(1, count + 1) if 3 * n > above]
    return [["id", "customer", "cents"], *orders]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_every_row_once_in_the_order_of_the_key(count: int, shop: Effects) -> None:
    fill(shop, count)
    run_id = request_report("orders", effects=shop).run_id
    drain(shop)
    status = report_status(run_id, effects=shop)
    assert (status.state, status.rows, status.progress.fraction) == ("ready", count, 1.0)
    assert (status.progress.chunks_done, status.progress.rows_total) == (-(-count // 100), count)
    assert csv_rows(content(shop, run_id)) == expected(count)
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # the database decides nothing here
def test_a_long_key_in_any_script_names_a_file_that_the_storage_takes(shop: Effects) -> None:
    fill(shop, 1)
    run_id = request_report("orders", key="отчёт" * 40, effects=shop).run_id
    drain(shop)
    status = report_status(run_id, effects=shop)
    assert (status.state, status.filename) == ("ready", f"{'отчёт' * 15}.csv")


@pytest.mark.slow
def test_when_it_is_ready_only_its_file_is_left(shop: Effects, files: Files) -> None:
    fill(shop, 250)
    run_id = request_report("orders", key="orders:today", effects=shop).run_id
    drain(shop)
    status = report_status(run_id, effects=shop)
    assert files() == [status.artifact]
    assert status.filename == "orders-today.csv"
    assert status.bytes == len(content(shop, run_id))


@pytest.mark.slow
@pytest.mark.parametrize("file", ["csv", "csv.gz", "ndjson", "ndjson.zst"])
def test_many_chunks_are_the_file_that_one_chunk_is(file: str, shop_factory: Shop) -> None:
    contents: set[bytes] = set()
    for size in (7, 1000):
        app = shop_factory(reports=[_orders_in_chunks_of(size)])
        if not contents:
            fill(app, 60)
        run_id = request_report("orders", format=file, effects=app).run_id
        drain(app)
        contents.add(_unpacked(file, content(app, run_id)))
    [unpacked] = contents
    assert unpacked.count(b"\n") == 60 + ("csv" in file)


def _orders_in_chunks_of(size: int) -> object:
    return report("orders", key=("id",), chunk_rows=size)(lambda params: sa.select(orders))


def _unpacked(file: str, packed: bytes) -> bytes:
    if file.endswith(".gz"):
        return gzip.decompress(packed)
    if file.endswith(".zst"):
        import zstandard  # noqa: PLC0415

        return zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    return packed


def test_params_are_frozen_with_the_request(shop: Effects) -> None:
    fill(shop, 30)
    run_id = request_report("orders", OrdersParams(above=60), effects=shop).run_id
    drain(shop)
    assert csv_rows(content(shop, run_id)) == expected(30, above=60)


@pytest.mark.slow
def test_a_composite_key_that_only_the_rows_prove(shop: Effects) -> None:
    fill(shop, 0)
    inserted = [{"order_id": n // 9, "place": n % 9, "article": f"a{n}"} for n in range(330)]
    with shop.engine.begin() as connection:
        connection.execute(lines.insert(), list(reversed(inserted)))
    run_id = request_report("order_lines", effects=shop).run_id
    drain(shop)
    _, *written = csv_rows(content(shop, run_id))
    assert written == [[str(line["order_id"]), str(line["place"]), line["article"]] for line in inserted]
    assert report_status(run_id, effects=shop).progress.chunks_total == 4


def _moment(n: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=n, microseconds=n)


# Stored by their names; as texts they are their values.
Place = enum.Enum("Place", {f"Q{n:02}": f"place {n}" for n in range(50)}, type=str)  # type: ignore[misc]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (sa.Text, lambda n: f"Ä'%{n:03}:x{n}"),
        (sa.DateTime(timezone=True), _moment),
        (sa.Date, lambda n: dt.date(2026, 1, 1) + dt.timedelta(days=n)),
        (sa.Uuid, lambda n: uuid.uuid5(uuid.NAMESPACE_OID, str(n))),
        (sa.LargeBinary, lambda n: bytes([n, 255 - n])),
        (sa.BigInteger, lambda n: 2**60 + n),
        (sa.Enum(Place), lambda n: Place(f"place {n}")),
    ],
    ids=["text", "moment", "date", "uuid", "bytes", "bigint", "enum"],
)
def test_keys_of_many_kinds_bound_their_chunks(kind: Any, value: Callable[[int], Any], shop_factory: Shop) -> None:
    things = sa.Table("things", sa.MetaData(), sa.Column("k", kind, primary_key=True), sa.Column("n", sa.Integer))
    declared = report("things", key="k", chunk_rows=7, dialect="rfc4180")(
        lambda params: sa.select(things.c.n, things.c.k)
    )
    app = shop_factory(reports=[declared])
    things.create(app.engine)
    with app.engine.begin() as connection:
        connection.execute(things.insert(), [{"k": value(n), "n": n} for n in range(50)])
        ordered = [str(n) for (n,) in connection.execute(sa.select(things.c.n).order_by(things.c.k))]
    run_id = request_report("things", effects=app).run_id
    drain(app)
    assert [line[0] for line in csv_rows(content(app, run_id))[1:]] == ordered
    assert report_status(run_id, effects=app).progress.chunks_done == 8


def test_a_mapping_makes_the_rows_of_the_file(shop: Effects) -> None:
    fill(shop, 150)
    run_id = request_report("euros", effects=shop).run_id
    drain(shop)
    header, first, *rest = csv_rows(content(shop, run_id))
    assert header == ["Customer", "Sum in euros"]
    assert first == ['customer 1, "Ltd"', "0.11"]
    assert len(rest) == 149


def test_rows_that_nothing_distinguishes_come_in_one_part(shop: Effects) -> None:
    fill(shop, 21)
    run_id = request_report("totals", effects=shop).run_id
    drain(shop)
    _, *totals = csv_rows(content(shop, run_id))
    assert len(totals) == 7
    assert sum(int(cents) for _, cents in totals) == sum(11 * n for n in range(1, 22))


@pytest.mark.slow
def test_an_iterable_is_a_report_too(shop: Effects) -> None:
    run_id = request_report("primes", {"below": 20}, effects=shop).run_id
    drain(shop)
    assert csv_rows(content(shop, run_id)) == [["prime"], *([str(p)] for p in (2, 3, 5, 7, 11, 13, 17, 19))]
    assert report_status(run_id, effects=shop).progress.total_kind == "unknown"


@pytest.mark.slow
@pytest.mark.parametrize("as_url", [False, True], ids=["engine", "url"])
def test_it_may_be_read_from_another_database(as_url: bool, shop_factory: Shop, tmp_path: Path) -> None:
    """An engine stays its owner's; one that is made of a URL goes with the Effects."""

    @report("elsewhere", key=("id",), engine="replica")
    def elsewhere(params: dict[str, object]) -> sa.Select[tuple[int]]:
        return sa.select(sa.table("things", sa.column("id", sa.Integer)))

    url = f"sqlite:///{tmp_path / 'replica.db'}"
    replica = sa.create_engine(url, poolclass=sa.QueuePool)
    with replica.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id INTEGER PRIMARY KEY)")
        connection.exec_driver_sql("INSERT INTO things VALUES (4), (5)")
    app = shop_factory(reports=[elsewhere], report_engines={"replica": url if as_url else replica})
    run_id = request_report("elsewhere", effects=app).run_id
    drain(app)
    assert content(app, run_id).split() == [b"\xef\xbb\xbfid", b"4", b"5"]
    read = state_of(app).registry.engines[1]
    app.dispose()
    assert isinstance(read.pool, sa.QueuePool)
    assert (read.pool.checkedin() > 0, read is replica) == (not as_url, not as_url)
    replica.dispose()


# -- refused -----------------------------------------------------------------------------------------------------


def test_refused_two_rows_with_one_key(shop: Effects) -> None:
    fill(shop, 0)
    with shop.engine.begin() as connection:
        connection.execute(lines.insert(), [{"order_id": 1, "place": 1, "article": a} for a in "ab"])
    assert "key_not_unique: report 'order_lines': two rows have one key (order_id, place)" in refused(
        shop, "order_lines"
    )


def test_refused_a_key_that_is_null(shop: Effects) -> None:
    fill(shop, 0)
    with shop.engine.begin() as connection:
        connection.execute(lines.insert(), [{"order_id": None, "place": 1, "article": "a"}])
    assert "key_null: report 'order_lines': its key (order_id, place) is NULL" in refused(shop, "order_lines")


def test_refused_more_rows_than_allowed(shop: Effects) -> None:
    fill(shop, 0)
    with shop.engine.begin() as connection:
        connection.execute(lines.insert(), [{"order_id": n, "place": 1, "article": "a"} for n in range(1001)])
    assert "too_many_rows: report 'order_lines' has more than 1,000 rows" in refused(shop, "order_lines")


def test_refused_more_rows_than_the_format_holds(shop: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    from effects_reports.formats.xlsx import Xlsx  # noqa: PLC0415

    monkeypatch.setattr(Xlsx, "rows_max", 10)  # no format has such a limit today
    fill(shop, 11)
    why = refused(shop, "orders", format="xlsx")
    assert "too_many_rows_for_format: report 'orders': xlsx holds 10 rows and it has 11; ask for csv" in why


def test_refused_a_storage_that_cannot_be_written(shop_factory: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    app = shop_factory(storage_url=str(tmp_path / "file" / "below"))
    fill(app, 1)
    assert "storage" in refused(app, "orders")


def test_too_many_bytes_end_it(shop_factory: Shop) -> None:
    small = report("orders", key=("id",), chunk_rows=50, bytes_max=1000)(lambda params: sa.select(orders))
    app = shop_factory(reports=[small])
    fill(app, 200)
    run_id = request_report("orders", effects=app).run_id
    drain(app)
    status = report_status(run_id, effects=app)
    assert (status.state, status.error_code) == ("failed", "too_many_bytes")
    assert "1,000 (bytes_max)" in str(status.error_text)


def test_explain_reads_no_row_and_shows_what_would_happen(shop: Effects) -> None:
    fill(shop, 250)
    before = len(rows(shop, "report_runs"))
    explanation = explain_report("orders", {"above": 5}, format="ndjson", effects=shop)
    assert explanation.route == ("copy" if shop.store.is_postgresql else "sqlite")
    assert explanation.key == "id (proved)"
    assert explanation.bounds == "half-open ranges of the key, 100 rows each"
    assert (explanation.rows_estimated is None) == (not shop.store.is_postgresql)
    assert explanation.columns == ["id", "customer", "cents"]
    assert explanation.refusals == []
    assert "orders.id >" in explanation.select
    assert explain_report("order_lines", effects=shop).key == "order_id, place (to be checked when planned)"
    assert explain_report("euros", effects=shop).route == "row"
    assert explain_report("primes", effects=shop).route == "iterable"
    assert len(rows(shop, "report_runs")) == before


def test_a_preview_shows_the_first_rows_in_the_order_of_the_key(shop: Effects) -> None:
    fill(shop, 250)
    before = len(rows(shop, "report_runs"))
    preview = preview_report("orders", {"above": 5}, rows=3, effects=shop)
    assert preview.columns == ["id", "customer", "cents"]
    assert [row[0] for row in preview.rows] == ["6", "9", "12"]
    mapped = preview_report("euros", rows=2, effects=shop)
    assert (mapped.columns, len(mapped.rows)) == (["Customer", "Sum in euros"], 2)
    assert len(preview_report("primes", rows=4, effects=shop).rows) == 4
    assert len(preview_report("totals", effects=shop).rows) >= 1
    assert len(rows(shop, "report_runs")) == before
    with pytest.raises(ReportInvalid, match="rows is 0"):
        preview_report("orders", rows=0, effects=shop)


def test_a_preview_that_the_database_does_not_take_says_why(shop_factory: Shop) -> None:
    lacking = report("lacking", key=("id",))(lambda: sa.select(sa.table("nowhere", sa.column("id", sa.Integer))))
    with pytest.raises(ReportRefused, match="report 'lacking': the database does not take the SELECT"):
        preview_report("lacking", effects=shop_factory(reports=[lacking]))


# -- notices -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ready_and_failed_enqueue_a_job_with_the_result(shop_factory: Shop) -> None:
    app = shop_factory(job_types=[Scripted()])
    fill(app, 10)
    notify = Notify(job_type="scripted", payload={"name": "{report} {state}: {rows} rows {filename}{error}"})
    request_report("orders", key="k", notify=notify, effects=app)
    request_report("orders", {"above": 3}, notify=[notify], effects=app)
    with app.engine.begin() as connection:
        connection.execute(lines.insert(), [{"order_id": 1, "place": 1, "article": a} for a in "ab"])
    request_report("order_lines", notify=notify, effects=app)
    drain(app)
    said = sorted(_payload(row)["name"] for row in rows(app, "job_history", "job_type = 'scripted'"))
    assert said[0].startswith("order_lines failed:  rows report 'order_lines': two rows have one key")
    assert said[1] == "orders ready: 10 rows k.csv"
    assert said[2] == "orders ready: 9 rows orders.csv"


def _payload(row: dict[str, object]) -> dict[str, str]:
    payload = row["payload"]
    return json.loads(payload) if isinstance(payload, str) else payload  # type: ignore[return-value]


class Told(msgspec.Struct):
    to: Annotated[str, Sensitive]
    text: str = ""


class Tell(JobType[Told]):
    name = "tell"
    payload = Told

    def __init__(self) -> None:
        self.told: list[Told] = []

    def perform(self, payload: Told, attempt: Attempt) -> None:
        self.told.append(payload)


@pytest.mark.slow
def test_an_address_in_a_notice_is_sealed_until_it_is_used(shop_factory: Shop) -> None:
    tell = Tell()
    app = shop_factory(job_types=[tell], keys=f"k1={generate_key()}")
    fill(app, 1)
    notify = Notify(job_type="tell", payload={"to": "ann@shop.example", "text": "{rows} rows"})
    request_report("orders", notify=notify, effects=app)
    assert "ann@" not in str(rows(app, "report_runs"))
    assert b"ann@" not in bytes(rows(app, "report_runs")[0]["notify_sealed"])
    drain(app)
    assert tell.told == [Told(to="ann@shop.example", text="1 rows")]
    with pytest.raises(KeyUnavailable, match=r"notify: .* has sensitive fields \(.*\): EFFECTS_KEYS is not set"):
        request_report("orders", notify=notify, effects=shop_factory(job_types=[Tell()]))


def test_a_request_by_a_job_waits_for_the_key_that_its_notice_needs(shop_factory: Shop) -> None:
    """As of a schedule: the request is right, and only the worker lacks something."""
    app = shop_factory(job_types=[Tell()])
    notify = {"job_type": "tell", "payload": {"to": "ann@shop.example", "text": "ready"}}
    enqueue("report.request", {"report": "orders", "notify": [notify]}, effects=app)
    drain(app)
    [job] = rows(app, "jobs")
    assert (job["status"], job["error_code"]) == ("queued", "waits_for_operator")
    assert "EFFECTS_KEYS is not set" in str(job["last_error"])


@pytest.mark.slow
def test_the_keys_that_notices_need_are_counted_and_rotated(shop_factory: Shop) -> None:
    old, new = f"k1={generate_key()}", f"k2={generate_key()}"
    before = shop_factory(job_types=[Tell()], keys=old)
    fill(before, 1)
    request_report("orders", notify=Notify(job_type="tell", payload={"to": "a@b.example", "text": "x"}), effects=before)
    between = shop_factory(job_types=[Tell()], keys=f"{new},{old}")
    assert [(count.key_id, count.values) for count in count_keys(between.store)] == [("k1", 1)]
    assert rotate(between.store, between.keys, actor="ann").unreadable == []
    tell = Tell()
    after = shop_factory(job_types=[tell], keys=new)
    drain(after)
    assert tell.told == [Told(to="a@b.example", text="x")]


@pytest.mark.slow
def test_a_notice_may_be_for_one_of_them_only(shop_factory: Shop) -> None:
    app = shop_factory(job_types=[Scripted()])
    fill(app, 1)
    notify = Notify(job_type="scripted", payload={"name": "x"}, on=("failed",))
    request_report("orders", notify=notify, effects=app)
    drain(app)
    assert rows(app, "job_history", "job_type = 'scripted'") == []


def test_a_notice_that_could_not_be_enqueued_is_refused_with_the_request(shop_factory: Shop) -> None:
    app = shop_factory(job_types=[Scripted()])
    with pytest.raises(ReportInvalid, match="no job type 'pager'"):
        request_report("orders", notify=Notify(job_type="pager"), effects=app)
    with pytest.raises(ReportInvalid, match="on is"):
        request_report("orders", notify=Notify(job_type="scripted", payload={}, on=("done",)), effects=app)
    assert rows(app, "report_runs") == []


@pytest.mark.slow
def test_a_worker_without_the_definition_leaves_the_run_to_another(shop: Effects, shop_factory: Shop) -> None:
    fill(shop, 5)
    run_id = request_report("orders", effects=shop).run_id
    settlement = ReportWorker(shop_factory(reports=[])).do_next()
    assert (settlement.outcome, settlement.refund_attempt) == ("snoozed", True)
    assert "effects --app" in str(settlement.message)
    shop.store.shift_clock(60)
    drain(shop)
    assert report_status(run_id, effects=shop).state == "ready"


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_a_changed_definition_does_not_mix_with_what_was_planned(
    version: int, shop: Effects, shop_factory: Shop
) -> None:
    """Said by its version, or forgotten there and seen in its columns."""
    fill(shop, 5)
    run_id = request_report("orders", effects=shop).run_id
    ReportWorker(shop).do_next()
    changed = report("orders", key=("id",), version=version)(lambda params: sa.select(orders.c.id))
    drain(shop_factory(reports=[changed]))
    status = report_status(run_id, effects=shop)
    assert (status.state, status.error_code) == ("failed", "definition_changed")
