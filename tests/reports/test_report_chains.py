"""A chain is checked to its end: what a schedule, an alert or a subscription leads to later, before it does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from effects import Alert, DeadLetters, Effects, Schedule, enqueue
from effects.keys.encryption import generate_key
from effects.testing import Toolkit
from effects_email.state import state_of
from effects_reports import bucket_notice, mail_notice, subscribe
from effects_webhooks import EventType
from tests.reports.conftest import ReportWorker, Shop, drain, file_ready
from tests.reports.shop import fill
from tests.support.commands import command, error_line
from tests.support.manual_workers import rows
from tests.support.sampling import sample

MAIL = {"template": "file_ready", "to": "owner@shop.example", "link_to": "https://shop.example/d"}
KEYS = f"k1={generate_key()},digest={generate_key()}"


def mail(**changes: Any) -> dict[str, Any]:
    return {"notify": [mail_notice(**{**MAIL, **changes})]}


# What is wrong with the schedule's report or its notices, and the words that say so.
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a variable that the notice does not give": (mail(template="with_day"), "'day' is missing in the context"),
    "a variable in a body alone": (mail(template="with_owner"), "with_owner/body.txt, line 2: 'owner' is missing"),
    "no such template": (mail(template="flie_ready"), "flie_ready"),
    "no such transport": (mail(transport="bluk"), "the mail transport 'bluk' is not set"),
    "no address": (mail(to="owner at shop"), "address"),
    "no such bucket": ({"notify": [bucket_notice("acme")]}, "there is no bucket 'acme'"),
    "an undeclared event type": ({"notify": [{"job_type": "webhook.compose", "payload": {
        "type": "raport.ready", "data": {"run": "{run_id}"}}}]}, "raport.ready"),
    "a notice of no job type": ({"notify": [{"job_type": "pager", "payload": {}}]}, "no job type 'pager'"),
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such report": ({"report": "ordres"}, "ordres"),
    "params that do not fit": ({"params": {"above": "many"}}, "above"),
    "no such format": ({"format": "pdf"}, "no format 'pdf'"),
}


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    folder = file_ready(tmp_path, "{{ report }} is ready", "{{ link }}\n")
    for name, subject, body in (("with_day", "{{ day }}", "-"), ("with_owner", "-", "Dear\n{{ owner.name }}")):
        (Path(folder) / name).mkdir()
        (Path(folder) / name / "subject.txt").write_text(subject)
        (Path(folder) / name / "body.txt").write_text(body)
    return {
        "templates": folder, "email_from": "S <s@shop.example>", "smtp_url": f"maildir:{tmp_path}/mail", "keys": KEYS,
        "webhook_event_types": [EventType("report.ready", "A report is ready.")],
    }  # fmt: skip


def nightly(fault: dict[str, Any]) -> Schedule:
    return Schedule("nightly", "report.request", {"report": "orders", **fault}, cron="0 2 * * *")


def request(app: Effects, **more: Any) -> int:
    payload = msgspec.to_builtins({"report": "orders", "key": "k", **more})
    return int(enqueue("report.request", payload, effects=app).job_id)


def gates(app: Effects) -> tuple[str, str]:
    """What `init` refuses, and the problems that `doctor` finds."""
    return error_line(command(app, "init")), command(app, "doctor", "--quiet").out


NIGHT: Any = {"name": "nightly", "cron": "0 2 * * *"}
WRITTEN: dict[str, tuple[Schedule, str]] = {
    "no such report": (Schedule.report("ordres", **NIGHT), "ordres"),
    "params that do not fit": (Schedule.report("orders", {"above": "many"}, **NIGHT), "above"),
    "no such format": (Schedule.report("orders", format="pdf", **NIGHT), "no format 'pdf'"),
    "a mail of no template": (Schedule.report("orders", mail=mail_notice("flie", "a@b.example"), **NIGHT), "flie"),
    "a mail without a variable": (
        Schedule.report("orders", mail=mail_notice("with_day", "a@b.example"), **NIGHT), "'day' is missing",
    ),
    "no such bucket": (Schedule.report("orders", mail=[bucket_notice("acme")], **NIGHT), "there is no bucket 'acme'"),
    "no such template": (Schedule.email("flie", "a@b.example", **NIGHT), "flie"),
    "a variable that is missing": (Schedule.email("with_day", "a@b.example", **NIGHT), "'day' is missing"),
    "no address": (Schedule.email("with_day", "a at b", {"day": "x"}, **NIGHT), "address"),
}  # fmt: skip


@pytest.mark.parametrize("fault", WRITTEN)
def test_init_refuses_a_schedule_of_a_report_or_a_mail_that_could_not_run(
    shop_factory: Shop, options: dict[str, Any], fault: str
) -> None:
    schedule, says = WRITTEN[fault]
    app = shop_factory(**options, schedules=[schedule])
    error = error_line(command(app, "init"))
    assert "schedule 'nightly'" in error
    assert says in error


def test_a_report_with_its_mail_and_a_mail_are_scheduled_in_a_line_each(
    shop_factory: Shop, options: dict[str, Any]
) -> None:
    attached = mail_notice("file_ready", "owner@shop.example")
    app = shop_factory(
        **options,
        schedules=[
            Schedule.report("orders", {"above": 5}, cron="0 2 * * *", zone="Europe/Berlin", mail=attached),
            Schedule.email("with_day", "ann@shop.example", {"day": "{previous_slot_month}"}, cron="0 3 1 * *"),
        ],
    )
    assert {"report.orders", "email.with_day"} <= app.schedules.keys()
    with Toolkit(app) as toolkit:
        fill(app, 20)
        toolkit.move_clock(32 * 86_400)
        toolkit.drain()
        monthly, ready = sorted(toolkit.emails, key=lambda mail: mail.subject)
        assert re.fullmatch(r"20\d\d-\d\d", monthly.subject)
        assert (ready.subject, ready.to) == ("orders is ready", ["owner@shop.example"])
        [report] = toolkit.reports
        assert [file.content for file in ready.attachments] == [report.content]


@pytest.mark.parametrize("fault", sample([*FAULTS, *REFUSED], 5))
def test_init_refuses_and_doctor_finds_a_chain_that_cannot_end_well(
    shop_factory: Shop, options: dict[str, Any], fault: str
) -> None:
    payload, words = {**FAULTS, **REFUSED}[fault]
    app = shop_factory(**options, schedules=[nightly(payload)])
    for text in gates(app):
        assert "schedule 'nightly': " in text
        assert words in text
    assert rows(app, "job_definitions") == [], "init registers nothing"


@pytest.mark.parametrize("fault", sample(FAULTS, 4))
def test_a_report_whose_delivery_is_wrong_is_made(shop_factory: Shop, options: dict[str, Any], fault: str) -> None:
    app = shop_factory(**options)
    fill(app, 5)
    job_id = request(app, **FAULTS[fault][0])
    drain(app)
    assert [row["state"] for row in rows(app, "report_runs")] == ["ready"]
    waits_or_died = [*rows(app, "jobs"), *rows(app, "job_history", "status = 'dead'")]
    assert len(waits_or_died) == 1
    assert FAULTS[fault][1].partition(",")[0] in waits_or_died[0]["last_error"]
    for name in (job_id, "k"):
        out = command(app, "why", name).out
        assert f"What followed, job {waits_or_died[0]['id']} (" in out, name
        assert "Nothing left to do" not in out


def test_why_says_that_nothing_is_left_once_all_that_followed_is_done(
    shop_factory: Shop, options: dict[str, Any]
) -> None:
    app = shop_factory(**options)
    fill(app, 5)
    job_id = request(app, **mail())
    ReportWorker(app).do_next()
    assert "What followed, job 2 (report.plan), is queued." in command(app, "why", job_id).out
    drain(app)
    assert "Nothing left to do" in command(app, "why", job_id).out
    types = [follower["job_type"] for follower in command(app, "why", job_id, "--json").json[0]["followers"]]
    assert types == ["report.assemble", "email.compose", "email.send"]


def test_why_of_a_request_follows_its_run_into_the_step_that_failed(shop_factory: Shop) -> None:
    app = shop_factory()  # no table of orders
    job_id = request(app)
    drain(app)
    assert [row["state"] for row in rows(app, "report_runs")] == ["failed"]
    assert re.search(r"What followed, job \d+ \(report\.\w+\), ended dead", command(app, "why", job_id).out)


def test_a_dead_follower_that_was_resolved_is_no_longer_named(shop_factory: Shop, options: dict[str, Any]) -> None:
    app = shop_factory(**options)
    fill(app, 5)
    job_id = request(app, **mail(template="with_day"))
    drain(app)
    [dead] = rows(app, "job_history", "status = 'dead'")
    assert "What followed" in command(app, "why", job_id).out
    assert command(app, "resolve", dead["id"], "--as", "give-up", "--reason", "a test").exit_code == 0
    assert "Nothing left to do" in command(app, "why", job_id).out


def test_what_is_right_passes(shop_factory: Shop, options: dict[str, Any]) -> None:
    app = shop_factory(**options, schedules=[nightly(mail())])
    assert command(app, "init").exit_code == 0
    assert "nightly" not in command(app, "doctor", "--quiet").out


def test_an_alert_whose_mail_has_no_template(shop_factory: Shop, options: dict[str, Any]) -> None:
    payload = {"template": "on_fire", "to": "ops@shop.example", "context": {"summary": "{summary}"}}
    app = shop_factory(**options, alerts=[Alert("dead", DeadLetters(), "email.compose", payload)])
    for text in gates(app):
        assert "alert 'dead': " in text
        assert "on_fire" in text


def test_the_notice_of_a_failing_endpoint_has_no_job_type(shop_factory: Shop, options: dict[str, Any]) -> None:
    for text in gates(shop_factory(**options, webhook_notice_job_type="pager")):
        assert "EFFECTS_WEBHOOK_NOTICE_JOB_TYPE: no job type 'pager'" in text


def test_doctor_finds_what_a_subscription_leads_to(shop_factory: Shop, options: dict[str, Any]) -> None:
    app = shop_factory(**options)
    mail_to = {"to": "ann@example.com", "template": "file_ready", "link_to": "https://shop.example/d"}
    subscribe("orders", cron="0 2 * * *", **mail_to, actor="ann", effects=app)
    assert "subscription" not in command(app, "doctor", "--quiet").out
    (Path(options["templates"]) / "file_ready" / "body.txt").write_text("{{ day }}")
    vars(state_of(app)).pop("folder")  # as in a process that starts now
    assert "a subscription to 'orders': notify: template 'file_ready'" in command(app, "doctor", "--quiet").out
