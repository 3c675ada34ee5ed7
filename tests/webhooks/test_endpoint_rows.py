"""An endpoint's row that someone has altered by SQL: refused, or without harm to the other endpoints."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from effects import Effects
from effects.testing.recorder import Recorder
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from effects_webhooks.admin.endpoints import list_endpoints
from tests.webhooks.conftest import drain

EVENT = WebhookEvent("order.paid", {"id": 1})


def alter(shop: Effects, endpoint_id: str, column: str, value: str) -> None:
    sql = shop.store.sql
    statement = f"UPDATE {sql.webhook_endpoints} SET {column} = {sql.bound('value', 'json')} WHERE id = :id"
    with shop.store.begin() as connection:
        connection.execute(text(statement), {"value": value, "id": endpoint_id})


@pytest.mark.parametrize(
    ("column", "value"),
    [("patterns", "5"), ("patterns", '"order.*"'), ("patterns", "{}"), ("patterns", "null"),
     ("overrides", "[]"), ("overrides", '"429=none"'), ("overrides", "null")],
)  # fmt: skip
def test_what_is_not_of_its_shape_is_refused(shop: Effects, column: str, value: str) -> None:
    endpoint = add_endpoint("https://partner.example/hooks", effects=shop)
    with pytest.raises(IntegrityError, match="ck_effects_webhook_endpoints_json"):
        alter(shop, endpoint.id, column, value)
    assert len(deliver_webhook(EVENT, effects=shop).deliveries) == 1


def test_an_override_that_is_no_text_overrides_nothing(shop: Effects) -> None:
    odd, well = (add_endpoint(f"https://{name}.example/hooks", effects=shop).id for name in ("odd", "well"))
    alter(shop, odd, "overrides", '{"404": 5, "5xx": "short", "429": null}')
    endpoints = {endpoint.id: endpoint.overrides for endpoint in list_endpoints(effects=shop)}
    assert endpoints == {odd: {"5xx": "short"}, well: {}}
    deliver_webhook(EVENT, effects=shop)
    captured = Recorder(shop.job_types).capture("webhook.deliver")
    assert drain(shop) == {"succeeded": 2}
    assert sorted(str(loaded.addressee.overrides) for loaded in captured.loaded) == ["{'5xx': 'short'}", "{}"]


def test_a_pattern_that_is_no_text_is_refused_or_takes_nothing(shop: Effects) -> None:
    odd, well = (add_endpoint(f"https://{name}.example/hooks", effects=shop).id for name in ("odd", "well"))
    if shop.store.is_postgresql:
        with pytest.raises(IntegrityError, match="ck_effects_webhook_endpoints_json"):
            alter(shop, odd, "patterns", '["order.*", 5]')
        return
    alter(shop, odd, "patterns", '[5, null, ["order.*"], {"a": "*"}]')
    assert [delivery.endpoint_id for delivery in deliver_webhook(EVENT, effects=shop).deliveries] == [well]
    assert {endpoint.id: endpoint.patterns for endpoint in list_endpoints(effects=shop)} == {odd: (), well: ("*",)}
