"""Subscriptions to reports: a report with its params at a cron slot, by mail to one recipient each, in the database."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects import Effects, Schedule
from effects.extend import (
    AnySession,
    AuditAction,
    app_of,
    ensure_schedule,
    note,
    repr_without,
    retire_schedule,
)
from effects_reports.delivery.mail import mail_notice
from effects_reports.errors import ReportInvalid, ReportNotFound
from effects_reports.notify import NOTICE_LINK_SECONDS, Notify, check_notices
from effects_reports.routing import QUEUE, SUBSCRIBED_TYPE
from effects_reports.state import state_of
from effects_reports.tables import subscriptions as table
from effects_reports.tables.subscriptions import NewSubscription, StoredSubscription

_ADD, _REMOVE, _PAUSE, _RESUME = (AuditAction("subscription", name) for name in ("add", "remove", "pause", "resume"))


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets which report, when and how. Params and recipient are not in its repr."""

    id: str
    report: str
    params: dict[str, Any]
    format: str
    cron: str
    zone: str
    schedule: str
    to: str
    template: str
    paused: bool
    created_at: datetime

    def __repr__(self) -> str:
        return repr_without(self, ("params", "to"))


def subscribe(
    report: str,
    params: Mapping[str, Any] | None = None,
    *,
    to: str,
    template: str,
    cron: str,
    link_to: str,
    zone: str = "UTC",
    format: str | None = None,  # noqa: A002 - as of request_report
    attach_bytes_max: int = 0,
    link_seconds: float = NOTICE_LINK_SECONDS,
    link_uses: int | None = None,
    locale: str | None = None,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> str:
    """Send a report by mail to one recipient, at each slot of a cron text, until `unsubscribe`.

    Subscriptions that share report, params, format and slots share a schedule, and at each slot one run, with one mail
    a recipient. Missed slots are handled as of a schedule: the newest is made up for.

    Args:
        report, format: as for `request_report`.
        params: the same; `{slot}`, `{slot_date}` and `{previous_slot_date}` in their texts are filled in from the slot.
        to: one address. Stored sealed.
        template, link_to, attach_bytes_max, link_seconds, link_uses: as for `mail_notice`.
        cron: five fields, in the time zone `zone` (IANA; default UTC).
        locale: of the mail.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Returns:
        The subscription's id; of the one that is there, if this recipient has this report at these times already.

    Raises:
        ReportInvalid, DefinitionInvalid: as `request_report`, with the params of the next slot.
        ConfigurationError: the cron text, the zone or the template is not valid.
        KeyUnavailable: EFFECTS_KEYS holds no key to seal the address with.
    """
    app = app_of(effects, session)
    definition = state_of(app).registry.get(report)
    file = format or definition.formats[0]
    words: dict[str, Any] = {} if locale is None else {"locale": locale}
    notice = mail_notice(
        template, to, link_to=link_to, attach_bytes_max=attach_bytes_max, link_seconds=link_seconds,
        link_uses=link_uses, **words,
    )  # fmt: skip
    check_notices(app, [notice])
    schedule = _schedule(report, dict(params or {}), file, cron, zone)
    app.job_types.check_declared(schedule)
    new = NewSubscription(
        id=_new_id(), schedule=schedule.name, report=report, params=dict(params or {}), format=file, cron=cron,
        zone=zone, notice=_without_recipient(notice), recipient=app.keys.digest(to),
    )  # fmt: skip
    sealed = app.keys.seal(to.encode(), **_context(new.id))
    with app.writing(session, {QUEUE}) as connection:
        if not table.insert(app.store, connection, new, sealed):
            existing = table.read_all(app.store, connection, report=report, recipient=new.recipient)
            return next(row.id for row in existing if row.schedule == schedule.name)
        ensure_schedule(app.store, connection, schedule)
        detail = {"report": report, "schedule": schedule.name, "cron": cron, "zone": zone}
        note(app.store, connection, _ADD, new.id, actor=actor, reason=reason, detail=detail)
    return new.id


def unsubscribe(
    subscription_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """End a subscription. A run that has been requested for it still sends its mail.

    Args:
        subscription_id: as `subscribe` gave it.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound: there is no such subscription.
    """
    app = app_of(effects, session)
    with app.writing(session, {QUEUE}) as connection:
        schedule = table.delete(app.store, connection, subscription_id)
        if schedule is None:
            raise _no_subscription(subscription_id)
        needed = partial(table.has_any, app.store, connection, schedule)
        retire_schedule(app.store, connection, schedule, unless=needed)
        note(app.store, connection, _REMOVE, subscription_id, actor=actor, reason=reason)


def pause_subscription(
    subscription_id: str, *, actor: str = "app", reason: str | None = None, effects: Effects | None = None
) -> bool:
    """Send nothing for it until `resume_subscription`; what falls into the pause is not made up for.

    Args:
        subscription_id: as `subscribe` gave it.
        actor, reason: who and why, for the audit log.
        effects: the Effects to use; default the process's.

    Returns:
        False if it was paused already.

    Raises:
        ReportNotFound: there is no such subscription.
    """
    return _set_paused(subscription_id, True, _PAUSE, actor, reason, effects)


def resume_subscription(
    subscription_id: str, *, actor: str = "app", reason: str | None = None, effects: Effects | None = None
) -> bool:
    """Go on with the next slot.

    Args:
        subscription_id: as `subscribe` gave it.
        actor, reason: who and why, for the audit log.
        effects: the Effects to use; default the process's.

    Returns:
        False if it was not paused.

    Raises:
        ReportNotFound: there is no such subscription.
    """
    return _set_paused(subscription_id, False, _RESUME, actor, reason, effects)


def _set_paused(
    subscription_id: str, paused: bool, action: AuditAction, actor: str, reason: str | None, effects: Effects | None
) -> bool:
    app = app_of(effects)
    with app.store.begin() as connection:
        is_changed = table.set_paused(app.store, connection, subscription_id, paused)
        if is_changed is None:
            raise _no_subscription(subscription_id)
        if is_changed:
            note(app.store, connection, action, subscription_id, actor=actor, reason=reason)
    return is_changed


def list_subscriptions(
    *, report: str | None = None, to: str | None = None, effects: Effects | None = None
) -> list[Subscription]:
    """List subscriptions, the oldest first.

    Args:
        report: only those of this report.
        to: only those of this address, as it was given.
        effects: the Effects to use; default the process's.

    Raises:
        KeyUnavailable: EFFECTS_KEYS lacks the key that an address is sealed with.
    """
    app = app_of(effects)
    recipient = None if to is None else app.keys.digest(to)
    with app.store.read() as connection:
        rows = table.read_all(app.store, connection, report=report, recipient=recipient)
    return [_subscription(app, row) for row in rows]


def notices_at(app: Effects, connection: Connection, schedule: str) -> list[Notify]:
    """What a run at a slot of this schedule tells, and whom.

    Raises:
        KeyUnavailable: EFFECTS_KEYS lacks the key that an address is sealed with.
    """
    return [_notice(app, row) for row in table.active(app.store, connection, schedule)]


def _notice(app: Effects, row: StoredSubscription) -> Notify:
    document = row.notice
    payload = {**document["payload"], "to": _address(app, row)}
    return msgspec.convert({**document, "payload": payload}, Notify)


def _without_recipient(notice: Notify) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(notice)
    return {**document, "payload": {name: value for name, value in document["payload"].items() if name != "to"}}


def _subscription(app: Effects, row: StoredSubscription) -> Subscription:
    return Subscription(
        id=row.id, report=row.report, params=row.params, format=row.format, cron=row.cron, zone=row.zone,
        schedule=row.schedule, to=_address(app, row), template=row.notice["payload"]["template"], paused=row.paused,
        created_at=row.created_at,
    )  # fmt: skip


def _address(app: Effects, row: StoredSubscription) -> str:
    return app.keys.open(row.sealed, **_context(row.id)).decode()


def _schedule(report: str, params: dict[str, Any], file: str, cron: str, zone: str) -> Schedule:
    what = msgspec.json.encode([report, params, file, cron, zone], order="sorted")
    name = f"reports.subscribed.{hashlib.sha256(what).hexdigest()[:16]}"
    payload = {"schedule": name, "slot": "{slot}", "report": report, "params": params, "format": file}
    try:
        return Schedule(name, SUBSCRIBED_TYPE, payload, cron=cron, zone=zone)
    except TypeError as error:
        raise ReportInvalid(f"report {report!r}: the params are no JSON: {error}") from None


def _new_id() -> str:
    return f"sub_{time.time_ns() // 1_000_000:012x}{os.urandom(6).hex()}"


def _context(subscription_id: str) -> dict[str, str]:
    return {"table": "report_subscriptions", "row": subscription_id, "field": "to"}


def sealed_context(row: Any) -> dict[str, str]:
    """What an address is sealed for, by its row."""
    return _context(row.id)


def _no_subscription(subscription_id: str) -> ReportNotFound:
    return ReportNotFound(f"there is no subscription {subscription_id}")
