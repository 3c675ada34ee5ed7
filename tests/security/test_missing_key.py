"""A worker without the key makes no job older, whatever its type: the wait for an operator is not the job's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest

from effects import Attempt, Done, JobType, Outcome, Sensitive, Snooze, enqueue
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_email import send_templated_email
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks
from tests.conftest import AppFactory
from tests.support.manual_workers import rows, run_sql

DIGEST = generate_key()


@dataclass
class Login:
    user: str
    code: Annotated[str, Sensitive]


class SendCode(JobType[Login]):
    """The core's own case: a payload with a sealed field."""

    name = "login.send"
    payload = Login

    def perform(self, payload: Login, attempt: Attempt) -> Outcome:
        return Done()


def test_a_worker_without_the_key_ages_no_job(
    app_factory: AppFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    template = tmp_path / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello {{ name }}\n")
    options = {
        "job_types": [SendCode()], "templates": tmp_path / "emails", "email_from": "Shop <hello@shop.example>",
        "smtp_url": "smtp://127.0.0.1:1?tls=none", "allow_private_addresses": True,
    }  # fmt: skip
    app = app_factory(keys=f"k1={generate_key()},digest={DIGEST}", **options)
    keyless = app_factory(keys=f"k2={generate_key()},digest={DIGEST}", **options)
    enqueue("login.send", Login("ann", "1234"), effects=app)
    add_endpoint("http://127.0.0.1:1/hook", effects=app)
    deliver_webhooks([WebhookEvent("order.paid", {"n": 1})], effects=app)
    send_templated_email("hello", to="ann@shop.example", context={"name": "Ann"}, effects=app)
    before = {row["job_type"]: row["age_from"] for row in rows(app, "jobs")}
    assert before.keys() == {"login.send", "webhook.deliver", "email.send"}
    caplog.set_level(logging.ERROR, logger="effects.worker")
    for _ in range(2):
        assert Worker(keyless).drain(30).counts == {"snoozed": 3}
        app.store.shift_clock(61)
        keyless.store.shift_clock(61)
    after = {row["job_type"]: row["age_from"] for row in rows(app, "jobs")}
    for name, moment in before.items():
        moved = after[name] - moment  # SQLite keeps milliseconds
        seconds = moved.total_seconds() if isinstance(moved, timedelta) else moved / 1000
        assert abs(seconds - 120.0) < 1.0, name
    assert {row["attempts"] for row in rows(app, "jobs")} == {0}
    assert [record.message for record in caplog.records] == ["job.waiting"] * 3


def test_no_job_type_ages_while_its_key_is_missing(app_factory: AppFactory) -> None:
    """The sealed payload of one type stands in a job of every type: each waits before anything is decoded."""
    app = app_factory(keys=f"k1={generate_key()},digest={DIGEST}", job_types=[SendCode()])
    keyless = app_factory(keys=f"k2={generate_key()},digest={DIGEST}", job_types=[SendCode()])
    names = sorted(app.job_types.names())
    job_ids = [enqueue("login.send", Login("ann", "1234"), effects=app).job_id for _ in names]
    for job_id, name in zip(job_ids, names, strict=True):
        run_sql(app, f"UPDATE effects_jobs SET job_type = '{name}' WHERE id = {job_id}")
    before = {row["job_type"]: row["age_from"] for row in rows(app, "jobs")}
    assert Worker(keyless).drain(30).counts == {"snoozed": len(names)}
    waited = {row["job_type"]: row["age_from"] - before[row["job_type"]] for row in rows(app, "jobs")}
    seconds = {
        name: wait.total_seconds() if isinstance(wait, timedelta) else wait / 1000 for name, wait in waited.items()
    }
    assert {name: wait for name, wait in seconds.items() if abs(wait - 60.0) >= 1.0} == {}
    assert len(seconds) == len(names) > 10


def test_any_handler_may_wait_for_an_operator() -> None:
    assert SendCode().wait_for_operator("no API key") == Snooze(
        60.0, "no API key", ages=False, code="waits_for_operator"
    )
