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

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, KeyUnavailable
from effects.extend import (
    AnySession,
    AuditAction,
    app_of,
    arguments,
    aware,
    is_printable,
    moment,
    moment_or_none,
    note,
    optional,
    printable,
    require,
)
from effects_email.errors import AddressInvalid, SuppressionInvalid
from effects_email.message.address import Recipient, address_digest, address_digests, spec_of
from effects_email.suppressions.bounces import end_of
from effects_email.suppressions.rows import ALL, REASONS, Reason, new_row, opened, write
from effects_email.tables import soft_failures
from effects_email.tables import suppressions as table
from effects_email.tables.suppressions import LogRow

_SUPPRESS, _LIFT = AuditAction("address", "suppress"), AuditAction("address", "unsuppress")
TEXT_CHARS_MAX = 1000
_SEVERAL = re.compile(r"[\s,;<>]")
_WHY = optional(printable(TEXT_CHARS_MAX, chars_min=0))
CATEGORY_CHARS_MAX = 100
TRANSACTIONAL = "transactional"  # the category of requested messages, such as receipts, which have no unsubscribe


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
        write(app, connection, [row])
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
        soft_failures.clear(app.store, connection, forms)
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
    return Suppression(
        id=row.id,
        address=opened(app, row),
        scope=row.scope,
        reason=row.reason,
        source=row.source,
        until=moment_or_none(row.until),
        actor=row.actor,
        why=row.why,
        created_at=moment(row.created_at),
    )
