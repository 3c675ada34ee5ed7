"""A small shop: FastAPI, SQLAlchemy, and effects in the same transaction.

pip install '.[examples]' ./webhooks uvicorn  # in the checkout
effects --app shop:effects init
uvicorn shop:web                      # the shop
effects --app shop:effects work       # in another terminal
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from effects import Alert, Attempt, DeadLetters, Effects, JobType, Sensitive, enqueue
from effects.errors import JobNotFound
from effects.operate.evidence import find_evidence
from effects_webhooks import WebhookEvent, deliver_webhook


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]


@dataclass
class Label:
    """What the printer needs. The address is sealed in the queue, and never shown."""

    order: int
    address: Annotated[str, Sensitive]


class PrintLabel(JobType[Label]):
    name = "shop.print_label"
    payload = Label
    on_unknown = "hold"  # two labels are two parcels: a person looks

    def __init__(self) -> None:
        self.printed: list[Label] = []

    def perform(self, payload: Label, attempt: Attempt) -> None:
        attempt.release()
        self.printed.append(payload)  # stands for your printer


@dataclass
class Word:
    text: str


class TellTeam(JobType[Word]):
    name = "shop.tell_team"
    payload = Word

    def perform(self, payload: Word, attempt: Attempt) -> None:
        print(payload.text)  # stands for your chat


labels = PrintLabel()
effects = Effects(
    job_types=[labels, TellTeam()],
    alerts=[Alert("shop.dead", DeadLetters(), notify="shop.tell_team", payload={"text": "{summary}"})],
)


class NewOrder(BaseModel):
    item: str = Field(min_length=1, max_length=100)
    cents: int = Field(gt=0)
    address: str = Field(min_length=1, max_length=500)


class Placed(BaseModel):
    id: int


class Fate(BaseModel):
    state: str
    attempts: int


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    Base.metadata.create_all(effects.engine)
    yield
    effects.dispose()


web = FastAPI(lifespan=lifespan)


def transaction() -> Iterator[Session]:
    """One for each request: committed when the handler returns, rolled back when it raises."""
    with Session(effects.engine) as session, session.begin():
        yield session


Transaction = Annotated[Session, Depends(transaction, scope="function")]


@web.post("/orders", status_code=201)
def place_order(new: NewOrder, session: Transaction) -> Placed:
    """The order, its parcel's label and the partners' webhook: all of them or none."""
    order = Order(item=new.item, cents=new.cents)
    session.add(order)
    session.flush()
    key = f"order:{order.id}"
    enqueue("shop.print_label", Label(order.id, new.address), key=f"{key}:label", session=session, effects=effects)
    event = WebhookEvent("order.placed", {"order": order.id, "cents": order.cents}, key=f"{key}:placed")
    deliver_webhook(event, session=session, effects=effects)
    if new.item == "unicorn":
        raise HTTPException(409, "sold out")  # and nothing of the above was there
    return Placed(id=order.id)


@web.get("/orders/{order_id}/label")
def label_of(order_id: int) -> Fate:
    """What became of the label: the same that `effects why order:7:label` says."""
    try:
        [evidence] = find_evidence(effects, f"order:{order_id}:label")
    except JobNotFound:
        raise HTTPException(404, "there is no such order") from None
    return Fate(state=evidence.state, attempts=len(evidence.facts.attempts))
