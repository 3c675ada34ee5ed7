"""A small shop in async code: FastAPI, an AsyncSession, and effects in the same transaction.

pip install '.[examples]' ./webhooks uvicorn  # in the checkout
effects --app async_shop:effects init
uvicorn async_shop:web                      # the shop
effects --app async_shop:effects work       # in another terminal
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from effects import Attempt, Effects, JobNotFound, JobType, enqueue_async, status_async
from effects_webhooks import WebhookEvent, deliver_webhook_async


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]


@dataclass
class Parcel:
    order: int
    item: str


class Pack(JobType[Parcel]):
    """A worker runs it in a thread: handlers are plain functions, whatever the app around them is."""

    name = "shop.pack"
    payload = Parcel

    def perform(self, payload: Parcel, attempt: Attempt) -> None:
        attempt.release()
        print(f"packed {payload.item}")  # stands for your warehouse


effects = Effects(job_types=[Pack()])
# The same database, by an asynchronous driver: aiosqlite, or psycopg, which is both; asyncpg works as well.
url = effects.engine.url
engine = create_async_engine(url.set(drivername="sqlite+aiosqlite") if url.get_backend_name() == "sqlite" else url)
sessions = async_sessionmaker(engine)


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()
    effects.dispose()


web = FastAPI(lifespan=lifespan)


async def transaction() -> AsyncIterator[AsyncSession]:
    """One for each request: committed when the handler returns, rolled back when it raises."""
    async with sessions.begin() as session:
        yield session


Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]


@web.post("/orders", status_code=201)
async def place_order(item: str, session: Transaction) -> int:
    """The order, its parcel and the partners' webhook: all of them or none."""
    order = Order(item=item)
    session.add(order)
    await session.flush()
    key = f"order:{order.id}"
    await enqueue_async("shop.pack", Parcel(order.id, item), key=f"{key}:pack", session=session, effects=effects)
    event = WebhookEvent("order.placed", {"order": order.id}, key=f"{key}:placed")
    await deliver_webhook_async(event, session=session, effects=effects)
    if item == "unicorn":
        raise HTTPException(409, "sold out")  # and nothing of the above was there
    return order.id


@web.get("/orders/{order_id}/parcel")
async def parcel_of(order_id: int) -> str:
    """What became of the parcel: `intended` until it is packed, then `done`."""
    try:
        return (await status_async(key=f"order:{order_id}:pack", effects=effects)).state
    except JobNotFound:
        raise HTTPException(404, "there is no such order") from None
