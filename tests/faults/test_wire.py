"""The wire to PostgreSQL is cut at every place where something becomes durable, before it does and after.

In both cases the client sees the same error. No effect is lost or doubled, and the worker goes on by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, get_args

import pytest

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.errors import StoreUnavailable
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.peers.http import Receiver
from tests.peers.proxy import Cut, Proxy, When
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.running import Running, running
from tests.support.sampling import sample
from tests.support.step_jobs import StepJob, step_jobs_app
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

WHENS = get_args(When)
OPTIONS: dict[str, Any] = {
    "lease_seconds": 3.0, "heartbeat_seconds": 0.3, "poll_seconds": 0.1, "time_limit_seconds": 2.0,
}  # fmt: skip
TWICE = ("lost", "succeeded")


@dataclass(frozen=True)
class Site:
    """A place where the worker writes: the SQL to know it by, a job that leads there, how its attempts read then."""

    name: str
    marker: str
    in_transaction: bool
    prepare: Callable[[Effects, StubServer], None]
    before: tuple[str, ...] = ("succeeded",)
    after: tuple[str, ...] = ("succeeded",)

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def _one(kind: str = "step_job", *steps: str, **options: Any) -> Callable[[Effects, StubServer], None]:
    def prepare(app: Effects, stub_server: StubServer) -> None:
        enqueue(kind, StepJob("one", stub_server.port, steps or ("do",)), effects=app, **options)

    return prepare


def _busy(app: Effects, stub_server: StubServer) -> None:
    stub_server.busy["one"] = 1
    _one()(app, stub_server)


def _lost(app: Effects, stub_server: StubServer) -> None:
    _one(key="k")(app, stub_server)
    ManualWorker(app, "gone").claim_one()
    run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-3600')}")


def _inserted(app: Effects, stub_server: StubServer) -> None:
    """By a plain INSERT, so that its intent is written by the worker."""
    run_sql(
        app,
        "INSERT INTO effects_jobs (job_type, payload, idempotency_key) "
        "VALUES ('step_job', CAST(:payload AS jsonb), 'k')",
        payload=f'{{"name": "one", "port": {stub_server.port}}}',
    )


TAKE, END = "status = 'running', attempts", "DELETE FROM public.effects_jobs AS j"
SITES = [
    Site("register", "INSERT INTO public.effects_workers", False, _one()),
    Site("claim plain", TAKE, False, _one()),
    Site("claim limited", TAKE, True, _one(limit_key="l")),
    Site("claim grouped", TAKE, True, _one(group_key="g")),
    Site("adopt", "INSERT INTO public.effects_effect_ledger", True, _inserted),
    Site("heartbeat", "UPDATE public.effects_workers SET seen_at", False, _one()),
    Site("release", "SET released_at", False, _one("step_job.held", "release", "do", key="k")),
    Site("settle alone", END, False, _one()),
    Site("settle with ledger", END, True, _one(key="k")),
    Site("settle with apply", END, True, _one("step_job", "do", "follow")),
    Site("settle again", "status = r.status", True, _busy, ("failed", "succeeded"), ("failed", "succeeded")),
    Site("rescue", "AS overdue", True, _lost, TWICE, TWICE),
]  # fmt: skip


@pytest.fixture
def direct(database_url: str) -> Iterator[Effects]:
    step_app = step_jobs_app(database_url, **OPTIONS)
    yield step_app
    step_app.dispose()


@pytest.mark.parametrize(("site", "when"), sample(product(SITES, WHENS), 14), ids=str)
def test_a_cut_connection_does_not_end_the_worker(
    site: Site, when: When, direct: Effects, proxy: Proxy, stub_server: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    site.prepare(direct, stub_server)
    with _worker(proxy) as worker:
        proxy.arm(Cut(site.marker, when, site.in_transaction))
        worker.start()
        wait_until(lambda: proxy.cuts)
        wait_until(lambda: not rows(direct, "jobs"))
    assert stub_server.done.count("one") == 1
    assert stub_server.done.count("one-then") == (site.name == "settle with apply")
    first = min(row["id"] for row in rows(direct, "job_history"))
    outcomes = [row["outcome"] for row in rows(direct, "job_attempts", "job_id = :first", first=first)]
    assert tuple(outcomes) == getattr(site, when)
    assert {row["status"] for row in rows(direct, "job_history")} == {"succeeded"}
    assert audit(direct.store, direct.ledgers) == []
    _assert_calm(caplog)


def test_a_claim_without_an_answer_goes_back_and_what_runs_does_not(
    direct: Effects, proxy: Proxy, stub_server: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPTIONS, "time_limit_seconds", 60.0)  # what runs is held for as long as the rest takes
    stub_server.hold("slow")
    enqueue("step_job", StepJob("slow", stub_server.port, ("ask", "do")), effects=direct)
    with _worker(proxy) as worker:
        worker.start()
        stub_server.wait_asked("slow")
        proxy.arm(Cut(TAKE, "after", False))
        enqueue_many(
            [NewJob(job_type="step_job", payload=StepJob(f"{n}", stub_server.port)) for n in range(5)], effects=direct
        )
        wait_until(lambda: len(stub_server.done) >= 5)
        stub_server.open("slow")
        wait_until(lambda: not rows(direct, "jobs"))
    assert proxy.cuts == 1
    assert sorted(stub_server.done) == ["0", "1", "2", "3", "4", "slow"]
    assert [row["outcome"] for row in rows(direct, "job_attempts")] == ["succeeded"] * 6
    assert {(row["attempts"], row["lost_count"], row["queue"]) for row in rows(direct, "job_history")} == {
        (1, 0, "default")
    }


@pytest.mark.parametrize("when", WHENS)
def test_a_cut_connection_while_the_worker_stops(
    when: When, direct: Effects, proxy: Proxy, stub_server: StubServer
) -> None:
    _one()(direct, stub_server)
    with _worker(proxy) as worker:
        worker.start()
        wait_until(lambda: rows(direct, "job_history"))
        proxy.arm(Cut("DELETE FROM public.effects_workers WHERE id", when, False))
    assert proxy.cuts == 1
    assert len(rows(direct, "workers")) == (when == "before")  # a row that is left behind is found by the next rescue
    run_sql(direct, f"UPDATE {direct.store.sql.workers} SET seen_at = {direct.store.sql.after('-3600')}")
    Worker(direct).drain()
    assert rows(direct, "workers") == []


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("key", [None, "order:1"])
def test_an_enqueue_that_was_cut_may_be_repeated_by_its_key(
    key: str | None, when: When, direct: Effects, proxy: Proxy, stub_server: StubServer
) -> None:
    job = NewJob(job_type="step_job", payload=StepJob("one", stub_server.port), key=key)
    with _through(proxy) as app:
        proxy.arm(Cut("INSERT INTO public.effects_jobs", when, True))
        with pytest.raises(StoreUnavailable):
            enqueue_many([job], effects=app)
        assert len(rows(direct, "jobs")) == (when == "after")
        if key is not None:
            [receipt] = enqueue_many([job], effects=app)
            assert receipt.existing is (when == "after")
            assert len(rows(direct, "jobs")) == 1
    Worker(direct).drain()
    assert stub_server.done.count("one") == (1 if key is not None or when == "after" else 0)


@pytest.mark.parametrize("when", WHENS)
def test_an_event_that_was_cut_may_be_repeated_by_its_key(when: When, database_url: str, proxy: Proxy) -> None:
    options: dict[str, Any] = {"keys": f"k1={generate_key()}", "allow_private_addresses": True}
    shop, through = Effects(database_url, **options), Effects(proxy.url, **options)
    event = WebhookEvent("order.paid", {"n": 1}, key="order:1:paid")
    with Receiver() as first, Receiver() as second:
        for receiver in (first, second):
            add_endpoint(receiver.url, effects=shop)
        proxy.arm(Cut("INSERT INTO public.effects_webhook_events", when, True))
        with pytest.raises(StoreUnavailable):
            deliver_webhook(event, effects=through)
        assert len(rows(shop, "delivered_webhooks")) == (2 if when == "after" else 0)
        receipt = deliver_webhook(event, effects=through)
        assert receipt.existing is (when == "after")
        Worker(shop).drain()
        assert [request.message_id for request in first.requests + second.requests] == [receipt.event_id] * 2
    assert audit(shop.store, shop.ledgers) == []
    for app in (shop, through):
        app.dispose()


@contextmanager
def _through(proxy: Proxy) -> Iterator[Effects]:
    app = step_jobs_app(proxy.url, **OPTIONS)
    try:
        yield app
    finally:
        app.dispose()


@contextmanager
def _worker(proxy: Proxy) -> Iterator[Running]:
    """A worker behind the proxy; at the end it is told to stop and must do so in order."""
    with _through(proxy) as app, running(Worker(app), start=False) as worker:
        yield worker


def _assert_calm(caplog: pytest.LogCaptureFixture) -> None:
    """No error, no traceback, and of the outage at most one line."""
    assert [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info] == []
    assert len([record for record in caplog.records if record.getMessage() == "database.away"]) <= 1
