"""Decorated functions and an async app: nothing in it is a mistake to a type checker."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from effects import Attempt, Done, Effects, JobType, Outcome, RetryPolicy, enqueue_async
from effects_email import send_templated_email_async
from effects_reports import request_report_async
from effects_webhooks import WebhookEvent, deliver_webhook_async

app = Effects(threads=2)


@dataclass
class Page:
    team: str


@app.job("pager.page", on_unknown="hold", retry=RetryPolicy(max_attempts=3))
def page_on_call(page: Page, attempt: Attempt) -> None:
    print(page.team, attempt.number)


@app.job("pager.resolve")
def resolve(page: Page) -> Outcome:
    return Done(detail={"team": page.team})


def alarm(session: Session) -> list[str | None]:
    receipts = [page_on_call.enqueue(Page("db"), key="incident:7", session=session, delay=60)]
    receipts += resolve.enqueue_many([Page("db"), Page("web")], key=lambda page: f"resolve:{page.team}")
    print(resolve(Page("db")))
    return [receipt.key for receipt in receipts]


@app.job("pager.ask", release="manual")
async def ask(page: Page, attempt: Attempt) -> None:
    await attempt.release_async()
    print(page.team)


class Escalate(JobType[Page]):
    name = "pager.escalate"
    payload = Page

    async def perform(self, payload: Page, attempt: Attempt) -> Outcome:
        await attempt.release_async()
        return Done(detail={"team": payload.team})


app.add(Escalate())


async def drill(attempt: Attempt) -> None:
    await ask(Page("db"), attempt)


async def sign_up(make_session: async_sessionmaker[AsyncSession]) -> int:
    async with make_session() as session, session.begin():
        receipt = await enqueue_async("pager.page", Page("db"), key="incident:8", session=session)
        sent = await send_templated_email_async("welcome", to="ann@example.com", context={}, session=session)
        event = await deliver_webhook_async(WebhookEvent("user.created", {"id": 1}), session=session, effects=app)
        run = await request_report_async("orders", {"day": "2026-01-02"}, session=session)
    print(sent.key, event.deliveries, run.run_id)
    return receipt.job_id
