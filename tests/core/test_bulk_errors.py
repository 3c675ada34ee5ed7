"""A bulk call names the item at fault, by position and key, and writes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from effects import EffectsError, NewJob, PayloadInvalid, enqueue, enqueue_many
from effects_email import AddressInvalid, NewEmail, send_templated_emails
from effects_webhooks import EventInvalid, WebhookEvent, deliver_webhooks
from tests.conftest import AppFactory
from tests.support.effect_states import effects_app
from tests.support.manual_workers import rows

GOOD_MAIL = [NewEmail("hello", to=f"ann{number}@example.com", context={}, key=f"m{number}") for number in range(3)]
GOOD_EVENTS = [WebhookEvent("a.b", {}, key=f"e{number}") for number in range(3)]
GOOD_JOBS = [NewJob(job_type="scripted", payload={}, key=f"j{number}") for number in range(3)]

BULK: list[tuple[Callable[..., Any], list[Any], Any, type[EffectsError], str]] = [
    (send_templated_emails, GOOD_MAIL, lambda: NewEmail("hello", to="ann.example", context={}, key="k"), AddressInvalid,
     "emails[3] (key 'k'): "),
    (deliver_webhooks, GOOD_EVENTS, lambda: WebhookEvent("a.b", {"x": "y" * 300_000}, key="k"), EventInvalid,
     "events[3] (key 'k'): "),
    (enqueue_many, GOOD_JOBS, lambda: NewJob(job_type="scripted", payload={"moves": 7}, key="k"), PayloadInvalid,
     "jobs[3] (key 'k'): scripted: "),
    (enqueue_many, GOOD_JOBS, lambda: NewJob(job_type="scripted", payload={"moves": 7}), PayloadInvalid,
     "jobs[3]: scripted: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "good", "bad", "error", "says"), BULK, ids=lambda value: getattr(value, "__name__", "")
)
def test_the_item_at_fault_is_named(
    app_factory: AppFactory, tmp_path: Path, call: Any, good: Any, bad: Any, error: Any, says: str
) -> None:
    app = effects_app(app_factory, tmp_path)
    with pytest.raises(error) as refused:
        call([*good, bad(), good[0]], effects=app)
    assert str(refused.value).startswith(says)
    assert rows(app, "jobs") == []


def test_a_single_call_names_no_position(app_factory: AppFactory) -> None:
    with pytest.raises(PayloadInvalid) as refused:
        enqueue("scripted", {"moves": 7}, key="k", effects=app_factory())
    assert str(refused.value).startswith("scripted: ")
