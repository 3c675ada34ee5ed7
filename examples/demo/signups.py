"""Act one: sign-ups, each with all that follows from it in one commit; the CRM that should hear of them is gone."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from effects import Effects
from effects_email import send_templated_email
from effects_reports import Notify, request_report
from effects_webhooks import WebhookEvent, deliver_webhook
from examples.demo.shop import BOSS, Day, User

NAMES = ("Ada", "Barbara", "Edsger", "Grace", "Jim", "Katherine", "Leslie", "Margaret")
TAKEN_BACK = "Mallory"  # whose transaction is rolled back


def ready_mail() -> Notify:
    """The message about a report that is ready."""
    words = {name: f"{{{name}}}" for name in ("report", "filename", "rows", "run_id")}
    payload = {"template": "report_ready", "to": BOSS, "context": words, "event_id": "{run_id}"}
    return Notify(job_type="email.compose", payload=payload, on=["ready"])


def sign_up(session: Session, app: Effects, name: str) -> None:
    """The user, the welcome mail, the CRM's webhook and the day's report: all of them, or none."""
    today = datetime.now(UTC).date()
    user = User(email=f"{name.lower()}@users.example", name=name, joined_on=today)
    session.add(user)
    session.flush()
    event = f"user:{user.id}:created"
    send_templated_email("welcome", to=user.email, context={"name": name}, event_id=event, session=session, effects=app)
    deliver_webhook(WebhookEvent("user.created", {"id": user.id}, key=event), session=session, effects=app)
    request_report("signups", Day(today), key=f"signups:{today}", notify=ready_mail(), session=session, effects=app)


def sign_all_up(app: Effects) -> str:
    """Eight users in one transaction each, and one whose transaction fails; gives the run of the day's report."""
    for name in NAMES:
        with Session(app.engine) as session, session.begin():
            sign_up(session, app, name)
    with Session(app.engine) as session:
        sign_up(session, app, TAKEN_BACK)
        session.rollback()
    today = datetime.now(UTC).date()
    return request_report("signups", Day(today), key=f"signups:{today}", effects=app).run_id
