"""A purchase: the order, and the webhook that tells a partner about it, in one commit.

effects --app purchase:app init
python purchase.py
effects --app purchase:app work --drain
"""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from effects import Effects
from effects_webhooks import WebhookEvent, WebhookReceipt, deliver_webhook


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "shop_orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    cents: Mapped[int]


app = Effects()


def purchase(session: Session, item: str, cents: int) -> WebhookReceipt:
    """Add the order and its event to the caller's transaction; roll it back, and neither was there."""
    order = Order(item=item, cents=cents)
    session.add(order)
    session.flush()  # gives the order its id
    event = WebhookEvent("order.paid", {"order": order.id, "cents": cents}, key=f"order:{order.id}:paid")
    return deliver_webhook(event, session=session, effects=app)


if __name__ == "__main__":
    Base.metadata.create_all(app.engine)
    with Session(app.engine) as session, session.begin():
        receipt = purchase(session, "teapot", 1990)
    print(f"event {receipt.event_id} is on its way to {len(receipt.deliveries)} endpoints")
    app.dispose()
