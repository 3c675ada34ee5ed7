"""What packages say of an effect (`JobType.explain`, `instead_of_requeue`) is in its evidence; text and JSON agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from effects import Cancelled, Effects, Refused, Retry
from effects.model.settlement import AttemptEnd
from effects.operate.evidence import Evidence, find_evidence, job_evidence
from effects.operate.sentences import advice
from effects_email import send_templated_email
from effects_reports import request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.conftest import AppFactory
from tests.reports.shop import REPORTS
from tests.support.commands import command
from tests.support.effect_states import KEYS
from tests.support.manual_workers import ManualWorker


class Case(NamedTuple):
    """An effect of a package that ended so, and what its evidence then says.

    `meaning`, `follows`: a part of each; None: nothing is explained. `instead`: the commands, without their names.
    """

    package: str
    ending: AttemptEnd
    meaning: str | None
    follows: str = ""
    instead: tuple[str, ...] = ()


SMTP = {"stage": "rcpt", "reply_code": 550, "enhanced": "5.1.1", "reply": "no such user"}
CASES = {
    "email, a reply": Case("email", Refused("no", code="550", detail=SMTP), "does not exist", "recipient ends refused"),
    "email, a fault": Case("email", Retry("no", code="connect_timeout", detail={"stage": "connect"}), "", ""),
    "email, our own verdict": Case("email", Refused("no", code="too_large", detail={"stage": "mail"}), None),
    "email, a provider": Case("email", Refused("no", code="rejected", detail={"status": 422}), None),
    "email, suppressed": Case(
        "email", Cancelled("no", code="suppressed"), None, instead=("effects email show",)
    ),
    "webhook, a status": Case(
        "webhook", Refused("no", code="http_410", detail={"status": 410}), "", "no further attempt"
    ),
    "webhook, a fault": Case("webhook", Retry("no", code="connect_timeout"), "", "attempts"),
    "webhook, neither": Case("webhook", Refused("no", code="not_found"), None),
    "report": Case("report", Refused("no", code="x"), "a step of the report run", "effects reports show",
                   ("effects retry",)),
}  # fmt: skip


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    template = tmp_path / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello\n")
    return app_factory(
        job_types=[], keys=KEYS, templates=tmp_path / "emails", email_from="Shop <hello@shop.example>",
        smtp_url=f"maildir:{tmp_path}/mail", reports=REPORTS, storage_url=str(tmp_path / "files"),
    )  # fmt: skip


def ended(app: Effects, case: Case) -> int:
    """The job of an effect that ended like this."""
    if case.package == "email":
        send_templated_email("hello", to="ann@example.com", context={}, key="k", effects=app)
    elif case.package == "webhook":
        add_endpoint("https://partner.example/in", effects=app)
        deliver_webhook(WebhookEvent("order.paid", {}), effects=app)
    else:
        request_report(next(iter(REPORTS)).name, effects=app)
    queue = {"email": "emails", "webhook": "webhooks", "report": "reports"}[case.package]
    manual_worker = ManualWorker(app, queue=queue)
    job = manual_worker.claim_one()
    manual_worker.settle((job, case.ending))
    return job.id


def explained(evidence: Evidence) -> dict[str, Any] | None:
    explanation = evidence.facts.explanation
    return None if explanation is None else {"meaning": explanation.meaning, "follows": explanation.follows}


@pytest.mark.parametrize("name", CASES)
def test_a_packages_texts_are_in_text_and_json_alike(app: Effects, name: str) -> None:
    case = CASES[name]
    job_id = ended(app, case)
    evidence = job_evidence(app, job_id)
    explanation = explained(evidence)
    assert (explanation is None) == (case.meaning is None)
    text, document = command(app, "jobs", "show", job_id).out, command(app, "jobs", "show", job_id, "--json").json
    assert document["facts"]["explanation"] == explanation
    if explanation is None:
        assert "the last answer:" not in text
    else:
        assert (case.meaning or "") in explanation["meaning"]
        assert case.follows in explanation["follows"]
        assert f"the last answer: {explanation['meaning']}; {explanation['follows']}" in text
    assert document["next"] == [
        {"name": action.name, "command": action.command, "confirmation": action.confirmation,
         "needs_reason": action.needs_reason}
        for action in evidence.next
    ]  # fmt: skip
    instead = evidence.standing.instead if evidence.standing is not None else None
    assert [action.command.rsplit(" ", 1)[0] for action in (instead.actions if instead else ())] == [*case.instead]
    if instead is not None:
        assert [action.command for action in evidence.next][: len(instead.actions)] == [
            action.command for action in instead.actions
        ]
        assert advice(evidence) in text
        assert instead.text in text


def test_why_says_the_same_as_the_job(app: Effects) -> None:
    job_id = ended(app, CASES["email, a reply"])
    [evidence] = find_evidence(app, "k")
    [document] = command(app, "why", "k", "--json").json
    assert explained(evidence) == explained(job_evidence(app, job_id)) == document["facts"]["explanation"]
    assert document["sentence"] in command(app, "why", "k").out
