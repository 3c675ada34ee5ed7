"""Buckets of customers that finished files are delivered into: their names, addresses and credentials."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of, ensure_limit
from effects.extend.sql import AnySession
from effects.extend.text import is_printable, why_unfilled
from effects_reports.errors import BucketInvalid, BucketNotFound, ReportInvalid
from effects_reports.routing import DELIVER_TYPE, bucket_limit_key
from effects_reports.runs.notify import Notify
from effects_reports.state import state_of
from effects_reports.tables import buckets as table
from effects_reports.transport.address import check_object, parse_address

if TYPE_CHECKING:
    from effects import Effects

DEFAULT_OBJECT = "{report}/{run_id}/{filename}"
_OBJECT_WORDS = ("run_id", "restart", "report", "key", "filename")
_UPLOADS_MAX = 2  # at once into one bucket
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_SECRET_CHARS_MAX = 1024
_ADD, _ROTATE, _REMOVE = (AuditAction("bucket", name) for name in ("add", "rotate", "remove"))


class BucketCredentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What opens a bucket. Not in its repr."""

    access_key_id: str
    secret_access_key: str

    def __repr__(self) -> str:
        return "BucketCredentials(…)"


class CustomerBucket(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket without its credentials; `updated_at` is when these were last changed.

    Args:
        subscriptions: how many deliver into it, paused ones too.
    """

    name: str
    url: str
    created_at: datetime
    updated_at: datetime
    subscriptions: int


@arguments.checked(BucketInvalid, name=arguments.NAME, **arguments.ACTING)
def add_bucket(
    name: str,
    url: str,
    credentials: BucketCredentials,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Add a bucket that `bucket_notice(name)` delivers into. It is not asked: the first delivery does that.

    Args:
        name: of your own, such as `acme`: lower-case letters, digits, `.`, `-` and `_`, at most 63.
        url: `s3://bucket/prefix?region=…`; of another store than Amazon's with `&endpoint=https://…`. Its address must
            be public, as that of a webhook, unless EFFECTS_BUCKET_PRIVATE_NETWORKS opens its network. Stored in clear.
        credentials: stored sealed by EFFECTS_KEYS, and never shown again.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Raises:
        BucketInvalid: the name is taken, or something does not fit.
        KeyUnavailable: EFFECTS_KEYS holds no key to seal with.
    """
    app = app_of(effects, session)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BucketInvalid("a bucket's name has lower-case letters, digits, '.', '-' and '_', at most 63")
    address = parse_address(url, allow_private=state_of(app).bucket_networks)
    sealed = _seal(app, name, credentials)
    with app.writing(session, set()) as connection:
        if not table.insert(app.store, connection, name=name, url=url, sealed=sealed):
            raise BucketInvalid(f"there is a bucket {name!r} already; rotate its credentials, or remove it first")
        ensure_limit(app.store, connection, bucket_limit_key(name), max_in_flight=_UPLOADS_MAX)
        note(app.store, connection, _ADD, name, actor=actor, reason=reason, detail={"bucket": address.bucket})


@arguments.checked(BucketInvalid, name=arguments.NAME, **arguments.ACTING)
def rotate_bucket(
    name: str,
    credentials: BucketCredentials,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Replace a bucket's credentials. Attempts that begin after the commit sign with the new ones.

    Args:
        name, credentials: as for `add_bucket`.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Raises:
        BucketNotFound: there is no such bucket.
        BucketInvalid, KeyUnavailable: as `add_bucket`.
    """
    app = app_of(effects, session)
    sealed = _seal(app, name, credentials)
    with app.writing(session, set()) as connection:
        if not table.rotate(app.store, connection, name, sealed):
            raise no_bucket(name)
        note(app.store, connection, _ROTATE, name, actor=actor, reason=reason)


@arguments.checked(BucketInvalid, name=arguments.NAME, **arguments.ACTING)
def remove_bucket(
    name: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> int:
    """Forget a bucket and its credentials. Deliveries into it that wait end refused (`no_bucket`); what is there stays.

    Subscriptions that deliver into it stay too, and so do their refusals at each slot, until the name is added again.

    Args:
        name: of the bucket.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Returns:
        How many subscriptions that are.

    Raises:
        BucketNotFound: there is no such bucket.
    """
    app = app_of(effects, session)
    with app.writing(session, set()) as connection:
        if not table.delete(app.store, connection, name):
            raise no_bucket(name)
        note(app.store, connection, _REMOVE, name, actor=actor, reason=reason)
        return table.count_subscriptions(app.store, connection).get(name, 0)


def list_buckets(*, effects: Effects | None = None) -> list[CustomerBucket]:
    """List all buckets by name, without credentials.

    Args:
        effects: the Effects to use; default the process's.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        rows = table.read_buckets(app.store, connection).values()
        subscriptions = table.count_subscriptions(app.store, connection)
    return [
        CustomerBucket(
            name=row.name, url=row.url, created_at=row.created_at, updated_at=row.updated_at,
            subscriptions=subscriptions.get(row.name, 0),
        )
        for row in rows
    ]  # fmt: skip


@arguments.checked(BucketInvalid, bucket=arguments.NAME, object_name=arguments.text)
def bucket_notice(bucket: str, *, object_name: str = DEFAULT_OBJECT) -> Notify:
    """The finished file into a bucket: `Notify(job_type="report.deliver", …)`, written out.

    Each upload is its own effect, with the key `deliver/RUN/BUCKET`, and is tried 12 times over a day. An
    object that is there already is never replaced.

    Args:
        bucket: a name from `add_bucket`.
        object_name: of the object, below the prefix of the bucket, with `{run_id}`, `{restart}`, `{report}`, `{key}`
            and `{filename}`. Default `{report}/{run_id}/{filename}`.

    Raises:
        BucketInvalid: the object's name has another placeholder, or cannot be used.
    """
    if (why := why_unfilled(object_name, _OBJECT_WORDS)) is not None:
        raise BucketInvalid(f"object_name: {why}")
    check_object(object_name)
    suffix = "" if object_name == DEFAULT_OBJECT else f"/{hashlib.sha256(object_name.encode()).hexdigest()[:8]}"
    return Notify(
        job_type=DELIVER_TYPE, payload={"run_id": "{run_id}", "bucket": bucket, "object": object_name}, on=("ready",),
        key=f"deliver/{{run_id}}/{bucket}{suffix}",
    )  # fmt: skip


def check_buckets(app: Effects, connection: Connection, notices: Iterable[Notify]) -> None:
    """Refuse deliveries into buckets that are not there, or that this process has no key for.

    Raises:
        ReportInvalid: there is no such bucket.
        KeyUnavailable: EFFECTS_KEYS lacks the key of its credentials.
    """
    names = [str(notice.payload.get("bucket")) for notice in notices if notice.job_type == DELIVER_TYPE]
    if not names:
        return
    rows = table.read_buckets(app.store, connection, names)
    for name in names:
        if name not in rows:
            raise ReportInvalid(f"there is no bucket {name!r}: add it, or see `effects reports buckets list`")
        open_credentials(app, name, rows[name].sealed)


def open_credentials(app: Effects, name: str, sealed: bytes) -> BucketCredentials:
    """The credentials of a bucket.

    Raises:
        KeyUnavailable: EFFECTS_KEYS lacks their key. SealInvalid: the row was altered.
    """
    return msgspec.json.decode(app.keys.open(sealed, **_context(name)), type=BucketCredentials)


def _seal(app: Effects, name: str, credentials: BucketCredentials) -> bytes:
    if not isinstance(credentials, BucketCredentials):
        raise BucketInvalid("give the credentials as BucketCredentials(access_key_id, secret_access_key)")
    for text in (credentials.access_key_id, credentials.secret_access_key):
        fits = isinstance(text, str) and 0 < len(text) <= _SECRET_CHARS_MAX and text.isascii() and is_printable(text)
        if not fits or text != text.strip():
            raise BucketInvalid("the credentials are empty, too long, no printable ASCII, or have a space at an end")
    return app.keys.seal(msgspec.json.encode(credentials), **_context(name))


def _context(name: str) -> dict[str, str]:
    return {"table": "report_buckets", "row": name, "field": "credentials"}


def sealed_context(row: Any) -> dict[str, str]:
    """What credentials are sealed for, by their row."""
    return _context(row.name)


def no_bucket(name: str) -> BucketNotFound:
    """The error for a name that no bucket has."""
    return BucketNotFound(f"there is no bucket {name!r}")
