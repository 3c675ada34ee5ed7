"""The sign-up example against a real SMTP server, with the CRM down."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from effects import Effects, FixedSchedule, RetryPolicy
from effects.worker import Worker
from effects_reports import list_reports, open_result
from effects_webhooks import add_endpoint
from effects_webhooks.jobs import WebhookDelivery
from examples.demo.mailbox import Mailbox, mailbox
from tests.examples.conftest import Load, Shell, on_one_database
from tests.support.manual_workers import rows

TWICE = RetryPolicy(backoff=FixedSchedule((0.05,)))  # the real schedule takes days


@pytest.fixture
def mail(settings: dict[str, str]) -> Iterator[Mailbox]:
    with mailbox() as server:
        settings["EFFECTS_SMTP_URL"] = server.url
        yield server


@pytest.fixture
def crm(settings: dict[str, str]) -> Iterator[str]:
    """An address without a listener."""
    settings["EFFECTS_ALLOW_PRIVATE_ADDRESSES"] = "yes"
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}/"


@on_one_database
def test_with_the_crm_down_the_mail_arrives_and_the_webhook_ends_dead_and_visible(
    mail: Mailbox, crm: str, load: Load, shell: Shell
) -> None:
    example = load("signup")
    app: Effects = example.app
    app.job_types.replace(WebhookDelivery(app, retry=TWICE))
    add_endpoint(crm, ["user.*"], effects=app)

    days = {datetime.now(UTC).date()}
    assert shell("python signup.py ann@example.com Ann").stdout == "signed up; the rest is on its way\n"
    with Session(app.engine) as session, session.begin():
        example.sign_up(session, "bob@example.com", "Bob")
    Worker(app).drain()
    app.store.shift_clock(1)
    Worker(app).drain()  # the second try, unless the first drain saw it fall due

    days.add(datetime.now(UTC).date())  # two of them at midnight
    arrived = {message["to"]: message for message in mail.messages}
    assert sorted(arrived) == ["ann@example.com", "bob@example.com", "boss@shop.example"]
    assert len(mail.messages) == 3
    assert arrived["ann@example.com"]["subject"] == "Welcome, Ann"
    assert arrived["boss@shop.example"]["subject"] in {f"signups-{day}.csv is ready" for day in days}
    [run] = list_reports(effects=app)
    content = b"".join(open_result(run.run_id, effects=app)).decode("utf-8-sig")
    assert content.split() == ["id,name", "1,Ann", "2,Bob"]
    dead = shell("effects dead list").stdout
    assert dead.count("webhook.deliver") == 2
    assert "connect_failed" in dead
    story = shell("effects --app signup:app why user:1:created").stdout
    assert "(email.send) was done" in story
    assert "(webhook.deliver) was refused" in story
    assert "gave up after 2 attempts" in story
    app.dispose()


def test_a_sign_up_that_is_rolled_back_leaves_nothing(mail: Mailbox, crm: str, load: Load) -> None:
    example = load("signup")
    app: Effects = example.app
    add_endpoint(crm, ["user.*"], effects=app)
    example.Base.metadata.create_all(app.engine)
    with Session(app.engine) as session:
        example.sign_up(session, "ann@example.com", "Ann")
        session.rollback()
        assert session.scalar(select(func.count()).select_from(example.User)) == 0
    tables = ("jobs", "sent_emails", "webhook_events", "delivered_webhooks", "generated_reports", "report_runs")
    assert {table: len(rows(app, table)) for table in tables} == dict.fromkeys(tables, 0)
    Worker(app).drain()
    assert mail.messages == []
    app.dispose()
