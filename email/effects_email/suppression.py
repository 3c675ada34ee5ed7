"""Who is not written to: hard bounces, complaints, unsubscribes, an operator's word, and failures that repeat.

    reason        reaches                      ends
    hard_bounce   everything                   after 180 days
    complaint     everything                   never
    unsubscribe   its category                 never
    manual        as set                       as set
    soft_repeat   everything                   after 14 days, or when a message is delivered

An address has one row for each reason and scope, so that one that ends takes no other with it. It is looked up by a
digest and shown from a sealed text: see `effects_email.message.address`. What someone did stands in
`effects_email_suppression_log`, an override too. Checked at the call and once more before a message leaves.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, KeyUnavailable
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import DAY_SECONDS, arguments, aware, optional, printable, require
from effects.extend.jobs import app_of
from effects.extend.rows import record
from effects.extend.secrets import SealedColumn
from effects.extend.sql import AnySession
from effects.extend.text import is_printable, moment
from effects_email.errors import AddressInvalid, SuppressionInvalid
from effects_email.message.address import Recipient, address_digest, address_digests, spec_of
from effects_email.tables import suppressions as table
from effects_email.tables.ledger import AddressFailure
from effects_email.tables.suppressions import LogRow, SuppressionRow

Reason: TypeAlias = Literal["hard_bounce", "complaint", "unsubscribe", "manual", "soft_repeat"]
# Of several that hold, the first of these is named.
REASONS: tuple[Reason, ...] = ("complaint", "hard_bounce", "manual", "unsubscribe", "soft_repeat")
ALL = "all"  # the scope of what reaches every message
# How long a cause without an explicit end holds. A hard bounce: an address may be given to someone else, or a host
# may have been misread.
DAYS: dict[Reason, int] = {"hard_bounce": 180, "soft_repeat": 14}
SOFT_FAILURES, SOFT_DAYS, SOFT_WINDOW_DAYS = 5, 3, 30
_SUPPRESS, _LIFT = AuditAction("address", "suppress"), AuditAction("address", "unsuppress")
TEXT_CHARS_MAX = 1000
_SEVERAL = re.compile(r"[\s,;<>]")
_WHY = optional(printable(TEXT_CHARS_MAX, chars_min=0))
CATEGORY_CHARS_MAX = 100
TRANSACTIONAL = "transactional"  # the category of requested messages, such as receipts, which have no unsubscribe


def new_row(
    app: Effects,
    address: str | None,
    reason: Reason,
    *,
    digest: str | None = None,
    category: str | None = None,
    until: float | None,
    source: str,
    actor: str,
    why: str | None,
) -> SuppressionRow:
    """The row of a suppression.

    Args:
        address: None where only its digest is known; the row holds all the same, and shows no address.
        until: seconds since 1970 by the database's clock, None forever.
    """
    digest, sealing = digest or address_digest(app, address or ""), bool(app.keys.ids)
    return SuppressionRow(
        id=f"sup_{os.urandom(12).hex()}",
        digest=digest,
        scope=category or ALL,
        reason=reason,
        source=source,
        address=None if sealing else address,
        sealed=app.keys.seal(address.encode(), **_context(digest)) if sealing and address else None,
        until=until,
        actor=actor,
        why=why,
    )


def write_suppressions(app: Effects, connection: Connection, rows: Sequence[SuppressionRow]) -> None:
    """Write rows and their lines in the log, in the order of the digests: two workers lock them in the same order."""
    rows = sorted(rows, key=lambda row: (row.digest, row.scope, row.reason))
    table.write(app.store, connection, rows)
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="suppressed", scope=row.scope, reason=row.reason, actor=row.actor, why=row.why)
        for row in rows
    ])  # fmt: skip


def opened(app: Effects, row: Row[Any]) -> str | None:
    """The address of a row; None where its key is not at hand."""
    if row.sealed is None:
        address: str | None = row.address
        return address
    try:
        return app.keys.open(bytes(row.sealed), **_context(row.digest)).decode()
    except KeyUnavailable:
        return None


def sealed_columns() -> list[SealedColumn]:
    """What `effects keys` counts and rotates."""
    return [
        SealedColumn(
            table="email_suppressions",
            column="sealed",
            id_column="id",
            columns=("digest",),
            context=lambda row: _context(row.digest),
        )
    ]


def _context(digest: str) -> dict[str, str]:
    # By the digest and not the id: a row that is written again keeps its id and takes the newer text.
    return {"table": "email_suppressions", "row": digest, "field": "address"}


def end_of(app: Effects, connection: Connection, reason: Reason) -> float | None:
    """When a suppression of this reason ends that begins now, in seconds since 1970; None for never."""
    return app.store.now(connection) + DAYS[reason] * DAY_SECONDS if reason in DAYS else None


def note_failures(app: Effects, connection: Connection, failures: Sequence[AddressFailure], *, source: str) -> None:
    """Take in refusals: a hard one suppresses at once, soft ones at the fifth on a third day within 30 days.

    Writes in the caller's transaction: the settling one, so that a refusal and what follows from it are one fact. At
    most six statements, however many failures.

    Args:
        source: where it comes from: `smtp`, `resend`, `postmark`.
    """
    hard = {address_digest(app, failure.address): failure for failure in failures if failure.kind == "hard"}
    soft = [failure for failure in failures if failure.kind == "soft"]
    rows = _rows(app, connection, list(hard.values()), "hard_bounce", source)
    rows += _rows(app, connection, _repeating(app, connection, soft), "soft_repeat", source)
    write_suppressions(app, connection, rows)


def _rows(
    app: Effects, connection: Connection, failures: Sequence[AddressFailure], reason: Reason, source: str
) -> list[SuppressionRow]:
    if not failures:
        return []
    until = end_of(app, connection, reason)
    return [
        new_row(app, failure.address, reason, until=until, source=source, actor=source, why=failure.code)
        for failure in failures
    ]


def _repeating(app: Effects, connection: Connection, soft: Sequence[AddressFailure]) -> list[AddressFailure]:
    """Count these failures; the last one of each address whose number is full."""
    if not soft:
        return []
    last = {address_digest(app, failure.address): failure for failure in soft}
    table.count_failures(app.store, connection, Counter(address_digest(app, failure.address) for failure in soft))
    full = table.repeated_failures(
        app.store, connection, sorted(last), failures=SOFT_FAILURES, days=SOFT_DAYS, window_days=SOFT_WINDOW_DAYS
    )
    return [last[digest] for digest in full]


def note_delivered(app: Effects, connection: Connection, addresses: Iterable[str], *, source: str) -> None:
    """Reset the soft failures of addresses that a provider reports as delivered."""
    forms = sorted({form for address in addresses for form in address_digests(app, address)})
    if not forms:
        return
    table.clear_failures(app.store, connection, forms)
    lifted = table.lift(app.store, connection, forms, reason="soft_repeat")
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="delivered", scope=row.scope, reason=row.reason, actor=source)
        for row in lifted
    ])  # fmt: skip


def take_back(app: Effects, connection: Connection, digests: Sequence[str], *, code: str, since: float) -> None:
    """A refusal turned out to be no fault of these addresses: what it has put on the list is lifted.

    Args:
        code: of the refusal; other suppressions of the same addresses stay.
        since: its first report, in seconds since 1970.
    """
    lifted = table.lift_since(app.store, connection, digests, why=code, since=since)
    table.note(app.store, connection, [
        LogRow(digest=row.digest, action="lifted", scope=row.scope, reason=row.reason, actor="effects",
               why=f"{code} was the transport's fault")
        for row in lifted
    ])  # fmt: skip


class Suppression(msgspec.Struct, frozen=True, kw_only=True):
    """One that holds. `address` is None where the key that it is sealed with is not at hand."""

    id: str
    address: str | None
    scope: str  # `all`, or the category
    reason: Reason
    source: str
    until: datetime | None
    actor: str
    why: str | None
    created_at: datetime

    def __repr__(self) -> str:
        return f"Suppression(id={self.id!r}, scope={self.scope!r}, reason={self.reason!r})"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """What was done about an address: `suppressed`, `lifted`, `delivered` (ended a soft_repeat) or `overridden`."""

    action: str
    scope: str | None
    reason: str | None
    actor: str
    why: str | None
    created_at: datetime


# -- the check -----------------------------------------------------------------------------------------------------


def suppressed(
    app: Effects, connection: Connection, recipients: Sequence[tuple[str, str | None]]
) -> list[Reason | None]:
    """For each (address, category): why it must not be written to, or None. One statement for all of them.

    Args:
        connection: any; nothing is written.
        recipients: the category None is a message of none, which no unsubscribe reaches.

    Raises:
        KeyUnavailable: the list has addresses that only the missing `digest` key tells.
    """
    forms = [address_digests(app, address) for address, _ in recipients]
    if not forms:
        return []
    _check_digest_key(app, connection)
    held: dict[str, list[tuple[str, Reason]]] = {}
    for row in table.active(app.store, connection, sorted({digest for form in forms for digest in form})):
        held.setdefault(row.digest, []).append((row.scope, row.reason))
    return [
        _strongest(reason for digest in form for scope, reason in held.get(digest, ()) if scope in (ALL, category))
        for form, (_, category) in zip(forms, recipients, strict=True)
    ]


def _check_digest_key(app: Effects, connection: Connection) -> None:
    if not app.keys.digests_are_keyed and table.has_keyed_digests(app.store, connection):
        raise digest_key_missing("whether an address is suppressed")


def digest_key_missing(what: str) -> KeyUnavailable:
    return KeyUnavailable(
        f"{what} cannot be told without the key named digest that EFFECTS_KEYS had when its rows were written: set it "
        "again"
    )


def _strongest(reasons: Iterable[Reason]) -> Reason | None:
    distinct = set(reasons)
    return next((reason for reason in REASONS if reason in distinct), None)


# -- for the operator and the app ----------------------------------------------------------------------------------


@arguments.checked(SuppressionInvalid, source=arguments.NAME, actor=arguments.NAME)
def suppress(
    address: Recipient,
    *,
    category: str | None = None,
    reason: Reason = "manual",
    until: datetime | None = None,
    source: str = "app",
    actor: str = "app",
    why: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> None:
    """Suppress an address. Repeating it replaces the entry of the same cause and category.

    Args:
        address: `ann@example.com`, `Ann <ann@example.com>` or an `Address`; the name is not kept.
        category: messages of this category only. Default all messages.
        reason: see the top of the module. An unsubscribe needs a category.
        until: aware; default forever (a hard bounce: 180 days).
        source: where it comes from, such as `app`, `smtp` or `resend`.
        actor, why: for the log; `why` has at most 1,000 characters.
        session: as for `send_templated_email`; it becomes true with the caller's commit.

    Raises:
        AddressInvalid, SuppressionInvalid: no address, or a category, reason, end or text that cannot be; nothing was
            written.
        StoreUnavailable: the database is unavailable (without `session`). Calling again is safe.
    """
    app, address = app_of(effects, session), spec_of(address)
    _check(address, category, reason, until, why)
    with app.writing(session) as connection:
        end = until.timestamp() if until is not None else end_of(app, connection, reason)
        if until is not None and until.timestamp() <= app.store.now(connection):
            raise SuppressionInvalid(
                f"until is {until:%Y-%m-%d %H:%M %Z}, which has passed: nothing would be suppressed"
            )
        row = new_row(app, address, reason, category=category, until=end, source=source, actor=actor, why=why)
        write_suppressions(app, connection, [row])
        detail = {"cause": reason, "scope": row.scope, "until": end, "source": source}
        note(app.store, connection, _SUPPRESS, row.digest, actor=actor, reason=why, detail=detail)


@arguments.checked(SuppressionInvalid, category=optional(arguments.NAME), actor=arguments.NAME)
def unsuppress(
    address: Recipient,
    *,
    category: str | None = None,
    reason: Reason | None = None,
    actor: str = "app",
    why: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> int:
    """Lift the suppressions of an address, and forget the soft failures that were counted.

    Args:
        category: of this category only (`all` names those of everything). Default any.
        reason: of this reason only. Default any.

    Returns:
        How many were lifted.

    Raises:
        As `suppress`.
    """
    app, address = app_of(effects, session), spec_of(address)
    _check_address(address)
    require("reason", reason, optional(arguments.one_of(REASONS)), SuppressionInvalid)
    require("why", why, _WHY, SuppressionInvalid)
    forms = address_digests(app, address)
    with app.writing(session) as connection:
        _check_digest_key(app, connection)
        lifted = table.lift(app.store, connection, forms, scope=category or "", reason=reason or "")
        table.clear_failures(app.store, connection, forms)
        lines = [
            LogRow(digest=row.digest, action="lifted", scope=row.scope, reason=row.reason, actor=actor, why=why)
            for row in lifted
        ]
        table.note(app.store, connection, lines)
        if lines:
            detail = {"lifted": [{"cause": line.reason, "scope": line.scope} for line in lines]}
            note(app.store, connection, _LIFT, forms[0], actor=actor, reason=why, detail=detail)
    return len(lines)


@arguments.checked(
    SuppressionInvalid,
    category=optional(arguments.NAME),
    reason=optional(arguments.one_of(REASONS)),
    limit=arguments.whole(1, arguments.LIST_MAX),
)
def list_suppressions(
    *,
    category: str | None = None,
    reason: Reason | None = None,
    limit: int = 100,
    effects: Effects | None = None,
) -> list[Suppression]:
    """What holds now, the last change first; at most `limit`.

    Args:
        category: only those of this category.
        reason: only those for this reason.
        effects: the Effects to use; default the process's.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        rows = table.newest(app.store, connection, scope=category or "", reason=reason or "", size=limit)
    return [_shown(app, row) for row in rows]


def find_suppressions(address: Recipient, *, effects: Effects | None = None) -> list[Suppression]:
    """What holds for an address, oldest first.

    Args:
        effects: the Effects to use; default the process's.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        _check_digest_key(app, connection)
        rows = table.of(app.store, connection, address_digests(app, spec_of(address)))
    return [_shown(app, row) for row in rows]


@arguments.checked(SuppressionInvalid, limit=arguments.whole(1, arguments.LIST_MAX))
def suppression_log(address: Recipient, *, limit: int = 100, effects: Effects | None = None) -> list[LogLine]:
    """What was done about an address, newest first; at most `limit`.

    Args:
        effects: the Effects to use; default the process's.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        rows = table.log_of(app.store, connection, address_digests(app, spec_of(address)), limit)
    return [
        LogLine(
            action=row.action, scope=row.scope, reason=row.reason, actor=row.actor, why=row.why,
            created_at=moment(row.created_at),
        )
        for row in rows
    ]  # fmt: skip


def note_override(app: Effects, connection: Connection, addresses: Iterable[str], *, actor: str, why: str) -> None:
    """Keep that a message was sent although its recipients are suppressed, such as a notice that the law demands.

    To be written with the message's row, in the same transaction.
    """
    table.note(app.store, connection, [
        LogRow(digest=address_digest(app, address), action="overridden", actor=actor, why=why)
        for address in addresses
    ])  # fmt: skip


def _check_address(address: str) -> None:
    local, at, domain = address.strip().rpartition("@")
    if not (local and at and domain) or len(address) > 320 or not is_printable(address):
        raise AddressInvalid("not a valid e-mail address: give local@domain, at most 320 printable characters")
    if _SEVERAL.search(address.strip()):  # it would be an address that no message has, and nothing be suppressed
        raise AddressInvalid("not a valid e-mail address: give one, without blanks, commas and angle brackets")


def _check(address: str, category: str | None, reason: str, until: datetime | None, why: str | None) -> None:
    _check_address(address)
    if reason not in REASONS:
        raise SuppressionInvalid(f"reason is {reason!r}; give one of {', '.join(REASONS)}")
    require("category", category, optional(printable(CATEGORY_CHARS_MAX)), SuppressionInvalid)
    require("until", until, optional(aware), SuppressionInvalid)
    require("why", why, _WHY, SuppressionInvalid)
    if reason == "unsubscribe" and category in (None, ALL, TRANSACTIONAL):
        raise SuppressionInvalid(
            "an unsubscribe is from a category: name it, or give the reason manual to end all mail"
        )
    if reason not in ("unsubscribe", "manual") and category not in (None, ALL):
        raise SuppressionInvalid(f"{reason} reaches every message: leave out the category")


def _shown(app: Effects, row: Row[Any]) -> Suppression:
    return record(Suppression, row, address=opened(app, row))
