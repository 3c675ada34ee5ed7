"""The transport's crash points × kill, raise, pause past the lease: the same event twice at most, never two."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from effects.kit import crashpoints
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, verify
from tests.peers.http import Receiver
from tests.support.processes import Child, Fleet, fleet
from tests.support.sampling import sample
from tests.support.waiting import wait_until
from tests.webhooks.conftest import KEYS, Rows

# Point, action → requests that the partner may have seen in the end, and the attempts' outcomes.
TABLE = {
    ("webhook.connected", "kill"): ((1,), ("lost", "succeeded")),
    ("webhook.written", "kill"): ((2,), ("lost", "succeeded")),
    ("webhook.answered", "kill"): ((2,), ("lost", "succeeded")),
    ("webhook.connected", "raise"): ((1,), ("unknown", "succeeded")),
    ("webhook.written", "raise"): ((2,), ("unknown", "succeeded")),
    ("webhook.answered", "raise"): ((2,), ("unknown", "succeeded")),
    # The woken worker learns too late that the job is no longer its own: its request carries the same id.
    ("webhook.connected", "pause"): ((1, 2), ("lost", "succeeded")),
    ("webhook.written", "pause"): ((2,), ("lost", "succeeded")),
    ("webhook.answered", "pause"): ((2,), ("lost", "succeeded")),
}


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers


def test_the_table_has_every_point_of_ours() -> None:
    points = {name for name in crashpoints.POINTS if name.startswith("webhook.")}
    assert set(TABLE) == {(point, action) for point in points for action in crashpoints.ACTIONS}


@pytest.mark.slow
@pytest.mark.parametrize(("point", "action"), sample(TABLE, 5))
def test_a_crash_repeats_the_same_bytes_or_nothing(
    point: str, action: str, shop: Effects, rows: Rows, processes: Fleet
) -> None:
    requests, outcomes = TABLE[point, action]
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        receipt = deliver_webhook(WebhookEvent("order.paid", {"n": 1}), effects=shop)
        child = processes.worker(
            app="tests.webhooks.crash_app:app", EFFECTS_CRASHPOINT=f"{point}:1:{action}", EFFECTS_KEYS=KEYS,
            EFFECTS_ALLOW_PRIVATE_ADDRESSES="true",
        )  # fmt: skip
        _struck(child, action, rows)
        shop.store.shift_clock(1000)  # past the lease, and past the first wait of the schedule
        wait_until(lambda: _drained(shop, rows))
        if action == "pause":
            child.thaw()
            child.wait_logged("worker.fenced_off")
        child.send(signal.SIGTERM)
        child.wait()
        assert len(receiver.requests) in requests
        assert len({(request.message_id, request.body) for request in receiver.requests}) == 1
        for request in receiver.requests:
            assert verify(endpoint.secret, request.headers, request.body) == receipt.event_id
    attempts = rows("SELECT outcome FROM effects_job_attempts ORDER BY attempt")
    assert tuple(row["outcome"] for row in attempts) == outcomes
    assert rows("SELECT state, status_code, tries FROM effects_delivered_webhooks") == [
        {"state": "done", "status_code": 200, "tries": 2}
    ]


def _struck(child: Child, action: str, rows: Rows) -> None:
    """Return when the action has happened at its point."""
    if action == "kill":
        assert child.wait() == -signal.SIGKILL, child.output
    elif action == "pause":
        child.wait_frozen()
    else:
        wait_until(lambda: rows("SELECT 1 AS found FROM effects_job_attempts"))


def _drained(shop: Effects, rows: Rows) -> bool:
    Worker(shop).drain()
    return not rows("SELECT 1 AS found FROM effects_jobs")
