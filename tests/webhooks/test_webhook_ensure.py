"""Endpoints as an app declares them on each deploy: one of each key, whoever declares it how often and at what time."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest
from sqlalchemy.orm import Session

from effects import Effects
from effects_webhooks import (
    EndpointInvalid,
    EnsuredEndpoint,
    add_endpoint,
    disable_endpoint,
    ensure_endpoint,
    get_endpoint,
    list_endpoints,
    list_secrets,
)
from tests.webhooks.conftest import Rows

URL = "https://crm.example/hooks"


def test_the_same_declaration_again_changes_nothing(shop: Effects, rows: Rows) -> None:
    first = ensure_endpoint("crm", URL, ["user.*"], effects=shop)
    assert (first.outcome, first.key, first.url, first.patterns) == ("added", "crm", URL, ("user.*",))
    assert first.secret is not None
    again = ensure_endpoint("crm", URL, ["user.*"], secret="whsec_" + "a" * 32, description="x", effects=shop)
    assert again == EnsuredEndpoint(first.id, "crm", URL, ("user.*",), "unchanged")
    assert [endpoint.key for endpoint in list_endpoints(effects=shop)] == ["crm"]
    assert len(list_secrets(first.id, effects=shop)) == 1
    assert rows("SELECT action FROM effects_audit_log ORDER BY id") == [{"action": "add"}]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"url": "https://crm.example/v2"}, ("url",)),
        ({"patterns": ["user.*", "order.*"]}, ("patterns",)),
        ({"profile": "patient"}, ("profile",)),
        ({"ordering": "endpoint"}, ("ordering",)),
        ({"overrides": {"404": "full"}}, ("overrides",)),
        ({"headers": {"X-Team": "billing"}}, ("headers",)),
        ({"url": "https://crm.example/v3", "ordering": "key", "headers": {"X-A": "b"}}, ("ordering", "url", "headers")),
    ],
    ids=str,
)
def test_a_changed_declaration_is_applied_once(
    shop: Effects, options: dict[str, Any], changed: tuple[str, ...]
) -> None:
    first = ensure_endpoint("crm", URL, effects=shop)
    declared = {"url": URL, **options}
    second = ensure_endpoint("crm", **declared, effects=shop)
    assert (second.id, second.outcome, second.changed, second.secret) == (first.id, "changed", changed, None)
    assert ensure_endpoint("crm", **declared, effects=shop).outcome == "unchanged"
    stored = get_endpoint(first.id, effects=shop)
    for name, value in options.items():
        if name == "headers":
            assert stored.has_headers
        else:
            assert getattr(stored, name) == (tuple(value) if name == "patterns" else value)


def test_omitted_options_keep_their_value(shop: Effects) -> None:
    rules: dict[str, Any] = {"profile": "patient", "overrides": {"404": "full"}, "ordering": "key"}
    first = ensure_endpoint("crm", URL, **rules, headers={"X-Team": "billing"}, effects=shop)
    disable_endpoint(first.id, effects=shop)
    assert ensure_endpoint("crm", URL, effects=shop).outcome == "unchanged"
    stored = get_endpoint(first.id, effects=shop)
    assert (stored.profile, stored.overrides, stored.ordering) == tuple(rules.values())
    assert stored.has_headers
    assert stored.status == "disabled"
    assert ensure_endpoint("crm", URL, headers={}, effects=shop).changed == ("headers",)
    assert not get_endpoint(first.id, effects=shop).has_headers


def test_tenants_have_keys_of_their_own(shop: Effects) -> None:
    first = ensure_endpoint("crm", URL, tenant="a", effects=shop)
    second = ensure_endpoint("crm", URL, tenant="b", effects=shop)
    assert first.id != second.id
    assert (first.same_url, second.same_url) == ((), ())
    assert ensure_endpoint("crm", URL, tenant="a", effects=shop).id == first.id


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", 5, None], ids=str)
def test_a_wrong_key_is_refused(shop: Effects, key: Any) -> None:
    with pytest.raises(EndpointInvalid, match=r"^key "):
        ensure_endpoint(key, URL, effects=shop)


def test_a_rollback_leaves_no_endpoint(shop: Effects) -> None:
    with Session(shop.engine) as session:
        ensure_endpoint("crm", URL, session=session, effects=shop)
        session.rollback()
    assert list_endpoints(effects=shop) == []
    assert ensure_endpoint("crm", URL, effects=shop).outcome == "added"


def test_only_one_of_many_concurrent_calls_adds_it(shop: Effects) -> None:
    """A URL each: whoever comes later changes it, and none is lost or doubled."""
    urls = [f"{URL}/{number}" for number in range(8)]
    outcomes: list[EnsuredEndpoint] = []
    barrier = threading.Barrier(len(urls))

    def ensure(url: str) -> None:
        barrier.wait()
        outcomes.append(ensure_endpoint("crm", url, effects=shop))

    threads = [threading.Thread(target=ensure, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [stored] = list_endpoints(effects=shop)
    assert sorted(outcome.outcome for outcome in outcomes) == ["added", *["changed"] * 7]
    assert {outcome.id for outcome in outcomes} == {stored.id}
    assert stored.url in urls
    assert len(list_secrets(stored.id, effects=shop)) == 1


def test_a_second_endpoint_of_a_url_warns(shop: Effects, caplog: pytest.LogCaptureFixture) -> None:
    """Within a tenant. The URL may hold a token: the log names the ids."""
    caplog.set_level(logging.WARNING)
    first = add_endpoint(URL, effects=shop)
    assert ensure_endpoint("other", URL, tenant="t", effects=shop).same_url == ()
    assert first.same_url == ()
    assert caplog.records == []
    second = add_endpoint(URL, effects=shop)
    third = ensure_endpoint("crm", URL, effects=shop)
    assert (second.same_url, third.same_url) == ((first.id,), (first.id, second.id))
    assert [record.message for record in caplog.records] == ["webhook.same_url"] * 2
    assert URL not in caplog.text
