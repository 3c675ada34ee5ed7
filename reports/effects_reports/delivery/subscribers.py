"""Who a subscription is for, a recipient of mail or a bucket, and the notice that its row keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from effects import Effects
from effects.extend import repr_without, to_plain
from effects_reports.delivery.buckets import DEFAULT_OBJECT, bucket_notice
from effects_reports.delivery.mail import mail_notice
from effects_reports.errors import ReportInvalid
from effects_reports.routing import DELIVER_TYPE
from effects_reports.runs.notify import NOTICE_LINK_SECONDS, Notify, check_notices
from effects_reports.tables.buckets import subscriber_of
from effects_reports.tables.subscriptions import StoredSubscription

_BY_DEFAULT = {"attach_bytes_max": 0, "link_seconds": NOTICE_LINK_SECONDS}


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
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


def subscriber(
    app: Effects, *, to: str | None, bucket: str | None, object_name: str | None, by_mail: dict[str, Any]
) -> Subscriber:
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
) -> Subscriber:
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
    return Subscriber(notice=mail_notice(to=to, **words), name=to, digest=app.keys.digest(to))


def _bucket(name: str, object_name: str) -> Subscriber:
    return Subscriber(notice=bucket_notice(name, object_name=object_name), name=name, digest=subscriber_of(name))


def kept_notice(notice: Notify) -> dict[str, Any]:
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


def is_bucket(row: StoredSubscription) -> bool:
    return bool(row.notice["job_type"] == DELIVER_TYPE)


def _field(document: dict[str, Any]) -> str:
    return "bucket" if document["job_type"] == DELIVER_TYPE else "to"


def seal_name(app: Effects, subscription_id: str, name: str) -> bytes:
    return app.keys.seal(name.encode(), **_context(subscription_id))


def open_name(app: Effects, row: StoredSubscription) -> str:
    return app.keys.open(row.sealed, **_context(row.id)).decode()


def _context(subscription_id: str) -> dict[str, str]:
    return {"table": "report_subscriptions", "row": subscription_id, "field": "to"}


def sealed_context(row: Any) -> dict[str, str]:
    """What a name is sealed for, by its row."""
    return _context(row.id)
