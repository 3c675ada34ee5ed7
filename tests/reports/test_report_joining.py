"""A second request for a run that is there: whom it names is told too, once, whatever state the run is in."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec
import pytest
import sqlalchemy as sa

from effects import Attempt, Effects, JobType, KeyUnavailable, Sensitive, enqueue
from effects.keys.encryption import generate_key
from effects_reports import Notify, cancel_report, report_status, request_report
from tests.reports.conftest import ReportWorker, Shop, drain
from tests.reports.served import BASE
from tests.reports.shop import fill
from tests.support.manual_workers import row, rows, run_sql
from tests.support.scripted import Scripted

KEY = "orders:2026-01-14"
BOTH = {"ann": 1, "bob": 1}


class Letter(msgspec.Struct):
    to: Annotated[str, Sensitive]


class Post(JobType[Letter]):
    name = "post"
    payload = Letter

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()

    def perform(self, payload: Letter, attempt: Attempt) -> None:
        self.sent[payload.to] += 1


@pytest.fixture
def app(shop_factory: Shop) -> Effects:
    shop = shop_factory(job_types=[Scripted()], keys=f"k={generate_key()}")
    fill(shop, 50)
    return shop


def telling(name: str, **options: Any) -> Notify:
    return Notify(job_type="scripted", payload={"name": name}, **options)


def ask(app: Effects, *notices: Notify, **options: Any) -> str:
    return request_report("orders", key=KEY, notify=notices, effects=app, **options).run_id


def told(app: Effects) -> Counter[str]:
    """How often each was told: jobs that wait, and those that have ended."""
    jobs = [*rows(app, "jobs", "job_type = 'scripted'"), *rows(app, "job_history", "job_type = 'scripted'")]
    payloads = [job["payload"] for job in jobs]
    return Counter((json.loads(each) if isinstance(each, str) else each)["name"] for each in payloads)


@pytest.mark.parametrize(
    ("steps", "state"), [(0, "requested"), (1, "running"), (2, "assembling"), (3, "ready"), (4, "ready")]
)
def test_the_second_who_asks_is_told_too_and_no_one_twice(app: Effects, steps: int, state: str) -> None:
    worker = ReportWorker(app)
    run_id = ask(app, telling("ann"))
    for _ in range(steps):
        worker.do_next()
    assert report_status(run_id, effects=app).state == state
    for _ in range(2):
        assert ask(app, telling("ann"), telling("bob"), telling("bob")) == run_id
    assert told(app) == (BOTH if state == "ready" else {})
    drain(app)
    assert ask(app, telling("bob")) == run_id
    assert told(app) == BOTH


def test_a_notice_is_the_same_again_however_its_numbers_are_stored(app: Effects) -> None:
    notice = Notify(job_type="scripted", payload={"name": "{link}"}, link_to=BASE, link_seconds=3600)
    ask(app, notice)
    ask(app, notice)
    drain(app)
    ask(app, notice)
    assert told(app).total() == 1


def test_what_is_told_late_is_filled_in_from_the_file(app: Effects) -> None:
    ask(app)
    drain(app)
    ask(app, telling("{filename}: {rows} rows, {state}"), telling("late", on=("failed",)))
    assert told(app) == {"orders-2026-01-14.csv: 50 rows, ready": 1}


@pytest.mark.slow
def test_all_who_ask_at_once_are_told(app: Effects) -> None:
    names = [f"visitor {number}" for number in range(12)]
    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(lambda name: ask(app, telling(name)), names * 2))) == 1
    drain(app)
    assert told(app) == dict.fromkeys(names, 1)


def test_a_notice_that_is_rolled_back_is_not_told(app: Effects) -> None:
    ask(app, telling("ann"))
    with app.engine.connect() as connection:
        ask(app, telling("bob"), session=connection)
        connection.rollback()
    drain(app)
    assert told(app) == {"ann": 1}


def test_requests_of_jobs_join_a_run_as_well(app: Effects) -> None:
    for name in ("ann", "bob", "bob"):
        notify = [{"job_type": "scripted", "payload": {"name": name}}]
        enqueue("report.request", {"report": "orders", "key": KEY, "notify": notify}, effects=app)
    drain(app)
    assert told(app) == BOTH


def test_who_asks_after_the_end_gets_a_new_run(app: Effects) -> None:
    first = ask(app, telling("ann"))
    cancel_report(first, effects=app)
    assert ask(app, telling("bob")) != first
    drain(app)
    assert told(app) == {"bob": 1}


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_run_that_ends_while_it_is_joined_gets_a_successor(app: Effects) -> None:
    first = ask(app, telling("ann"))

    def cancelled_meanwhile(connection: sa.Connection, cursor: Any, statement: str, *_: Any) -> None:
        if "FOR NO KEY UPDATE" in statement and not report_status(first, effects=app).ended:
            cancel_report(first, effects=app)

    with app.engine.begin() as connection:
        sa.event.listen(connection, "before_cursor_execute", cancelled_meanwhile)
        second = ask(app, telling("bob"), session=connection)
    assert second != first
    drain(app)
    assert told(app) == {"bob": 1}


def test_joined_notices_are_sealed_with_the_others(shop_factory: Shop) -> None:
    post = Post()
    app = shop_factory(job_types=[Scripted(), post], keys=f"k={generate_key()}")
    fill(app, 5)
    ask(app, telling("ann"))
    ask(app, Notify(job_type="post", payload={"to": "bob@shop.example"}))
    ask(app, telling("cid"))
    assert row(app, "report_runs")["notify"] is None
    assert "bob@" not in str(rows(app, "report_runs"))
    drain(app)
    assert (post.sent, told(app)) == ({"bob@shop.example": 1}, {"ann": 1, "cid": 1})


def test_without_the_key_of_the_notices_that_are_there_a_request_is_refused(shop_factory: Shop) -> None:
    app = shop_factory(job_types=[Scripted(), Post()], keys=f"k={generate_key()}")
    ask(app, Notify(job_type="post", payload={"to": "bob@shop.example"}))
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET queue = 'nobody'")  # planned by nobody: it stays under way
    keyless = shop_factory(job_types=[Scripted(), Post()])
    with pytest.raises(KeyUnavailable, match="does not hold the key 'k'"):
        ask(keyless, telling("ann"))
    notify = [{"job_type": "scripted", "payload": {"name": "ann"}}]
    enqueue("report.request", {"report": "orders", "key": KEY, "notify": notify}, effects=keyless)
    drain(keyless)
    [ended] = rows(keyless, "job_history", "job_type = 'report.request'")
    assert (ended["status"], ended["error_code"]) == ("dead", "KeyUnavailable")
