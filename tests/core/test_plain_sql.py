"""The built-in effects from plain SQL: one row each, and what is wrong with it ends dead as refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Effects, enqueue
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_email import send_templated_email
from effects_reports import find_report, list_reports, report, request_report
from effects_webhooks import WebhookEvent, deliver_webhook
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.manual_workers import row, rows, run_sql


@report("two", consistency="single", formats=("csv",))
def two_rows(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sa.literal(int(params.get("number", 2))).label("n"))


@pytest.fixture
def shop(app_factory: AppFactory, tmp_path: Path) -> Effects:
    folder = tmp_path / "emails" / "welcome"
    folder.mkdir(parents=True)
    (folder / "subject.txt").write_text("Hello {{ name }}")
    (folder / "body.txt").write_text("Hello {{ name }}")
    return app_factory(
        reports=[two_rows], templates=tmp_path / "emails", email_from="shop@example.com",
        smtp_url=f"maildir:{tmp_path}/mail", storage_url=str(tmp_path / "files"), job_types=[],
        keys=f"test={generate_key()},digest={generate_key()}",
    )  # fmt: skip


def insert(app: Effects, job_type: str, payload: dict[str, Any]) -> None:
    statement = "INSERT INTO effects_jobs (job_type, payload) VALUES (:job_type, :payload)"
    if app.store.is_postgresql:
        statement = statement.replace(":payload", "CAST(:payload AS jsonb)")
    run_sql(app, statement, job_type=job_type, payload=json.dumps(payload))


EMAIL = {"template": "welcome", "to": "Ann <ann@example.com>", "context": {"name": "Ann"}, "key": "k"}
EVENT = {"type": "order.paid", "data": {"order": 1}, "key": "k"}
REPORT = {"report": "two", "params": {"number": 7}, "key": "k"}


def test_each_row_is_one_effect(shop: Effects) -> None:
    for job_type, payload in [("email.compose", EMAIL), ("webhook.compose", EVENT), ("report.request", REPORT)]:
        insert(shop, job_type, payload)
        insert(shop, job_type, payload)  # the key makes it the same
    assert Worker(shop).drain().exit_code == 0
    assert len(rows(shop, "sent_emails")) == len(rows(shop, "webhook_events")) == 1
    assert find_report("two", key="k", effects=shop).state == "ready"
    [mail] = list(Path(str(shop.packages["email"].templates)).parent.glob("mail/new/*"))
    assert b"To: Ann <ann@example.com>" in mail.read_bytes()


@pytest.mark.parametrize(
    ("job_type", "payload", "existing"),
    [
        ("email.compose", EMAIL, r"the message of the key 'k' \(job \d+\)"),
        ("webhook.compose", EVENT, "the event msg_.* of the key 'k'"),
        ("report.request", REPORT, r"the run rep_.* of the key 'k' \(ready\)"),
    ],
)
def test_an_existing_key_is_reported(
    shop: Effects, job_type: str, payload: dict[str, Any], existing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the attempt, in `why` and `jobs show`, and in the log: else the job seems to have made something."""
    caplog.set_level("INFO", "effects.worker")
    first = enqueue(job_type, payload, effects=shop).job_id
    assert Worker(shop).drain().exit_code == 0
    again = enqueue(job_type, payload, effects=shop).job_id
    assert Worker(shop).drain().exit_code == 0
    answers = {attempt["job_id"]: attempt["message"] for attempt in rows(shop, "job_attempts")}
    assert answers[first] is None
    says = f"^{existing} exists already; nothing new was made$"
    assert re.search(says, answers[again])
    for shown in (command(shop, "why", again), command(shop, "jobs", "show", again)):
        assert re.search(says.strip("^$"), shown.out), shown
    [line] = [record for record in caplog.records if record.getMessage() == "job.existing"]
    assert (vars(line)["job"], vars(line)["reason"]) == (again, answers[again])


def test_a_request_without_a_key_is_a_run_of_its_own(shop: Effects) -> None:
    for _ in range(2):
        insert(shop, "report.request", {"report": "two"})
    assert Worker(shop).drain().exit_code == 0
    runs = list_reports(effects=shop)
    assert [(run.state, run.filename) for run in runs] == [("ready", "two.csv")] * 2


@pytest.mark.parametrize(
    ("job_type", "payload", "code", "says"),
    [
        ("email.compose", {**EMAIL, "to": "Ann"}, "AddressInvalid", "to is no e-mail address"),
        ("email.compose", {**EMAIL, "template": "none"}, "TemplateNotFound", "none"),
        ("email.compose", {"template": "welcome"}, "payload_invalid", "to"),
        ("email.compose", {**EMAIL, "subject": "x"}, "payload_invalid", "there is no field `subject`"),
        ("webhook.compose", {**EVENT, "type": "no type"}, "EventInvalid", "give a dotted name"),
        ("webhook.compose", {**EVENT, "data": [1]}, "payload_invalid", "data"),
        ("webhook.compose", {**EVENT, "id": "x"}, "payload_invalid", "there is no field `id`"),
        ("report.request", {"report": "none"}, "ReportInvalid", "no report 'none' is known (known: two)"),
        ("report.request", {**REPORT, "format": "pdf"}, "ReportInvalid", "it offers csv"),
        ("report.request", {**REPORT, "key": "x" * 201}, "ReportInvalid", "key must have"),
        ("report.request", {**REPORT, "parameters": {}}, "payload_invalid", "there is no field `parameters`"),
        ("report.request", {"report": 7}, "payload_invalid", "report"),
    ],
)  # fmt: skip
def test_a_wrong_payload_ends_refused(
    shop: Effects, job_type: str, payload: dict[str, Any], code: str, says: str
) -> None:
    insert(shop, job_type, payload)
    assert Worker(shop).drain().exit_code == 1
    ended, attempt = row(shop, "job_history"), row(shop, "job_attempts")
    assert (ended["status"], ended["error_code"]) == ("dead", code)
    assert says in ended["last_error"]
    assert (attempt["outcome"], attempt["verdict"]) in (("refused", "not_done"), ("cancelled", "not_done"))


def test_a_key_of_another_content_ends_refused(shop: Effects) -> None:
    send_templated_email("welcome", to="ann@example.com", context={"name": "Bob"}, key="k", effects=shop)
    deliver_webhook(WebhookEvent("order.paid", {"order": 2}, key="k"), effects=shop)
    request_report("two", {"number": 8}, key="k", effects=shop)
    for job_type, payload in [("email.compose", EMAIL), ("webhook.compose", EVENT), ("report.request", REPORT)]:
        insert(shop, job_type, payload)
    Worker(shop).drain()
    ended = rows(shop, "job_history", "status = 'dead'")
    assert {job["job_type"] for job in ended} == {"email.compose", "webhook.compose", "report.request"}
    assert {job["error_code"] for job in ended} == {"IdempotencyConflict"}
    assert {attempt["verdict"] for attempt in rows(shop, "job_attempts") if attempt["outcome"] != "succeeded"} == {
        "not_done"
    }
