"""Subscriptions: who gets which report, when, and by which notice. The recipient is sealed."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects import Effects, KeyUnavailable, Schedule
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments, optional, require, require_json, to_plain
from effects.extend.jobs import app_of, ensure_schedule, retire_schedule
from effects.extend.sql import AnySession
from effects.extend.text import repr_without
from effects_reports.delivery.buckets import DEFAULT_OBJECT, bucket_notice, check_buckets
from effects_reports.delivery.link_tokens import LINK_SECONDS_MAX, LINK_SECONDS_MIN, USES_MAX
from effects_reports.errors import ReportInvalid, ReportNotFound
from effects_reports.routing import DELIVER_TYPE, QUEUE, SUBSCRIBED_TYPE
from effects_reports.runs.notify import ATTACH_BYTES_MAX, NOTICE_LINK_SECONDS, Notify, check_notices
from effects_reports.state import state_of
from effects_reports.tables import subscriptions as table
from effects_reports.tables.buckets import subscriber_of
from effects_reports.tables.subscriptions import NewSubscription, StoredSubscription

_CONTEXT = {
    name: f"{{{name}}}" for name in ("run_id", "report", "state", "filename", "rows", "bytes", "link", "attachment")
}


def mail_notice(
    template: str,
    to: str | Sequence[str],
    *,
    link_to: str | None = None,
    attach_bytes_max: int | None = None,
    link_seconds: float = NOTICE_LINK_SECONDS,
    link_uses: int | None = None,
    link_principal: str | None = None,
    context: Mapping[str, Any] | None = None,
    on: Sequence[str] = ("ready",),
    **payload: Any,
) -> Notify:
    """A templated mail when a run has ended: `Notify(job_type="email.compose", …)`, written out.

    One run sends it once: the mail's key is derived from the run's id, and repeated only after `resume`. Templates have
    `run_id`, `report`, `state`, `filename`, `rows`, `bytes`; and `link`, empty if the file is attached (`attachment` is
    then the name of its object, else empty).

    Args:
        template: of effects-email.
        to: one recipient, or several of one mail.
        link_to: where `download_app` is mounted, as for `download_url`. Without it the file is attached; the notice of
            one that is too large is a dead letter, and no mail goes without the file.
        attach_bytes_max: a file of at most so many bytes is attached. Default: with `link_to` none is, without it one
            of up to 7,000,000 bytes.
        link_seconds: how long the link is good, from when the run is ready on. Default 3 days, at most 7.
        link_uses: for how many downloads; default any number.
        link_principal: for whom alone, as for `download_url`.
        context: more for the template; placeholders in it are filled in.
        on: `ready` (default), `failed` or both.
        payload: other fields of `email.compose`, such as `locale` and `category`.

    Raises:
        ReportInvalid: `context` is no mapping. The rest `request_report` checks.
    """
    require("context", context, optional(arguments.mapping), ReportInvalid)
    if attach_bytes_max is None:
        attach_bytes_max = ATTACH_BYTES_MAX if link_to is None else 0
    words = {**_CONTEXT, **({"link": ""} if link_to is None else {}), **(context or {})}
    files = {"attachments": [{"name": "{attachment}", "filename": "{filename}"}]} if attach_bytes_max else {}
    return Notify(
        job_type="email.compose",
        payload={
            "template": template, "to": to, "event_id": "{run_id}:{restart}",
            "context": words, **files, **payload,
        },
        on=on, link_to=link_to, link_seconds=link_seconds, link_uses=link_uses, link_principal=link_principal,
        attach_bytes_max=attach_bytes_max,
    )  # fmt: skip


_BY_DEFAULT = {"attach_bytes_max": 0, "link_seconds": NOTICE_LINK_SECONDS}


class _Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """One as `subscribe` was told.

    Attributes:
        notice: what a run tells it.
        name: the address, or the bucket's name; not in the repr.
        digest: the same name gives the same; an address cannot be read from it.
    """

    notice: Notify
    name: str
    digest: str

    def __repr__(self) -> str:
        return repr_without(self, ("notice", "name"))


def _subscriber(
    app: Effects, *, to: str | None, bucket: str | None, object_name: str | None, by_mail: dict[str, Any]
) -> _Subscriber:
    """The one subscriber that the arguments of `subscribe` name, with a notice that can be enqueued.

    Raises:
        ReportInvalid: they name none, two, or what does not go with the one; or as `check_notices`.
        BucketInvalid: the object's name cannot be used.
        KeyUnavailable: EFFECTS_KEYS lacks a key that the notice takes.
    """
    named = _named(app, to=to, bucket=bucket, object_name=object_name, by_mail=by_mail)
    check_notices(app, [named.notice])
    return named


def _named(
    app: Effects, *, to: str | None, bucket: str | None, object_name: str | None, by_mail: dict[str, Any]
) -> _Subscriber:
    surplus = sorted(name for name, value in by_mail.items() if value != _BY_DEFAULT.get(name))
    if bucket is not None:
        if to is not None or surplus:
            others = ", ".join(surplus if to is None else ["to", *surplus])
            raise ReportInvalid(f"subscribe: bucket is given, and {others}, which is for mail: subscribe once for each")
        return _bucket(bucket, object_name or DEFAULT_OBJECT)
    if to is None:
        raise ReportInvalid("subscribe: give to, template and link_to for mail, or bucket")
    if object_name is not None:
        raise ReportInvalid("subscribe: object_name is given without bucket")
    if absent := [name for name in ("template", "link_to") if by_mail[name] is None]:
        raise ReportInvalid(f"subscribe: mail needs {' and '.join(absent)} too")
    words = {name: value for name, value in by_mail.items() if name != "locale" or value is not None}
    return _Subscriber(notice=mail_notice(to=to, **words), name=to, digest=app.keys.digest(to))


def _bucket(name: str, object_name: str) -> _Subscriber:
    return _Subscriber(notice=bucket_notice(name, object_name=object_name), name=name, digest=subscriber_of(name))


def _kept_notice(notice: Notify) -> dict[str, Any]:
    """The notice without the subscriber's name, as its row keeps it."""
    document: dict[str, Any] = msgspec.to_builtins(notice, enc_hook=to_plain)
    field = _field(document)
    return {**document, "payload": {name: value for name, value in document["payload"].items() if name != field}}


def notice_of(app: Effects, row: StoredSubscription) -> Notify:
    """The notice again, with its name.

    Raises:
        KeyUnavailable: EFFECTS_KEYS lacks the key that the name is sealed with.
    """
    payload = {**row.notice["payload"], _field(row.notice): open_name(app, row)}
    return msgspec.convert({**row.notice, "payload": payload}, Notify)


def _is_bucket(row: StoredSubscription) -> bool:
    return bool(row.notice["job_type"] == DELIVER_TYPE)


def _field(document: dict[str, Any]) -> str:
    return "bucket" if document["job_type"] == DELIVER_TYPE else "to"


def _seal_name(app: Effects, subscription_id: str, name: str) -> bytes:
    return app.keys.seal(name.encode(), **_context(subscription_id))


def open_name(app: Effects, row: StoredSubscription) -> str:
    return app.keys.open(row.sealed, **_context(row.id)).decode()


def _context(subscription_id: str) -> dict[str, str]:
    return {"table": "report_subscriptions", "row": subscription_id, "field": "to"}


def sealed_context(row: Any) -> dict[str, str]:
    """What a name is sealed for, by its row."""
    return _context(row.id)


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
        session: the caller's transaction, never committed by us. Without one, our own transaction.
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
    receiver = _subscriber(app, to=to, bucket=bucket, object_name=object_name, by_mail=by_mail)
    values = _plain(report, params or {})
    schedule = _schedule(app, report, values, file, cron, zone)
    new = NewSubscription(
        id=_new_id(), schedule=schedule.name, report=report, params=values, format=file, cron=cron,
        zone=zone, notice=_kept_notice(receiver.notice), recipient=receiver.digest,
    )  # fmt: skip
    with app.writing(session, {QUEUE}) as connection:
        check_buckets(app, connection, [receiver.notice])
        if not table.insert(app.store, connection, new, _seal_name(app, new.id, receiver.name)):
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
        session: the caller's transaction, never committed by us. Without one, our own transaction.
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
    name, into_bucket = _name_if_it_opens(app, row), _is_bucket(row)
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
