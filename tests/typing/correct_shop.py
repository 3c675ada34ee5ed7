"""An app with its own job type, an e-mail, a webhook and a report: nothing in it is a mistake to a type checker."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from effects import (
    Attempt,
    Done,
    Effects,
    JobType,
    NewJob,
    Outcome,
    Refused,
    Retry,
    RetryPolicy,
    Routing,
    Schedule,
    Unknown,
    enqueue,
    enqueue_many,
    status,
)
from effects_email import NewEmail, send_templated_email, send_templated_emails
from effects_reports import bucket_notice, mail_notice, report, report_status, request_report
from effects_webhooks import WebhookEvent, deliver_webhook, deliver_webhooks

orders = sa.Table(
    "orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Numeric)
)


@dataclass
class Order:
    number: int
    customer: str


class PackOrder(JobType[Order]):
    name = "shop.pack"
    payload = Order
    queue = "packing"
    retry = RetryPolicy(max_attempts=3)
    on_unknown = "hold"

    def route(self, payload: Order) -> Routing:
        return Routing(group_key=payload.customer)

    def perform(self, payload: Order, attempt: Attempt) -> Outcome:
        if attempt.job.key is None:
            return Refused("an order has a key")
        attempt.release()
        if attempt.number > 1:
            return Unknown("no answer from the packer", after_seconds=60)
        if attempt.remaining_seconds() < 1:
            raise Retry("no time is left", after_seconds=5)
        return Done(detail={"packed": payload.number})


class Nightly(JobType[dict[str, int]]):
    name = "shop.nightly"
    schedule = Schedule("shop.nightly", "shop.nightly", {"day": 1}, cron="0 3 * * *", zone="Europe/Berlin")

    def perform(self, payload: dict[str, int], attempt: Attempt) -> None:
        print(payload["day"])


@report("orders", key=("id",), columns={"id": "Order", "total": "Total"}, formats=("csv",))
def order_report(params: dict[str, str]) -> sa.Select[tuple[int]]:
    return sa.select(orders.c.id)


app = Effects(
    "sqlite:///shop.db",
    job_types=[PackOrder(), Nightly()],
    threads=4,
    schema=None,
    log_format="json",
    templates="emails",
    reports=[order_report],
    schedules=[
        Schedule.report("orders", {"above": "5"}, cron="0 2 * * *", mail=mail_notice("ready", "ann@example.com")),
        Schedule.report(
            "orders", cron="0 2 * * *", mail=[mail_notice("r", ["a@b.c"]), bucket_notice("acme")], name="b"
        ),
        Schedule.email("digest", "ann@example.com", {"day": "{slot_date}"}, cron="0 6 * * *", zone="Europe/Berlin"),
    ],
)


def checkout(session: Session, order: Order) -> str | None:
    receipt = enqueue(
        PackOrder.name,
        order,
        key=f"pack:{order.number}",
        run_at=datetime.now(UTC) + timedelta(hours=1),
        session=session,
    )
    enqueue_many([NewJob(job_type="shop.pack", payload=order, priority=3)], session=session, effects=app)
    emails = [NewEmail(template="receipt", to="ann@example.com", context={"number": order.number}, event_id="order:1")]
    send_templated_email(
        "welcome", to=["Ann <ann@example.com>"], context={"name": "Ann"}, event_id="signup:17", session=session
    )
    print([sent.key for sent in send_templated_emails(emails, session=session)])
    event = WebhookEvent("order.paid", {"number": order.number}, key=f"order:{order.number}:paid")
    deliver_webhooks([event], session=session)
    print(deliver_webhook(event, session=session).deliveries)
    print(report_status(request_report("orders", {"day": "2026-01-02"}, session=session).run_id).state)
    print(status(key=f"pack:{order.number}").state)
    return receipt.key


def with_a_connection() -> int:
    with app.engine.begin() as connection:
        return enqueue("shop.nightly", {"day": 2}, session=connection).job_id
