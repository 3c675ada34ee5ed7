"""An empty name identifies no one: an empty principal, tenant, key or secret is refused where it enters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, EffectsError, enqueue
from effects.keys.signing import verify
from effects_email import send_templated_email
from effects_reports import ReportInvalid, download_url, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, list_endpoints, rotate_secret
from tests.conftest import AppFactory
from tests.support.effect_states import effects_app
from tests.support.manual_workers import everything

URL = "https://partner.example/in"
SIGNED = {"webhook-id": "msg_1", "webhook-timestamp": "1", "webhook-signature": "v1,AAAA"}
# Every public call that takes a name.
CALLS: dict[str, Callable[[Effects, str], Any]] = {
    "job key": lambda app, text: enqueue("held", {}, key=text, effects=app),
    "group": lambda app, text: enqueue("held", {}, group_key=text, effects=app),
    "limit": lambda app, text: enqueue("held", {}, limit_key=text, effects=app),
    "queue": lambda app, text: enqueue("held", {}, queue=text, effects=app),
    "event key": lambda app, text: deliver_webhook(WebhookEvent("a.b", {}, key=text), effects=app),
    "event tenant": lambda app, text: deliver_webhook(WebhookEvent("a.b", {}, tenant=text), effects=app),
    "endpoint tenant": lambda app, text: add_endpoint(URL, tenant=text, effects=app),
    "endpoint secret": lambda app, text: add_endpoint(URL, secret=text, effects=app),
    "rotated secret": lambda app, text: rotate_secret(list_endpoints(effects=app)[0].id, secret=text, effects=app),
    "email key": lambda app, text: send_templated_email("hello", to="a@b.example", context={}, key=text, effects=app),
    "email event": lambda app, text: send_templated_email(
        "hello", to="a@b.example", context={}, event_id=text, effects=app
    ),
    "report key": lambda app, text: request_report("orders", key=text, effects=app),
    "secret of a signature": lambda app, text: verify([text], SIGNED, b""),
    "principal of a link": lambda app, text: download_url("rep_1", URL, principal=text, effects=app),
}


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    app = effects_app(app_factory, tmp_path)
    add_endpoint(URL, effects=app)
    return app


@pytest.mark.parametrize("name", CALLS)
def test_an_empty_name_is_refused_and_writes_nothing(app: Effects, name: str) -> None:
    before = everything(app)
    with pytest.raises((EffectsError, ValueError)):
        CALLS[name](app, "")
    assert everything(app) == before


@pytest.mark.parametrize("principal", ["", " ", "\t", 0, False])
def test_a_link_for_an_empty_principal_is_refused(app: Effects, principal: Any) -> None:
    with pytest.raises(ReportInvalid, match="principal"):
        download_url("rep_1", URL, principal=principal, effects=app)
