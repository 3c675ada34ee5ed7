"""A message in the transaction of an app that uses another driver than effects does: written once, with its bytes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from effects import Effects
from effects.worker import Worker
from effects_email import EmailReceipt, send_templated_email, send_templated_email_async
from tests.email.messages.conftest import CONTEXT
from tests.support.manual_workers import row

MESSAGE: dict[str, Any] = {"to": "ann@example.com", "context": CONTEXT, "event_id": "signup:1"}


def of_psycopg2(shop: Effects, url: URL) -> EmailReceipt:
    engine = create_engine(url.set(drivername="postgresql+psycopg2"), poolclass=NullPool)
    with Session(engine) as session, session.begin():
        return send_templated_email("welcome", **MESSAGE, session=session, effects=shop)


def of_an_async_driver(shop: Effects, url: URL) -> EmailReceipt:
    driver = "postgresql+asyncpg" if shop.store.is_postgresql else "sqlite+aiosqlite"

    async def send() -> EmailReceipt:
        engine = create_async_engine(url.set(drivername=driver), poolclass=NullPool)
        async with AsyncSession(engine) as session, session.begin():
            return await send_templated_email_async("welcome", **MESSAGE, session=session, effects=shop)

    return asyncio.run(send())


@pytest.mark.parametrize("send", [of_psycopg2, of_an_async_driver])
def test_it_is_written_once_and_sent(shop: Effects, send: Any) -> None:
    if send is of_psycopg2 and not shop.store.is_postgresql:
        pytest.skip("a driver of PostgreSQL")
    first, again = send(shop, shop.engine.url), send(shop, shop.engine.url)
    assert (first.existing, again.existing, again.job_id) == (False, True, first.job_id)
    Worker(shop).drain(30)
    message = row(shop, "sent_emails")
    assert (message["state"], message["job_id"]) == ("done", first.job_id)
