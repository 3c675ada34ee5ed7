"""Decorated functions and an async app: nothing in it is a mistake to a type checker."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session

from effects import Attempt, Done, Effects, JobType, Outcome, RetryPolicy, enqueue_async, enqueue_many
from effects_email import send_templated_email_async
from effects_reports import request_report_async
from effects_webhooks import WebhookEvent, deliver_webhook_async

app = Effects(threads=2)


@dataclass
class Page:
    team: str


@app.job("pager.page", on_unknown="hold", retry=RetryPolicy(max_attempts=3))
def page_on_call(attempt: Attempt, page: Page, *, floor: int = 1) -> None:
    print(page.team, floor, attempt.number)


@app.job("pager.resolve")
def resolve(page: Page) -> Outcome:
    return Done(detail={"team": page.team})


def alarm(session: Session) -> list[str | None]:
    receipts = [page_on_call.using(key="incident:7", session=session, delay=60).enqueue(Page("db"), floor=2)]
    late = page_on_call.using(key="incident:7", session=session, on_conflict="replace").enqueue(Page("db"), floor=3)
    receipts += [late] if late.replaced else []
    receipts.append(page_on_call.enqueue(page=Page("db")))
    jobs = [resolve.using(key=f"resolve:{team}").job(Page(team)) for team in ("db", "web")]
    receipts += enqueue_many([*jobs, resolve.job(page=Page("app"))], session=session)
    print(resolve(Page("db")))
    return [receipt.key for receipt in receipts]


@app.job("pager.count", result=True)
def count_pages(attempt: Attempt, team: str) -> int:
    return len(team) + attempt.number


@app.job("pager.find", result="sealed")
async def find_person(team: str) -> list[str]:
    return [team]


async def counted(attempt: Attempt) -> int:
    people: list[str] = await find_person("db")
    count_pages.using(key="count:7").enqueue(team="db")
    await find_person.enqueue_async(team="db")
    return count_pages(attempt, "db") + len(people)


@app.job("pager.ask", release="manual")
async def ask(attempt: Attempt, page: Page) -> None:
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
    await ask(attempt, Page("db"))


async def sign_up(make_session: async_sessionmaker[AsyncSession]) -> int:
    async with make_session() as session, session.begin():
        receipt = await enqueue_async("pager.escalate", Page("db"), key="incident:8", session=session)
        await ask.using(session=session, key="ask:8").enqueue_async(Page("db"))
        await ask.enqueue_async(page=Page("web"))
        sent = await send_templated_email_async("welcome", to="ann@example.com", context={}, session=session)
        event = await deliver_webhook_async(WebhookEvent("user.created", {"id": 1}), session=session, effects=app)
        run = await request_report_async("orders", {"day": "2026-01-02"}, session=session)
    print(sent.key, event.deliveries, run.run_id)
    return receipt.job_id
