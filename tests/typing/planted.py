# pyright: standard
"""Mistakes of app developers, one a line, each with the error of mypy and the rule of pyright that must catch it.

Read by type checkers only, never imported: `test_typing.py` compares what both report with the comments.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import effects
from effects import (
    Attempt,
    Done,
    Effects,
    JobType,
    NewJob,
    Outcome,
    Receipt,
    Retry,
    RetryPolicy,
    Schedule,
    enqueue,
    enqueue_async,
    enqueue_many,
    status,
)
from effects_email import NewEmail, send_templated_email, send_templated_emails
from effects_reports import Notify, mail_notice, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook


@dataclass
class Order:
    number: int


@dataclass
class Refund:
    amount: int


class PackOrder(JobType[Order]):
    name = "shop.pack"
    payload = Order

    def perform(self, payload: Order, attempt: Attempt) -> Outcome:
        return Retry("the packer is busy", after_seconds=30)


class WrongPayload(JobType[Order]):
    payload = Refund  # planted: assignment | AssignmentType


class WrongPolicies(JobType[Order]):
    on_unknown = "maybe"  # planted: assignment | AssignmentType
    retry = 5  # planted: assignment | AssignmentType


class WrongArgument(JobType[Order]):
    def perform(self, payload: Refund, attempt: Attempt) -> Outcome:  # planted: override | IncompatibleMethodOverride
        return Done()


class WrongOutcome(JobType[Order]):
    def perform(self, payload: Order, attempt: Attempt) -> str:  # planted: override | IncompatibleMethodOverride
        return "done"


class AsyncHandler(JobType[Order]):
    async def perform(self, payload: Order, attempt: Attempt) -> Outcome:
        attempt.release_async()  # planted: unused-coroutine | UnusedCoroutine
        return Done()


class WrongAsyncOutcome(JobType[Order]):
    async def perform(self, payload: Order, attempt: Attempt) -> str:  # planted: override | IncompatibleMethodOverride
        return "done"


class AsyncLoad(JobType[Order]):
    async def worker_starts(self) -> None:  # planted: override | IncompatibleMethodOverride
        print("starts")


job = Effects().job


@job("shop.ask", on_unknown="hold")
async def ask_shop(attempt: Attempt, order: Order) -> None:
    print(order.number)


@job("shop.tell")  # planted: type-var,arg-type | ArgumentType,CallIssue
async def tell_shop(order: Order) -> str:
    return "done"


async def call_it(attempt: Attempt, session: Session) -> None:
    ask_shop(attempt, Order(1))  # planted: unused-coroutine | UnusedCoroutine
    await ask_shop(attempt, Refund(1))  # planted: arg-type | ArgumentType
    ask_shop.enqueue_async(Order(1))  # planted: unused-coroutine | UnusedCoroutine
    await ask_shop.using(session=session).enqueue_async(Order(1))  # planted: misc | AttributeAccessIssue


class WrongNames(JobType[Order]):
    def perform(self, payload: Order, attempt: Attempt) -> Outcome:
        if payload.numbr > 1:  # planted: attr-defined | AttributeAccessIssue
            attempt.realease()  # planted: attr-defined | AttributeAccessIssue
        if attempt.job.key > "a":  # planted: operator | OptionalOperand
            return Done(details={})  # planted: call-arg | CallIssue
        return Retry("later", after_seconds="5")  # planted: arg-type | ArgumentType


Effects(thread=4)  # planted: call-arg | CallIssue
Effects(threads="many")  # planted: arg-type | ArgumentType
Effects(log_format="xml")  # planted: arg-type | ArgumentType
Effects(job_types=[PackOrder])  # planted: list-item | ArgumentType

RetryPolicy(max_attempts="three")  # planted: arg-type | ArgumentType


def checkout(app: Effects, session: Session) -> None:
    effects.enqeue("shop.pack", Order(1))  # planted: attr-defined | AttributeAccessIssue
    enqueue("shop.pack")  # planted: call-arg | CallIssue
    enqueue(PackOrder, Order(1))  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), session=app)  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), effects=app.engine)  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), run_at="tomorrow")  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), on_unknown="never")  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), keys="pack:1")  # planted: call-arg | CallIssue
    enqueue_many(NewJob(job_type="shop.pack", payload=Order(1)))  # planted: arg-type | ArgumentType
    enqueue_many([PackOrder()])  # planted: list-item | ArgumentType
    print(enqueue("shop.pack", Order(1)).id)  # planted: attr-defined | AttributeAccessIssue
    status("pack:1")  # planted: call-arg | CallIssue


def tell(session: Session, moment: datetime = datetime(2026, 1, 2, tzinfo=UTC)) -> None:
    send_templated_email("welcome", to="ann@example.com")  # planted: call-arg | CallIssue
    send_templated_email("welcome", to=5, context={})  # planted: arg-type | ArgumentType
    send_templated_emails(["welcome"], session=session)  # planted: list-item | ArgumentType
    NewEmail("welcome", "ann@example.com")  # planted: call-arg | CallIssue
    deliver_webhook("order.paid", session=session)  # planted: arg-type | ArgumentType
    WebhookEvent("order.paid", 5)  # planted: arg-type | ArgumentType
    add_endpoint("https://partner.example/hook", events="order.*")  # planted: call-arg | CallIssue
    request_report("sales", formats=("csv",))  # planted: call-arg | CallIssue
    request_report("sales", notify=["mail.ready"])  # planted: list-item | ArgumentType
    print(Notify, moment)


app = Effects()


@app.job("shop.refund")
def refund(attempt: Attempt, order: Order, amount: int, reason: str = "") -> Outcome:
    return Done()


@app.job("shop.mail", on_unknown="maybe")  # planted: call-overload,untyped-decorator | ArgumentType
def mail(order: Order) -> None:
    print(order)


@app.job("shop.count")  # planted: type-var,arg-type | ArgumentType,CallIssue
def count(order: Order) -> int:
    return order.number


@app.job("shop.sum", result=True)
def sum_of(order: Order) -> int:
    return order.number


@app.job("shop.keep", result="yes")  # planted: call-overload,untyped-decorator | CallIssue,ArgumentType
def keep(order: Order) -> int:
    return order.number


def results() -> None:
    total: str = sum_of(Order(1))  # planted: assignment | AssignmentType
    sum_of.enqueue(number=1)  # planted: call-arg | CallIssue
    Done(results=total)  # planted: call-arg | CallIssue
    print(status(key="k").results)  # planted: attr-defined | AttributeAccessIssue


def arguments(attempt: Attempt) -> None:
    refund.enqueue(Order(1))  # planted: call-arg | CallIssue
    refund.enqueue(Refund(5), amount=5)  # planted: arg-type | ArgumentType
    refund.enqueue(Order(1), amount="5")  # planted: arg-type | ArgumentType
    refund.enqueue(Order(1), amount=5, raeson="late")  # planted: call-arg | CallIssue
    refund.enqueue(attempt, Order(1), amount=5)  # planted: misc,arg-type | CallIssue
    refund(Order(1), amount=5)  # planted: arg-type,call-arg | CallIssue
    refund.job(Order(1), 5).enqueue()  # planted: attr-defined | AttributeAccessIssue


def options(session: Session, many: list[Order]) -> None:
    refund.enqueue(Order(1), amount=5, key="refund:1")  # planted: call-arg | CallIssue
    refund.enqueue(Order(1), amount=5, session=session)  # planted: call-arg | CallIssue
    refund.using(amount=5).enqueue(Order(1))  # planted: call-overload | CallIssue
    refund.using(key=17)  # planted: call-overload | ArgumentType
    Schedule.job(refund, cron="0 3 * * *")  # planted: arg-type | ArgumentType
    Schedule.report("orders", mail=mail_notice("ready", "ann@example.com"))  # planted: call-arg | CallIssue
    Schedule.report("orders", cron="0 3 * * *", mail="ann@example.com")  # planted: arg-type | ArgumentType
    Schedule.email("digest", cron="0 3 * * *")  # planted: call-arg | CallIssue
    Schedule.email("digest", "ann@example.com", cron="0 3 * * *", zon="Europe/Berlin")  # planted: call-arg | CallIssue
    refund.using(on_conflict="keep")  # planted: call-overload | ArgumentType
    refund.enqueue(Order(1), amount=5, on_conflict="replace")  # planted: call-arg | CallIssue
    enqueue("shop.pack", Order(1), key="k", on_conflict=True)  # planted: arg-type | ArgumentType
    refund.using(delay="1h")  # planted: call-overload | ArgumentType
    refund.using(session=session).job(Order(1), 5)  # planted: misc | AttributeAccessIssue
    enqueue_many([refund.enqueue(order, 5) for order in many])  # planted: misc | ArgumentType


async def awaiting(session: AsyncSession, wrong: Session) -> None:
    print(enqueue_async("shop.pack", Order(1), session=session).job_id)  # planted: attr-defined | AttributeAccessIssue
    receipt: Receipt = enqueue_async("shop.pack", Order(1))  # planted: assignment | AssignmentType
    enqueue_async("shop.pack", Order(1), session=session)  # planted: unused-coroutine | UnusedCoroutine
    await enqueue_async("shop.pack", Order(1), session=wrong)  # planted: arg-type | ArgumentType
    enqueue("shop.pack", Order(1), session=session)  # planted: arg-type | ArgumentType
    await enqueue("shop.pack", Order(1))  # planted: misc | GeneralTypeIssues
    print(receipt)
