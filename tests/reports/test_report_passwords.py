"""Files with a password: the right one opens them wherever they go, and the app is asked for it, never the database."""

from __future__ import annotations

import io
import logging
from typing import Any

import openpyxl
import pytest
import sqlalchemy as sa

from effects import Effects, enqueue
from effects_reports import DefinitionInvalid, ReportInvalid, list_reports, report, report_status, request_report
from tests.reports.conftest import ReportWorker, Shop, content, drain
from tests.reports.shop import OrdersParams, fill, orders
from tests.support.aes_archives import opened
from tests.support.manual_workers import rows

SECRET = "tr0ub4dor and three"
ASKED: dict[str, Any] = {}


def password_of(params: OrdersParams, key: str) -> str:
    """As an app would look it up: by whom the report is for."""
    ASKED["last"] = (params, key)
    answer = ASKED["answer"]
    if isinstance(answer, Exception):
        raise answer
    return answer  # type: ignore[no-any-return]


@report(
    "orders", key=("id",), params=OrdersParams, chunk_rows=100, dialect="rfc4180", password=password_of,
    formats=("csv.zip", "xlsx.zip", "ndjson.zip", "parquet.zip", "csv"),
)  # fmt: skip
def secret_orders(params: OrdersParams) -> sa.Select[Any]:
    return sa.select(orders).where(orders.c.id > params.above)


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    ASKED["answer"] = SECRET
    shop = shop_factory(reports=[secret_orders])
    fill(shop, 250)
    return shop


def test_the_file_opens_with_the_password_that_the_app_gives(app: Effects) -> None:
    run_id = request_report("orders", {"above": 50}, key="ann@example.com", effects=app).run_id
    plain_id = request_report("orders", {"above": 50}, format="csv", key="plain", effects=app).run_id
    drain(app)
    status = report_status(run_id, effects=app)
    assert (status.state, status.filename, status.content_type) == (
        "ready",
        "ann-example.com.csv.zip",
        "application/zip",
    )
    assert ASKED["last"] == (OrdersParams(above=50), "ann@example.com")
    assert opened(content(app, run_id), SECRET) == {"orders.csv": content(app, plain_id)}  # no key in the name
    with pytest.raises(RuntimeError, match="password"):
        opened(content(app, run_id), "another one, as long")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_format_is_the_one_in_the_archive(app: Effects) -> None:
    run_ids = {
        name: request_report("orders", format=f"{name}.zip", effects=app).run_id
        for name in ("xlsx", "ndjson", "parquet")
    }
    drain(app)
    files = {name: opened(content(app, run_id), SECRET)[f"orders.{name}"] for name, run_id in run_ids.items()}
    assert openpyxl.load_workbook(io.BytesIO(files["xlsx"])).active.max_row == 251
    assert files["ndjson"].count(b"\n") == 250
    assert files["parquet"].startswith(b"PAR1")


def test_an_assembly_that_is_repeated_gives_the_same_bytes(app: Effects) -> None:
    run_id = request_report("orders", effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(4):
        worker.do_next()  # plan, three chunks
    job = worker.claim_one()
    digests = [worker.perform(job).apply.keywords["artifact"].sha256 for _ in range(2)]
    assert digests[0] == digests[1]
    second_id = request_report("orders", key="another", effects=app).run_id
    worker.do(job)
    drain(app)
    assert content(app, run_id)[:100] != content(app, second_id)[:100]  # another salt


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("short", "has 5 characters; give 12 to 99"), ("x" * 100, "has 100 characters"),
        ("ababababababab", "at least 6"),
        ("pässword-pässword", "printable ASCII"), (None, "must return a text"), (KeyError(SECRET), "raised KeyError"),
    ],
)  # fmt: skip
def test_an_unfit_password_is_refused_at_the_call(app: Effects, answer: Any, words: str) -> None:
    ASKED["answer"] = answer
    with pytest.raises(ReportInvalid, match=words) as failure:
        request_report("orders", effects=app)
    if isinstance(answer, str):
        assert answer not in str(failure.value)
    assert SECRET not in repr(failure.value)
    assert rows(app, "report_runs") == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_password_that_is_gone_later_is_asked_for_again(app: Effects) -> None:
    run_id = request_report("orders", effects=app).run_id
    worker = ReportWorker(app)
    for _ in range(4):
        worker.do_next()
    ASKED["answer"] = ConnectionError(SECRET)
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("failed", "no_password")
    assert SECRET not in str(settlement)
    ASKED["answer"] = SECRET
    app.store.shift_clock(3600)
    assert worker.do(worker.claim_one()).outcome == "succeeded"
    assert opened(content(app, run_id), SECRET).keys() == {"orders.csv"}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_request_by_a_job_waits_for_the_password(app: Effects) -> None:
    """A secret store that is away takes no slot of a schedule with it."""
    enqueue("report.request", {"report": "orders"}, effects=app)
    worker = ReportWorker(app)
    ASKED["answer"] = ConnectionError(SECRET)
    settlement = worker.do(worker.claim_one())
    assert (settlement.status, settlement.error_code) == ("failed", "no_password")
    ASKED["answer"] = SECRET
    app.store.shift_clock(3600)
    drain(app)
    [run] = list_reports(effects=app)
    assert run.state == "ready"


def test_the_password_is_nowhere(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    request_report("orders", effects=app)
    drain(app)
    for name in (
        "report_runs",
        "report_chunks",
        "generated_reports",
        "jobs",
        "job_history",
        "attempt_log",
        "audit_log",
    ):
        assert SECRET not in str(rows(app, name))
    assert SECRET not in caplog.text
    assert SECRET not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"formats": ("csv.zip",)}, "csv.zip needs password="),
        ({"formats": ("csv.zip",), "password": SECRET}, "csv.zip needs password="),
        ({"password": password_of}, "formats has none of csv.zip"),
        ({"formats": ("csv.gz.zip",), "password": password_of}, "formats holds csv.gz.zip"),
    ],
)
def test_a_wrong_definition_is_refused(shop_factory: Shop, options: dict[str, Any], words: str) -> None:
    definition = report("other", key=("id",), **options)(lambda params: sa.select(orders))
    with pytest.raises(DefinitionInvalid, match=words) as failure:
        shop_factory(reports=[definition])
    assert SECRET not in str(failure.value)
