"""`webhook.compose`: an event from those who can only name a job type and a payload."""

from __future__ import annotations

import json

from effects import Effects, enqueue
from effects.worker import Worker
from effects_webhooks import add_endpoint
from tests.peers.http import Receiver
from tests.webhooks.conftest import Rows


def test_a_payload_becomes_an_event(shop: Effects) -> None:
    with Receiver() as receiver:
        add_endpoint(receiver.url, effects=shop)
        enqueue("webhook.compose", {"type": "report.ready", "data": {"rows": "5"}, "key": "r:1"}, effects=shop)
        Worker(shop).drain(30)
        [request] = receiver.requests
    assert json.loads(request.body)["type"] == "report.ready"
    assert json.loads(request.body)["data"] == {"rows": "5"}


def test_an_invalid_event_ends_dead_with_its_reason(shop: Effects, rows: Rows) -> None:
    enqueue("webhook.compose", {"type": "not an event", "data": {}}, effects=shop)
    Worker(shop).drain(30)
    [job] = rows("SELECT status, error_code, last_error FROM effects_job_history")
    assert (job["status"], job["error_code"]) == ("dead", "EventInvalid")
    assert "give a dotted name" in job["last_error"]
