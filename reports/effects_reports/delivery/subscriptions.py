"""Subscriptions to reports: a report with its params at a cron slot, for one recipient or bucket, in the database."""

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

from effects import Effects, KeyUnavailable, Schedule
from effects.extend import (
    AnySession,
    AuditAction,
    app_of,
    arguments,
    ensure_schedule,
    note,
    optional,
    repr_without,
    require_json,
    retire_schedule,
    to_plain,
)
from effects_reports.delivery.buckets import check_buckets
from effects_reports.delivery.link_tokens import LINK_SECONDS_MAX, LINK_SECONDS_MIN, USES_MAX
from effects_reports.delivery.subscribers import (
    is_bucket,
    kept_notice,
    open_name,
    seal_name,
    subscriber,
)
from effects_reports.errors import ReportInvalid, ReportNotFound
from effects_reports.routing import QUEUE, SUBSCRIBED_TYPE
from effects_reports.runs.notify import ATTACH_BYTES_MAX, NOTICE_LINK_SECONDS
from effects_reports.state import state_of
from effects_reports.tables import subscriptions as table
from effects_reports.tables.buckets import subscriber_of
from effects_reports.tables.subscriptions import NewSubscription, StoredSubscription

ADDRESS_CHARS_MAX = 1000
TEXT_CHARS_MAX = 2000  # of what is then checked for what it is
_ADD, _REMOVE, _PAUSE, _RESUME = (AuditAction("subscription", name) for name in ("add", "remove", "pause", "resume"))


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """Who gets which report, when and how: by mail (`to`, `template`) or into a bucket; the others are None.

    `unopened`: EFFECTS_KEYS lacks the key of its recipient, or the row was altered, so `to` and `bucket` are None.
    Params and recipient are not in its repr.
    """

    id: str
    report: str
    params: dict[str, Any]
    format: str
    cron: str
    zone: str
    schedule: str
    to: str | None
    template: str | None
    bucket: str | None
    paused: bool
    unopened: bool
    created_at: datetime

    def __repr__(self) -> str:
        return repr_without(self, ("params", "to"))


@arguments.checked(
    ReportInvalid,
    **dict.fromkeys(("report", "cron", "zone"), arguments.NAME),
    **dict.fromkeys(("template", "bucket", "format", "locale"), optional(arguments.NAME)),
    **dict.fromkeys(("to", "link_to", "object_name"), optional(arguments.printable(TEXT_CHARS_MAX, chars_min=0))),
    params=optional(arguments.mapping),
    attach_bytes_max=arguments.whole(0, ATTACH_BYTES_MAX),
    link_seconds=arguments.number(LINK_SECONDS_MIN, LINK_SECONDS_MAX),
    link_uses=optional(arguments.whole(1, USES_MAX)),
    **arguments.ACTING,
)
def subscribe(
    report: str,
    params: Mapping[str, Any] | None = None,
    *,
    cron: str,
    to: str | None = None,
    template: str | None = None,
    link_to: str | None = None,
    bucket: str | None = None,
    object_name: str | None = None,
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
    """Send a report by mail to one recipient, or into one bucket, at each slot of a cron text, until `unsubscribe`.

    Subscriptions that share report, params, format and slots share a schedule, and at each slot one run, with one mail
    a recipient and one upload a bucket. Missed slots are handled as of a schedule: the newest is made up for.

    Args:
        report, format: as for `request_report`.
        params: the same; `{slot}`, `{slot_date}` and `{previous_slot_date}` in their texts are filled in from the slot.
        cron: five fields, in the time zone `zone` (IANA; default UTC).
        to: for mail: one address. Stored sealed.
        template, link_to, attach_bytes_max, link_seconds, link_uses: for mail, as for `mail_notice`.
        bucket: from `add_bucket`, instead of mail. Once it is removed, each delivery is refused (`no_bucket`).
        object_name: as for `bucket_notice`.
        locale: of the mail.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, a transaction of our own.
        effects: the Effects to use; default the process's.

    Returns:
        The subscription's id; of the one that is there, if the receiver has this report at these times already.

    Raises:
        ReportInvalid, DefinitionInvalid: as `request_report`, with the params of the next slot; no such bucket.
        BucketInvalid: the object's name cannot be used.
        ConfigurationError: the cron text, the zone or the template is not valid.
        KeyUnavailable: EFFECTS_KEYS holds no key to seal the address with.
    """
    app = app_of(effects, session)
    definition = state_of(app).registry.get(report)
    file = format or definition.formats[0]
    by_mail = {
        "template": template, "link_to": link_to, "attach_bytes_max": attach_bytes_max, "link_seconds": link_seconds,
        "link_uses": link_uses, "locale": locale,
    }  # fmt: skip
    receiver = subscriber(app, to=to, bucket=bucket, object_name=object_name, by_mail=by_mail)
    values = _plain(report, params or {})
    schedule = _schedule(app, report, values, file, cron, zone)
    new = NewSubscription(
        id=_new_id(), schedule=schedule.name, report=report, params=values, format=file, cron=cron,
        zone=zone, notice=kept_notice(receiver.notice), recipient=receiver.digest,
    )  # fmt: skip
    with app.writing(session, {QUEUE}) as connection:
        check_buckets(app, connection, [receiver.notice])
        if not table.insert(app.store, connection, new, seal_name(app, new.id, receiver.name)):
            return _existing_id(app, connection, new)
        ensure_schedule(app.store, connection, schedule)
        detail = {"report": report, "schedule": schedule.name, "cron": cron, "zone": zone}
        note(app.store, connection, _ADD, new.id, actor=actor, reason=reason, detail=detail)
    return new.id


def _existing_id(app: Effects, connection: Connection, new: NewSubscription) -> str:
    rows = table.read_all(app.store, connection, report=new.report, recipient=new.recipient)
    return next(row.id for row in rows if row.schedule == new.schedule)


@arguments.checked(ReportInvalid, subscription_id=arguments.NAME, **arguments.ACTING)
def unsubscribe(
    subscription_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """End a subscription. A run that has been requested for it is still delivered.

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


@arguments.checked(ReportInvalid, subscription_id=arguments.NAME, **arguments.ACTING)
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


@arguments.checked(ReportInvalid, subscription_id=arguments.NAME, **arguments.ACTING)
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


@arguments.checked(
    ReportInvalid,
    report=optional(arguments.NAME),
    to=optional(arguments.printable(ADDRESS_CHARS_MAX)),
    bucket=optional(arguments.NAME),
)
def list_subscriptions(
    *, report: str | None = None, to: str | None = None, bucket: str | None = None, effects: Effects | None = None
) -> list[Subscription]:
    """List subscriptions, the oldest first; also those whose recipient no key opens.

    Args:
        report: only those of this report.
        to: only those of this address, as it was given.
        bucket: only those into this bucket.
        effects: the Effects to use; default the process's.

    Raises:
        ReportInvalid: both `to` and `bucket` are given.
    """
    app = app_of(effects)
    if to is not None and bucket is not None:
        raise ReportInvalid("list_subscriptions: give to or bucket: a subscription has one of them")
    recipient = subscriber_of(bucket) if bucket is not None else None if to is None else app.keys.digest(to)
    with app.store.read() as connection:
        rows = table.read_all(app.store, connection, report=report, recipient=recipient)
    return [_subscription(app, row) for row in rows]


def _subscription(app: Effects, row: StoredSubscription) -> Subscription:
    name, into_bucket = _name_if_it_opens(app, row), is_bucket(row)
    return Subscription(
        id=row.id, report=row.report, params=row.params, format=row.format, cron=row.cron, zone=row.zone,
        schedule=row.schedule, to=None if into_bucket else name, template=row.notice["payload"].get("template"),
        bucket=name if into_bucket else None, paused=row.paused, unopened=name is None, created_at=row.created_at,
    )  # fmt: skip


def _name_if_it_opens(app: Effects, row: StoredSubscription) -> str | None:
    try:
        return open_name(app, row)
    except KeyUnavailable:
        return None


def _schedule(app: Effects, report: str, params: dict[str, Any], file: str, cron: str, zone: str) -> Schedule:
    what = msgspec.json.encode([report, params, file, cron, zone], order="sorted", enc_hook=to_plain)
    name = f"reports.subscribed.{hashlib.sha256(what).hexdigest()[:16]}"
    payload = {"schedule": name, "slot": "{slot}", "report": report, "params": params, "format": file}
    schedule = Schedule(name, SUBSCRIBED_TYPE, payload, cron=cron, zone=zone)
    app.job_types.check_declared(schedule)
    return schedule


def _plain(report: str, params: Mapping[str, Any]) -> dict[str, Any]:
    require_json(f"report {report!r}: params", params, ReportInvalid)
    return dict(to_plain(params))


def _new_id() -> str:
    return f"sub_{time.time_ns() // 1_000_000:012x}{os.urandom(6).hex()}"


def _no_subscription(subscription_id: str) -> ReportNotFound:
    return ReportNotFound(f"there is no subscription {subscription_id}")
