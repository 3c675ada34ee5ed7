"""`deliver_webhook`: what it refuses, what it writes, and that it is the caller's transaction that decides."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.orm import Session

from effects import Effects, IdempotencyConflict, set_default
from effects_webhooks import (
    EventInvalid,
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    deliver_webhooks,
    disable_endpoint,
)
from effects_webhooks.request import BODY_BYTES_MAX, matches
from tests.webhooks.conftest import Rows, statements

NOON = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TABLES = ("webhook_events", "delivered_webhooks", "jobs")


def counts(rows: Rows) -> tuple[int, ...]:
    return tuple(rows(f"SELECT count(*) AS n FROM effects_{table}")[0]["n"] for table in TABLES)


def endpoint(shop: Effects, *patterns: str, **options: Any) -> str:
    return add_endpoint("http://127.0.0.1:9/", patterns or ("*",), effects=shop, **options).id


# -- the event -----------------------------------------------------------------------------------------------------


def test_the_body_is_compact_utf8_json_in_a_fixed_order() -> None:
    event = WebhookEvent("order.paid", {"b": 1, "a": "Zoë \0", "n": [1.5, None, True]})
    moment = datetime(2026, 11, 21, 14, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=2)))
    assert event.body(moment).decode() == (
        '{"type":"order.paid","timestamp":"2026-11-21T12:00:00.250000Z",'
        '"data":{"b":1,"a":"Zoë \\u0000","n":[1.5,null,true]}}'
    )


def test_later_changes_of_the_dict_change_nothing() -> None:
    data = {"id": 1}
    event = WebhookEvent("order.paid", data)
    data["id"] = 2
    assert json.loads(event.body(NOON))["data"] == {"id": 1}


def test_the_data_is_not_in_the_repr() -> None:
    assert "hunter2" not in repr(WebhookEvent("order.paid", {"password": "hunter2"}))


CYCLE: dict[str, Any] = {}
CYCLE["self"] = CYCLE
DEEP: Any = {}
for _ in range(100_000):
    DEEP = {"d": DEEP}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ([1], "list"),
        ('{"id": 1}', "str"),
        (None, "data is None"),
        ({"a": float("nan")}, "NaN"),
        ({"a": float("inf")}, "data.a: NaN and infinities are not JSON"),
        (CYCLE, "itself"),
        (DEEP, "nested"),
        (Decimal(1), "Decimal"),
        ({"a": object()}, "data.a: object has no JSON form"),
        ({"a": (letter for letter in "hunter2")}, "generator"),
        ({(1, 2): 1}, "keys"),
        ({"a": "\ud800"}, "surrogate"),
    ],
)  # fmt: skip
def test_data_that_is_no_json_object_is_refused_with_a_reason(data: Any, says: str) -> None:
    with pytest.raises(EventInvalid, match=says) as caught:
        WebhookEvent("order.paid", data)
    assert "hunter2" not in str(caught.value)


class Line(msgspec.Struct):
    article: str
    price: Decimal


@dataclass
class Paid:
    id: UUID
    at: datetime
    lines: tuple[Line, ...]


class Customer(pydantic.BaseModel):
    since: date
    credit: Decimal


def test_data_takes_what_an_app_has() -> None:
    paid = Paid(UUID(int=7), NOON, (Line("tea", Decimal("1.10")),))
    customer = Customer(since=date(2026, 1, 2), credit=Decimal("0.50"))
    plain = {
        "id": "00000000-0000-0000-0000-000000000007", "at": "2026-11-21T12:00:00Z",
        "lines": [{"article": "tea", "price": "1.10"}],
    }  # fmt: skip
    by = {"customer": {"since": "2026-01-02", "credit": "0.50"}}
    for data, expected in [
        (paid, plain), (customer, by["customer"]), ({"paid": paid, "customer": customer}, {"paid": plain, **by}),
    ]:  # fmt: skip
        event = WebhookEvent("order.paid", data)
        assert json.loads(event.body(NOON))["data"] == expected
        assert event.canonical() == WebhookEvent("order.paid", expected).canonical()


@pytest.mark.parametrize("name", ["", "order paid", "order..paid", ".order", "order.", "órder", "a" * 129, None, "a\n"])
def test_a_type_is_a_dotted_name(name: Any) -> None:
    with pytest.raises(EventInvalid, match="type"):
        WebhookEvent(name, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [("id", "msg.1"), ("id", ""), ("id", "a b"), ("id", "a" * 101), ("id", "ä"), ("key", ""), ("key", "a" * 256),
     ("key", "a\n"), ("key", "\0"), ("tenant", ""), ("occurred_at", datetime(2026, 1, 1))],  # noqa: DTZ001
)  # fmt: skip
def test_invalid_options_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(EventInvalid, match=field):
        WebhookEvent("order.paid", {}, **{field: value})


def test_a_body_has_256_kib_at_most() -> None:
    room = BODY_BYTES_MAX - len(WebhookEvent("t", {"a": ""}).body(NOON))
    assert len(WebhookEvent("t", {"a": "x" * room}).body(NOON)) == BODY_BYTES_MAX
    with pytest.raises(EventInvalid, match="262,145"):
        WebhookEvent("t", {"a": "x" * (room + 1)}).body(NOON)


@pytest.mark.parametrize(
    ("pattern", "event_type", "fits"),
    [
        ("*", "order.paid", True), ("order.paid", "order.paid", True), ("order.paid", "order.paid.late", False),
        ("order.*", "order.paid", True), ("order.*", "order.item.added", True), ("order.*", "order", False),
        ("order.*", "orders.paid", False), ("order.item.*", "order.paid", False), ("order", "order.paid", False),
    ],
)  # fmt: skip
def test_patterns(pattern: str, event_type: str, fits: bool) -> None:
    assert matches(pattern, event_type) is fits


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), _JSON))
def test_any_json_object_survives_and_has_one_digest(data: dict[str, Any]) -> None:
    event = WebhookEvent("order.paid", data)
    assert json.loads(event.body(NOON))["data"] == data
    assert event.canonical() == WebhookEvent("order.paid", dict(reversed(data.items()))).canonical()


# -- the transaction -------------------------------------------------------------------------------------------------


def test_an_event_becomes_a_row_a_ledger_row_and_a_job_for_each_endpoint(shop: Effects, rows: Rows) -> None:
    paid, everything, _other = endpoint(shop, "order.*"), endpoint(shop), endpoint(shop, "user.*")
    receipt = deliver_webhook(WebhookEvent("order.paid", {"id": 1}), effects=shop)
    assert {delivery.endpoint_id for delivery in receipt.deliveries} == {paid, everything}
    assert not receipt.existing
    assert receipt.event_id.startswith("msg_")
    jobs = rows("SELECT id, job_type, queue, idempotency_key, limit_key FROM effects_jobs ORDER BY id")
    assert [job["id"] for job in jobs] == sorted(receipt.job_ids)
    assert {(job["job_type"], job["queue"]) for job in jobs} == {("webhook.deliver", "webhooks")}
    assert {job["idempotency_key"] for job in jobs} == {
        f"{receipt.event_id}:{endpoint_id}" for endpoint_id in (paid, everything)
    }
    assert {job["limit_key"] for job in jobs} == {f"webhook:{endpoint_id}" for endpoint_id in (paid, everything)}
    ledger = rows("SELECT job_id, state, tries FROM effects_delivered_webhooks ORDER BY job_id")
    assert [(row["job_id"], row["state"], row["tries"]) for row in ledger] == [
        (job["id"], "intended", 0) for job in jobs
    ]


def test_an_event_without_endpoints_is_stored(shop: Effects, rows: Rows) -> None:
    endpoint(shop, "user.*")
    receipt = deliver_webhook(WebhookEvent("order.paid", {}), effects=shop)
    assert receipt.deliveries == ()
    assert counts(rows) == (1, 0, 0)


def test_disabled_endpoints_get_nothing_new(shop: Effects) -> None:
    gone = endpoint(shop)
    disable_endpoint(gone, effects=shop)
    assert deliver_webhook(WebhookEvent("order.paid", {}), effects=shop).deliveries == ()


def test_tenants_do_not_see_each_others_events(shop: Effects) -> None:
    ours, theirs, nobodys = endpoint(shop, tenant="a"), endpoint(shop, tenant="b"), endpoint(shop)
    for tenant, expected in (("a", ours), ("b", theirs), (None, nobodys)):
        receipt = deliver_webhook(WebhookEvent("order.paid", {}, key="same", tenant=tenant), effects=shop)
        assert [delivery.endpoint_id for delivery in receipt.deliveries] == [expected]
        assert not receipt.existing


def test_a_rollback_leaves_nothing(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    with Session(shop.engine) as session:
        deliver_webhook(WebhookEvent("order.paid", {}), session=session, effects=shop)
        deliver_webhooks([WebhookEvent("order.paid", {}, key=str(n)) for n in range(3)], session=session, effects=shop)
        session.rollback()
    with shop.engine.connect() as connection:
        deliver_webhook(WebhookEvent("order.paid", {}), session=connection, effects=shop)
        connection.rollback()
    assert counts(rows) == (0, 0, 0)


def test_a_savepoint_rolled_back_leaves_what_came_before_it(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    with Session(shop.engine) as session, session.begin():
        kept = deliver_webhook(WebhookEvent("order.paid", {"kept": True}), session=session, effects=shop)
        savepoint = session.begin_nested()
        deliver_webhook(WebhookEvent("order.paid", {"kept": False}), session=session, effects=shop)
        savepoint.rollback()
    assert counts(rows) == (1, 1, 1)
    assert rows("SELECT id FROM effects_webhook_events") == [{"id": kept.event_id}]


def test_the_default_app_is_used_without_effects(shop: Effects, rows: Rows) -> None:
    set_default(shop)
    add_endpoint("http://127.0.0.1:9/")
    with Session(shop.engine) as session, session.begin():
        deliver_webhook(WebhookEvent("order.paid", {}), session=session)
    assert counts(rows) == (1, 1, 1)


# -- keys ----------------------------------------------------------------------------------------------------------


def test_the_same_key_gives_the_first_receipt(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    first = deliver_webhook(WebhookEvent("order.paid", {"a": 1, "b": 2}, key="k"), effects=shop)
    endpoint(shop)  # a later endpoint is not part of what the first receipt promised
    again = deliver_webhook(WebhookEvent("order.paid", {"b": 2, "a": 1}, key="k"), effects=shop)
    assert again.existing
    assert (again.event_id, again.deliveries) == (first.event_id, first.deliveries)
    assert counts(rows) == (1, 1, 1)


@pytest.mark.parametrize(("event_type", "data"), [("order.paid", {"a": 2}), ("order.lost", {"a": 1})])
def test_the_same_key_with_another_event_is_a_conflict(
    shop: Effects, rows: Rows, event_type: str, data: dict[str, int]
) -> None:
    endpoint(shop)
    first = deliver_webhook(WebhookEvent("order.paid", {"a": 1}, key="k"), effects=shop)
    with pytest.raises(IdempotencyConflict, match=first.event_id):
        deliver_webhook(WebhookEvent(event_type, data, key="k"), effects=shop)
    assert counts(rows) == (1, 1, 1)


def test_an_id_of_the_callers_own_is_a_key_too(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    assert deliver_webhook(WebhookEvent("order.paid", {"a": 1}, id="mine-1"), effects=shop).event_id == "mine-1"
    assert deliver_webhook(WebhookEvent("order.paid", {"a": 1}, id="mine-1"), effects=shop).existing
    for different in (
        WebhookEvent("order.paid", {"a": 2}, id="mine-1"),
        WebhookEvent("order.paid", {"a": 1}, id="mine-1", key="k"),
        WebhookEvent("order.paid", {"a": 1}, id="mine-1", tenant="t"),
    ):
        with pytest.raises(IdempotencyConflict, match="mine-1"):
            deliver_webhook(different, effects=shop)
    assert counts(rows) == (1, 1, 1)


def test_a_conflict_in_a_batch_undoes_the_batch_and_spares_the_callers_rows(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    deliver_webhook(WebhookEvent("order.paid", {"a": 1}, key="k"), effects=shop)
    with Session(shop.engine) as session, session.begin():
        deliver_webhook(WebhookEvent("order.paid", {"mine": 1}), session=session, effects=shop)
        with pytest.raises(IdempotencyConflict):
            deliver_webhooks(
                [WebhookEvent("order.paid", {}), WebhookEvent("order.paid", {"a": 2}, key="k")],
                session=session,
                effects=shop,
            )
    assert counts(rows) == (2, 2, 2)


def test_a_key_twice_in_one_batch_is_one_event(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    events = [WebhookEvent("order.paid", {"a": 1}, key="k"), WebhookEvent("order.paid", {"a": 1}, key="k"),
              WebhookEvent("order.paid", {"a": 1}, id="i"), WebhookEvent("order.paid", {"a": 1}, id="i")]  # fmt: skip
    receipts = deliver_webhooks(events, effects=shop)
    assert [receipt.existing for receipt in receipts] == [False, True, False, True]
    assert receipts[0].deliveries == receipts[1].deliveries
    assert receipts[2].job_ids == receipts[3].job_ids
    assert counts(rows) == (2, 2, 2)


def test_one_key_from_many_threads_is_one_event(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    barrier = threading.Barrier(8)
    receipts = []

    def send() -> None:
        barrier.wait(20)
        receipts.append(deliver_webhook(WebhookEvent("order.paid", {"a": 1}, key="k"), effects=shop))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(receipt.existing for receipt in receipts) == [False] + [True] * 7
    assert len({(receipt.event_id, receipt.deliveries) for receipt in receipts}) == 1
    assert counts(rows) == (1, 1, 1)


# -- many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, "order:1"])
def test_one_event_takes_three_statements_for_any_number_of_endpoints(
    shop: Effects, rows: Rows, key: str | None
) -> None:
    """The endpoints, the event, its deliveries with their jobs. On SQLite the last takes three."""
    endpoint(shop)
    endpoint(shop)
    sent: list[str] = []
    event.listen(shop.engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    with Session(shop.engine) as session, session.begin():
        deliver_webhook(WebhookEvent("order.paid", {}, key=key), session=session, effects=shop)
    assert len([statement for statement in sent if not statement.startswith("BEGIN")]) == (
        3 if shop.store.is_postgresql else 5
    )
    assert counts(rows) == (1, 2, 2)


def test_many_events_take_few_statements(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    with statements(shop) as seen:
        receipts = deliver_webhooks((WebhookEvent("order.paid", {"n": n}) for n in range(400)), effects=shop)
    assert len({receipt.event_id for receipt in receipts}) == 400
    assert counts(rows) == (400, 400, 400)
    assert len([statement for statement in seen if "effects_" in statement or "sqlite_sequence" in statement]) <= 6


def test_more_than_one_batch_keeps_its_order(shop: Effects, rows: Rows) -> None:
    endpoint(shop)
    endpoint(shop)
    receipts = deliver_webhooks([WebhookEvent("order.paid", {"n": n}) for n in range(1100)], effects=shop)
    bodies = {row["id"]: bytes(row["body"]) for row in rows("SELECT id, body FROM effects_webhook_events")}
    assert [json.loads(bodies[receipt.event_id])["data"]["n"] for receipt in receipts] == list(range(1100))
    assert counts(rows) == (1100, 2200, 2200)


def test_an_empty_list_of_events_does_nothing(shop: Effects) -> None:
    assert deliver_webhooks([], effects=shop) == []
