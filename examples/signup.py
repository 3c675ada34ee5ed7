"""A sign-up: the user, the welcome mail, the CRM's webhook and the day's report, in one commit.

export EFFECTS_SMTP_URL=smtp://localhost:25
effects --app signup:app init
effects --app signup:app webhooks endpoints add https://crm.example/hooks --pattern "user.*"
python signup.py ann@example.com Ann
effects --app signup:app work --drain
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from sqlalchemy import GenerativeSelect, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from effects import Effects
from effects_email import send_templated_email
from effects_reports import Notify, report, request_report
from effects_webhooks import WebhookEvent, deliver_webhook


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "shop_users"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    name: Mapped[str]
    joined_on: Mapped[date]


@dataclass
class Day:
    day: date


@report("signups", key=("id",), params=Day, formats=("csv",))
def signups(params: Day) -> GenerativeSelect:
    """Who joined on that day. No address is in it: a report is a file that travels."""
    return select(User.id, User.name).where(User.joined_on == params.day)


app = Effects(
    templates=Path(__file__).parent / "emails",
    email_from="The Shop <hello@shop.example>",
    reports=[signups],
)


# A message to the boss once the report is there: by job type and payload, as all that effects starts by itself.
READY = Notify(
    job_type="email.compose",
    payload={
        "template": "report_ready",
        "to": "boss@shop.example",
        "context": {"report": "{report}", "filename": "{filename}", "rows": "{rows}", "run_id": "{run_id}"},
        "event_id": "{run_id}",
    },
    on=["ready"],
)


def sign_up(session: Session, email: str, name: str) -> User:
    """Add the user and all that follows to the caller's transaction; roll it back, and none of it was there."""
    today = datetime.now(UTC).date()
    user = User(email=email, name=name, joined_on=today)
    session.add(user)
    session.flush()  # gives the user an id
    event = f"user:{user.id}:created"
    send_templated_email("welcome", to=email, context={"name": name}, event_id=event, session=session, effects=app)
    deliver_webhook(WebhookEvent("user.created", {"id": user.id}, key=event), session=session, effects=app)
    # The first sign-up of the day asks for the report, the others find it asked for.
    request_report("signups", Day(today), key=f"signups:{today}", notify=READY, session=session, effects=app)
    return user


if __name__ == "__main__":
    Base.metadata.create_all(app.engine)
    with Session(app.engine) as session, session.begin():
        user = sign_up(session, *sys.argv[1:3])
    print("signed up; the rest is on its way")
    app.dispose()
