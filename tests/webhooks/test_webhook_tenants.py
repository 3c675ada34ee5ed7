"""Tenants: none reaches another's endpoints by their ids, and no event goes to another's endpoint."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import pkgutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import text

import effects_webhooks
from effects import Effects, IdempotencyConflict
from effects.store.queue import cancellation
from effects.worker import Worker
from effects_webhooks import (
    ANY_TENANT,
    EndpointInvalid,
    EndpointNotFound,
    EventNotFound,
    NewEndpoint,
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    list_endpoints,
    list_secrets,
    recover,
    replay_event,
    rotate_secret,
)
from tests.peers.http import Receiver
from tests.webhooks.conftest import Rows, statements

URL = "http://127.0.0.1:9/"
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
NUMBERS = itertools.count()
IDS = ("endpoint_id", "event_id", "secret_id")
SENDERS = {"deliver_webhook", "deliver_webhooks"}  # an event names its tenant itself


def app_calls() -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public functions of every module of the package that work on an Effects."""
    for module in pkgutil.walk_packages(effects_webhooks.__path__, "effects_webhooks."):
        if ".migrations" in module.name:
            continue
        for name, function in vars(importlib.import_module(module.name)).items():
            own = inspect.isfunction(function) and function.__module__ == module.name
            own = own and not inspect.iscoroutinefunction(function)  # these call the plain ones
            if own and not name.startswith("_") and "effects" in inspect.signature(function).parameters:
                yield name, function


CALLS = dict(app_calls())
BY_ID = sorted(name for name, function in CALLS.items() if set(IDS) & set(inspect.signature(function).parameters))
# What else a call needs, beside ids and tenant.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cancel_delivery": {"actor": "ann"},
    "change_endpoint": {"description": None, "patterns": ["taken.over"], "headers": {"x-team": "b"}},
    "ensure_endpoint": {"key": "crm"},
    "recover": {"actor": "ann", "since": LONG_AGO},
    "replay_delivery": {"actor": "ann"},
    "replay_event": {"actor": "ann"},
}


def owned_by(shop: Effects, tenant: str | None) -> dict[str, str]:
    """An endpoint of this tenant with two secrets and a delivery that was cancelled, by the names of their ids."""
    event_type = f"order.n{next(NUMBERS)}"
    endpoint = add_endpoint(URL, [event_type], tenant=tenant, effects=shop)
    rotate_secret(endpoint.id, tenant=tenant, effects=shop)
    receipt = deliver_webhook(WebhookEvent(event_type, {}, tenant=tenant), effects=shop)
    cancellation.cancel(shop.store, shop.ledgers, receipt.job_ids[0], actor="test")
    return {
        "endpoint_id": endpoint.id,
        "event_id": receipt.event_id,
        "secret_id": list_secrets(endpoint.id, tenant=tenant, effects=shop)[-1].id,
    }


def call(name: str, shop: Effects, ids: dict[str, str], **options: Any) -> Any:
    function = CALLS[name]
    parameters = inspect.signature(function).parameters
    arguments = {**ARGUMENTS.get(name, {}), **ids, **options, "effects": shop}
    return function(**{key: value for key, value in arguments.items() if key in parameters})


def everything(shop: Effects) -> list[list[tuple[Any, ...]]]:
    """Every row of every table that such a call may write."""
    tables = [
        name
        for name in shop.store.tables
        if name.startswith("webhook") or name in ("jobs", "job_history", "limits", "job_actions", "delivered_webhooks")
    ]
    with shop.store.read() as connection:
        return [
            sorted(tuple(map(str, row)) for row in connection.execute(shop.store.tables[name].select()))
            for name in tables
        ]


def refused(name: str, shop: Effects, ids: dict[str, str], tenant: str | None) -> tuple[str, list[str]]:
    """The words of the refusal, with the kind of each id in its place, and the statements that were sent."""
    with statements(shop) as sent, pytest.raises((EndpointNotFound, EventNotFound)) as caught:
        call(name, shop, ids, tenant=tenant)
    words = str(caught.value)
    for kind, value in ids.items():
        words = words.replace(value, kind)
    return words, sent


def test_every_call_names_a_tenant() -> None:
    assert {"get_endpoint", "expire_secret", "replay_event", "recover", "send_test"} <= set(BY_ID)
    assert set(CALLS) >= {*SENDERS, "list_endpoints", "add_endpoint"}
    for name in CALLS.keys() - SENDERS:
        parameter = inspect.signature(CALLS[name]).parameters["tenant"]
        assert (name, parameter.default) == (name, None)  # a forgotten one reaches no tenant's rows
        assert parameter.kind is parameter.KEYWORD_ONLY, name


def test_another_tenants_id_is_not_found_in_the_same_words_by_the_same_statements(shop: Effects) -> None:
    owners: dict[str | None, dict[str, str]] = {tenant: owned_by(shop, tenant) for tenant in ("ann", "bob", None)}
    before = everything(shop)
    for name, (owner, ids) in itertools.product(BY_ID, owners.items()):
        missing = {kind: "none_" + value[5:] for kind, value in ids.items()}
        for caller in owners.keys() - {owner}:
            assert (name, refused(name, shop, ids, caller)) == (name, refused(name, shop, missing, caller))
    assert everything(shop) == before


def test_a_taken_event_id_does_not_reveal_whose_it_is(shop: Effects) -> None:
    for tenant in ("ann", "bob"):
        deliver_webhook(WebhookEvent("order.paid", {"n": tenant}, id=f"order-{tenant}", tenant=tenant), effects=shop)
    words = []
    for taken in ("ann", "bob"):
        event = WebhookEvent("order.paid", {}, id=f"order-{taken}", tenant="ann")
        with pytest.raises(IdempotencyConflict) as caught:
            deliver_webhook(event, effects=shop)
        words.append(str(caught.value).replace(taken, "…"))
    assert words[0] == words[1]


@pytest.mark.slow
def test_its_tenant_and_the_operator_have_access(shop: Effects) -> None:
    for name in BY_ID:
        call(name, shop, owned_by(shop, "ann"), tenant="ann")
        call(name, shop, owned_by(shop, None), tenant=None)
        call(name, shop, owned_by(shop, "ann"), tenant=ANY_TENANT)


def test_an_empty_or_odd_tenant_never_means_no_tenant(shop: Effects) -> None:
    ids = dict.fromkeys(IDS, "x")
    for name, tenant in itertools.product(sorted(CALLS.keys() - SENDERS), ["", "a\nb", "x" * 256, 0]):
        with pytest.raises(EndpointInvalid, match="tenant"):
            call(name, shop, ids, tenant=tenant, url=URL)


def test_a_list_is_of_all_of_one_tenant_or_of_none(shop: Effects) -> None:
    by_owner = {tenant: add_endpoint(URL, tenant=tenant, effects=shop).id for tenant in ("ann", "bob", None)}
    assert {endpoint.id for endpoint in list_endpoints(tenant=ANY_TENANT, effects=shop)} == set(by_owner.values())
    for tenant, endpoint_id in by_owner.items():
        assert [endpoint.id for endpoint in list_endpoints(tenant=tenant, effects=shop)] == [endpoint_id]


# -- pairs of ids in rows ------------------------------------------------------------------------------------------


def plant(shop: Effects, job_type: str, payload: dict[str, str]) -> None:
    """What a role with INSERT on the jobs, and nothing else, may write."""
    with shop.store.begin() as connection:
        connection.execute(
            text("INSERT INTO effects_jobs (job_type, payload) VALUES (:job_type, :payload)"),
            {"job_type": job_type, "payload": json.dumps(payload)},
        )


def test_a_planted_pair_of_two_tenants_is_refused_and_nothing_is_sent(shop: Effects, rows: Rows) -> None:
    with Receiver() as receiver:
        endpoints: dict[str | None, NewEndpoint] = {
            tenant: add_endpoint(f"{receiver.url}/{tenant}", ["none.such"], tenant=tenant, effects=shop)
            for tenant in ("ann", "bob", None)
        }
        pairs = [(event, endpoint) for event in endpoints for endpoint in endpoints]
        for event_tenant, endpoint_tenant in pairs:
            receipt = deliver_webhook(
                WebhookEvent("secret.of", {"o": str(event_tenant)}, tenant=event_tenant), effects=shop
            )
            plant(
                shop,
                "webhook.deliver",
                {"event_id": receipt.event_id, "endpoint_id": endpoints[endpoint_tenant].id},
            )
        assert Worker(shop).drain(max_seconds=50).counts == {"succeeded": 3, "dead": 6}
        for request in receiver.requests:  # each only to its own
            assert request.path.endswith("/" + json.loads(request.body)["data"]["o"])
        assert len(receiver.requests) == 3
    attempts = rows("SELECT outcome, error_code FROM effects_job_attempts WHERE outcome <> 'succeeded'")
    assert attempts == [{"outcome": "refused", "error_code": "tenant_mismatch"}] * 6


def test_a_planted_fan_out_reaches_the_events_own_tenant_only(shop: Effects, rows: Rows) -> None:
    receipt = deliver_webhook(WebhookEvent("order.paid", {}, tenant="ann"), effects=shop)
    for tenant in ("bob", None):
        add_endpoint(URL, tenant=tenant, effects=shop)
    with shop.store.begin() as connection:  # as if they had been there
        connection.execute(text("UPDATE effects_webhook_endpoints SET created_at = :old"), {"old": old(shop)})
    plant(shop, "webhook.fan_out", {"event_id": receipt.event_id})
    assert Worker(shop).drain(max_seconds=50).counts == {"succeeded": 1}
    assert rows("SELECT * FROM effects_delivered_webhooks") == []


def old(shop: Effects) -> Any:
    return LONG_AGO if shop.store.is_postgresql else int(LONG_AGO.timestamp() * 1000)


def test_a_delivery_that_pairs_two_tenants_cannot_be_replayed(shop: Effects, rows: Rows) -> None:
    ann, bob = owned_by(shop, "ann"), owned_by(shop, "bob")
    with shop.store.begin() as connection:  # a row written by a fault of ours, or by hand
        connection.execute(
            text("UPDATE effects_delivered_webhooks SET endpoint_id = :theirs WHERE event_id = :event"),
            {"theirs": bob["endpoint_id"], "event": ann["event_id"]},
        )
    with pytest.raises(EventNotFound):
        replay_event(ann["event_id"], actor="ann", tenant="ann", effects=shop)
    with pytest.raises(EventNotFound):
        replay_event(ann["event_id"], actor="bob", tenant="bob", effects=shop)
    replayed = recover(bob["endpoint_id"], since=LONG_AGO, actor="bob", tenant="bob", effects=shop)
    assert len(replayed.jobs) == 1  # bob's own
    assert rows("SELECT payload FROM effects_jobs") != []
