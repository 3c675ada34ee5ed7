"""Ordered endpoints get events in the order of their transactions, however many endpoints want one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.orm import Session

from effects import Done, Effects, Outcome, Snooze
from effects.operate.tables.audit import audit
from effects_webhooks import (
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    deliver_webhooks,
    disable_endpoint,
    jobs,
    replay_event,
    writing,
)
from tests.peers.http import Receiver
from tests.support.manual_workers import ManualWorker
from tests.support.sampling import is_full
from tests.webhooks.conftest import Rows, drain, statements

NOWHERE = "http://127.0.0.1:9/"
CREATED, CANCELLED = "order.created", "order.cancelled"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than two unordered endpoints are many, and a page has two."""
    monkeypatch.setattr(writing, "FAN_OUT_ABOVE", 2)
    monkeypatch.setattr(jobs, "BATCH", 2)


def add_many(shop: Effects, url: str = NOWHERE, *, size: int = 3, **options: Any) -> None:
    """So many unordered endpoints for `order.created` that its deliveries are made by a job."""
    for _ in range(size):
        add_endpoint(url, [CREATED], effects=shop, **options)


def received(receiver: Receiver, path: str) -> list[str]:
    return [json.loads(request.body)["type"] for request in receiver.requests if request.path == path]


def endpoints_of(rows: Rows, event_id: str) -> set[str]:
    delivered = rows("SELECT endpoint_id FROM effects_delivered_webhooks WHERE event_id = :id", id=event_id)
    return {row["endpoint_id"] for row in delivered}


# -- the order -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_event_that_many_want_comes_before_the_next(shop: Effects) -> None:
    with Receiver() as receiver:
        ordered = add_endpoint(f"{receiver.url}/ordered", ordering="endpoint", effects=shop)
        add_many(shop, receiver.url, size=101)
        created = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
        cancelled = deliver_webhook(WebhookEvent(CANCELLED, {}), effects=shop)
        assert [delivery.endpoint_id for delivery in created.deliveries] == [ordered.id]
        assert created.fan_out_job_id is not None
        assert not created.unwanted
        assert (len(cancelled.deliveries), cancelled.fan_out_job_id) == (1, None)
        assert drain(shop) == {"succeeded": 1 + 101 + 1 + 1}
        assert received(receiver, "/webhooks/ordered") == [CREATED, CANCELLED]
    assert audit(shop.store, shop.ledgers) == []


class Partner(NamedTuple):
    ordering: Any  # none, endpoint or key
    pattern: str

    def takes(self, event: WebhookEvent) -> bool:
        return self.pattern in ("*", event.type)

    def group(self, event: WebhookEvent) -> str | None:
        """The events among which this partner is promised an order; None for one that comes at any time."""
        if self.ordering == "endpoint":
            return "all"
        return event.ordering_key if self.ordering == "key" else None


PARTNERS = st.lists(
    st.builds(Partner, st.sampled_from(["none", "endpoint", "key"]), st.sampled_from(["*", "a", "b"])),
    min_size=3, max_size=9,
)  # fmt: skip
CALLS = st.lists(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([None, "x", "y"])), min_size=1, max_size=3),
    min_size=2, max_size=4,
)  # fmt: skip
_tenants = (f"tenant{number}" for number in count())


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@settings(
    max_examples=100 if is_full() else 12,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example has a tenant of its own
)
@given(PARTNERS, CALLS, st.data())
def test_ordered_endpoints_get_all_events_in_the_order_of_their_transactions(
    shop: Effects, partners: list[Partner], calls: list[list[tuple[str, str | None]]], data: st.DataObject
) -> None:
    tenant, numbers = next(_tenants), count()
    with Receiver() as receiver:
        for number, partner in enumerate(partners):
            add_endpoint(
                f"{receiver.url}/{number}", [partner.pattern], ordering=partner.ordering, tenant=tenant, effects=shop
            )
        events = []
        for call in calls:
            written = [_event(event_type, next(numbers), key, tenant) for event_type, key in call]
            deliver_webhooks(written, effects=shop)
            events += written
            if data.draw(st.booleans()):
                drain(shop)
        drain(shop)
        for number, partner in enumerate(partners):
            _check(partner, events, _numbers(receiver, f"/webhooks/{number}"))


def _event(event_type: str, number: int, ordering_key: str | None, tenant: str) -> WebhookEvent:
    return WebhookEvent(event_type, {"n": number}, ordering_key=ordering_key, tenant=tenant)


def _numbers(receiver: Receiver, path: str) -> list[int]:
    return [json.loads(request.body)["data"]["n"] for request in receiver.requests if request.path == path]


def _check(partner: Partner, events: Sequence[WebhookEvent], got: Sequence[int]) -> None:
    expected = [number for number, event in enumerate(events) if partner.takes(event)]
    assert sorted(got) == expected
    for group in {partner.group(events[number]) for number in expected} - {None}:
        of_group = [number for number in got if partner.group(events[number]) == group]
        assert of_group == sorted(of_group)


# -- what the job is left with -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("ordering", "ordering_key", "is_at_once"),
    [("endpoint", None, True), ("endpoint", "x", True), ("key", "x", True), ("key", None, False), ("none", "x", False)],
)
def test_only_ordered_deliveries_are_written_with_an_event_that_many_want(
    shop: Effects, rows: Rows, ordering: Any, ordering_key: str | None, is_at_once: bool
) -> None:
    add_many(shop)
    endpoint = add_endpoint(NOWHERE, ordering=ordering, effects=shop)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}, ordering_key=ordering_key), effects=shop)
    assert [delivery.endpoint_id for delivery in receipt.deliveries] == ([endpoint.id] if is_at_once else [])
    assert endpoints_of(rows, receipt.event_id) == ({endpoint.id} if is_at_once else set())
    drain(shop)
    assert len(endpoints_of(rows, receipt.event_id)) == 4


@pytest.mark.usefixtures("small")
def test_many_ordered_endpoints_need_no_job(shop: Effects) -> None:
    add_many(shop, ordering="endpoint", size=5)
    add_many(shop, size=2)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
    assert (len(receipt.deliveries), receipt.fan_out_job_id) == (7, None)


@pytest.mark.usefixtures("small")
def test_a_repeat_of_the_call_writes_nothing_more(shop: Effects, rows: Rows) -> None:
    ordered = add_endpoint(NOWHERE, ordering="endpoint", effects=shop)
    add_many(shop)
    first = deliver_webhook(WebhookEvent(CREATED, {}, id="mine"), effects=shop)
    again = deliver_webhook(WebhookEvent(CREATED, {}, id="mine"), effects=shop)
    assert (again.existing, again.deliveries, again.fan_out_job_id) == (True, first.deliveries, None)
    assert len(rows("SELECT id FROM effects_jobs")) == 2
    drain(shop)
    late = deliver_webhook(WebhookEvent(CREATED, {}, id="mine"), effects=shop)
    assert len(late.deliveries) == 4
    assert [delivery for delivery in late.deliveries if delivery.endpoint_id == ordered.id] == list(first.deliveries)


@pytest.mark.usefixtures("small")
def test_a_replay_before_the_job_leaves_one_delivery_to_each_endpoint(shop: Effects, rows: Rows) -> None:
    add_endpoint(NOWHERE, ordering="endpoint", effects=shop)
    add_many(shop)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
    manual_worker = ManualWorker(shop, queue="webhooks")
    endings: dict[str, Outcome] = {"webhook.deliver": Done(), "webhook.fan_out": Snooze(5)}
    manual_worker.settle(*((job, endings[job.job_type]) for job in manual_worker.claim()))
    assert len(replay_event(receipt.event_id, actor="ann", confirm_done=True, effects=shop).jobs) == 1
    shop.store.shift_clock(10)
    drain(shop)
    assert len(endpoints_of(rows, receipt.event_id)) == 4
    assert len(rows("SELECT id FROM effects_jobs WHERE job_type = 'webhook.deliver'")) == 4
    assert audit(shop.store, shop.ledgers) == []


# -- endpoints that change before the job runs ---------------------------------------------------------------------


@pytest.mark.usefixtures("small")
def test_an_ordered_endpoint_whose_transaction_commits_later_gets_no_earlier_event(shop: Effects, rows: Rows) -> None:
    add_many(shop)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
    add_endpoint(NOWHERE, ordering="endpoint", effects=shop)
    with shop.store.begin() as connection:  # as if it had begun before
        connection.execute(
            text(
                "UPDATE effects_webhook_endpoints SET created_at = e.created_at, updated_at = e.created_at "
                "FROM effects_webhook_events AS e WHERE ordering = 'endpoint'"
            )
        )
    drain(shop)
    assert len(endpoints_of(rows, receipt.event_id)) == 3


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_an_endpoint_that_is_younger_than_the_apps_transaction_gets_its_event(shop: Effects, rows: Rows) -> None:
    """It was there as the event was written, whose transaction had begun earlier."""
    add_many(shop)
    with Session(shop.engine) as session, session.begin():
        session.execute(text("SELECT 1"))
        younger = add_endpoint(NOWHERE, effects=shop)
        receipt = deliver_webhook(WebhookEvent(CREATED, {}), session=session, effects=shop)
    drain(shop)
    assert younger.id in endpoints_of(rows, receipt.event_id)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("size", [3, 4], ids=["one page", "two pages"])
def test_an_endpoint_that_becomes_ordered_misses_nothing(shop: Effects, rows: Rows, size: int) -> None:
    add_many(shop, size=size)
    changed = add_endpoint(NOWHERE, effects=shop)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
    change_endpoint(changed.id, ordering="endpoint", effects=shop)
    drain(shop)
    assert changed.id in endpoints_of(rows, receipt.event_id)
    assert len(endpoints_of(rows, receipt.event_id)) == size + 1


@pytest.mark.usefixtures("small")
def test_a_disabled_ordered_endpoint_gets_nothing_of_an_event_that_many_want(shop: Effects, rows: Rows) -> None:
    disabled, active = (add_endpoint(NOWHERE, ordering="endpoint", effects=shop).id for _ in range(2))
    disable_endpoint(disabled, effects=shop)
    add_many(shop)
    receipt = deliver_webhook(WebhookEvent(CREATED, {}), effects=shop)
    drain(shop)
    assert [delivery.endpoint_id for delivery in receipt.deliveries] == [active]
    assert len(endpoints_of(rows, receipt.event_id) - {disabled}) == 4


# -- what it costs -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ordered", [1, 20])
def test_an_event_that_many_want_takes_few_statements_however_many_are_ordered(shop: Effects, ordered: int) -> None:
    """The endpoints, the event, the groups, the ordered deliveries with their jobs, the job; on SQLite two more."""
    add_many(shop, ordering="endpoint", size=ordered)
    add_many(shop)
    with Session(shop.engine) as session, session.begin(), statements(shop) as seen:
        receipt = deliver_webhook(WebhookEvent(CREATED, {}), session=session, effects=shop)
    assert len(receipt.deliveries) == ordered
    assert receipt.fan_out_job_id is not None
    assert len([statement for statement in seen if "effects_" in statement]) == (5 if shop.store.is_postgresql else 7)
