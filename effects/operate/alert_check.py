"""Checking alerts: what holds now, and one job for each episode that begins."""

from __future__ import annotations

from typing import Any

import msgspec

from effects.app.effects import Effects
from effects.calls.enqueue import enqueue
from effects.errors import StoreUnavailable
from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.kit.text.unsafe import is_printable
from effects.model.alerts import Alert, DeadLetters
from effects.model.job import Attempt
from effects.model.outcome import Done
from effects.operate.tables.alert_episodes import begin_episodes, dead_causes, measure
from effects.store.sessions.asynchronous import ALONE


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that holds. `job_id` is the job of an episode that began with this check."""

    alert: str
    subject: str
    summary: str
    value: float
    job_id: int | None = None


def check_alerts(app: Effects) -> list[Firing]:
    """Measure every alert of the app; enqueue the job of each episode that begins.

    The episode and its job are one commit: a crash before it leaves neither, and the next check does both. Any
    number of checks at once enqueue one job. An alert whose job is refused does not stop the others.

    Raises:
        StoreUnavailable: the database is unavailable.
        Exception: why the first job that was refused was, such as a PayloadInvalid; once every alert is checked.
    """
    firing: list[Firing] = []
    failures: list[Exception] = []
    for alert in app.alerts:
        try:
            firing += _check(app, alert)
        except StoreUnavailable:
            raise
        except Exception as error:  # a subject may be the text of a row that anyone has written
            failures.append(error)
    if failures:
        raise failures[0]
    return firing


def _check(app: Effects, alert: Alert) -> list[Firing]:
    with app.writing(ALONE, [app.job_types.get(alert.notify).queue]) as connection:
        values = measure(app.store, connection, alert.rule)
        causes = (
            dead_causes(app.store, connection, alert.rule) if values and isinstance(alert.rule, DeadLetters) else []
        )
        jobs = {}
        for subject, number in begin_episodes(app.store, connection, alert.name, values):
            payload = alert.payload_of(subject, values[subject], causes)
            key = _key(alert.name, number, subject)
            jobs[subject] = enqueue(alert.notify, payload, key=key, session=connection, effects=app).job_id
    return [
        Firing(
            alert=alert.name,
            subject=subject,
            summary=alert.summary(subject, value, causes),
            value=value,
            job_id=jobs.get(subject),
        )
        for subject, value in values.items()
    ]


def _key(alert: str, number: int, subject: str) -> str:
    """Put the number before the subject, which may be long."""
    text = f"alert:{alert}:{number}:{subject}"
    return "".join(char if is_printable(char) else "?" for char in text)[:KEY_CHARS_MAX]


def carry_out(app: Effects, payload: dict[str, Any], attempt: Attempt) -> Done:
    """One attempt of the job `effects.check_alerts`."""
    firing = check_alerts(app)
    return Done(detail={"firing": len(firing), "began": sum(fired.job_id is not None for fired in firing)})
