"""A worker that dies while it speaks to a provider: what the provider has in the end, and what we say of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects.kit import crashpoints
from effects.retry import OnUnknown
from effects.worker import Worker
from effects_email.transport.http_api import client as http_client
from tests.conftest import AppFactory
from tests.email.wire.post import PAST_EVERY_WAIT_SECONDS, SENDER, Post, write_templates
from tests.email.world.conftest import KEYS
from tests.email.world.stand_ins import BOXES, receiver, url_of
from tests.support.processes import Fleet, fleet
from tests.support.sampling import sample

# Provider, point, action, policy → messages that it has in the end, the attempts' outcomes, the ledger's state.
# With a key a repeat is no second message; without one the provider is asked before it is repeated.
TABLE: dict[tuple[str, str, str, OnUnknown], tuple[int, tuple[str, ...], str]] = {
    ("resend", "provider.released", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("resend", "provider.written", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("resend", "provider.answered", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("postmark", "provider.released", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("postmark", "provider.written", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("postmark", "provider.answered", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("postmark", "provider.released", "kill", "hold"): (0, ("lost", "unknown"), "unknown"),
    ("postmark", "provider.written", "kill", "hold"): (1, ("lost", "succeeded"), "done"),
    # SendGrid and SES can neither be asked nor recognise a repeat: it stays unknown, or is sent once more.
    ("sendgrid", "provider.released", "kill", "hold"): (0, ("lost",), "unknown"),
    ("sendgrid", "provider.written", "kill", "hold"): (1, ("lost",), "unknown"),
    ("sendgrid", "provider.answered", "kill", "hold"): (1, ("lost",), "unknown"),
    ("sendgrid", "provider.released", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("sendgrid", "provider.answered", "kill", "repeat_once"): (2, ("lost", "succeeded"), "done"),
    ("ses", "provider.released", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("ses", "provider.written", "kill", "repeat_once"): (2, ("lost", "succeeded"), "done"),
    ("ses", "provider.answered", "kill", "hold"): (1, ("lost",), "unknown"),
    ("mailgun", "provider.released", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("mailgun", "provider.written", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("mailgun", "provider.answered", "kill", "repeat_once"): (1, ("lost", "succeeded"), "done"),
    ("resend", "provider.released", "raise", "repeat_once"): (1, ("unknown", "succeeded"), "done"),
    ("resend", "provider.written", "raise", "repeat_once"): (1, ("unknown", "succeeded"), "done"),
    ("postmark", "provider.answered", "raise", "repeat_once"): (1, ("unknown", "succeeded"), "done"),
}


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers


def test_the_table_has_every_point_of_ours() -> None:
    assert http_client.ProviderClient.__module__  # which declares them
    points = {name for name in crashpoints.POINTS if name.startswith("provider.")}
    for action in ("kill", "raise"):
        assert {point for _, point, struck_by, _ in TABLE if struck_by == action} == points


@pytest.mark.slow
@pytest.mark.parametrize("case", sample(TABLE, 12), ids="-".join)
def test_a_crash_costs_no_message_and_makes_no_second_one(
    case: tuple[str, str, str, OnUnknown], app_factory: AppFactory, processes: Fleet, tmp_path: Path
) -> None:
    scheme, point, action, policy = case
    messages, outcomes, state = TABLE[case]
    box = BOXES[scheme]()
    with receiver(box.serve) as peer:
        url = url_of(scheme, peer.port)
        templates = write_templates(tmp_path)
        options: dict[str, Any] = {"keys": KEYS, "smtp_url": url, "email_from": SENDER, "templates": str(templates)}
        post = Post(app_factory(job_types=[], **options), templates, url, KEYS)
        message_id = post.write(on_unknown=policy)
        _strike(post, processes, f"{point}:1:{action}", action)
        post.app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
        post.drain()
    assert (len(box.messages), post.outcomes(), post.states()) == (messages, outcomes, {message_id: state})
    keys = {request.headers.get("idempotency-key") for request in peer.requests if request.method == "POST"}
    assert len(keys) <= 1


def _strike(post: Post, processes: Fleet, what: str, action: str) -> None:
    if action == "raise":
        crashpoints.install(crashpoints.plan(what.split(":", maxsplit=1)[0], action="raise"))
        try:
            Worker(post.app).drain(30)
        finally:
            crashpoints.install(None)
        return
    child = processes.worker(app="tests.email.wire.crash_app:app", EFFECTS_CRASHPOINT=what, **post.environment)
    assert child.wait() == -signal.SIGKILL, child.output
