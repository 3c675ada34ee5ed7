"""Who a message is from and to, and the headers that follow from it: what messages have in common, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from effects import ConfigurationError, Effects
from effects.extend import OnUnknown, arguments, described, optional, require
from effects_email.errors import EmailInvalid
from effects_email.message.address import Recipient, parse_mailbox, recipient
from effects_email.message.attachments import File
from effects_email.message.headers import check_header
from effects_email.message.invite import Invite
from effects_email.message.source import Address
from effects_email.state import state_of
from effects_email.suppressions.suppression import TRANSACTIONAL
from effects_email.templates.folder import Version
from effects_email.unsubscribe import unsubscribe_headers


@dataclass(frozen=True, slots=True, kw_only=True)
class EmailFields:
    """What every message may be given; see `send_templated_email`."""

    to: Recipient | Sequence[Recipient] = field(repr=False)
    event_id: str | None = None
    key: str | None = None
    category: str | None = None
    transport: str | None = None
    attachments: Sequence[File | str | Path] = field(default=(), repr=False)
    invite: Invite | None = field(default=None, repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    run_at: datetime | None = None
    expires_at: datetime | None = None
    on_unknown: OnUnknown | None = None
    sender: Recipient | None = field(default=None, repr=False)
    group: bool = False
    cc: Sequence[Recipient] = field(default=(), repr=False)
    bcc: Sequence[Recipient] = field(default=(), repr=False)
    reply_to: Sequence[Recipient] = field(default=(), repr=False)
    despite_suppression: str | None = None
    return_path: Recipient | None = field(default=None, repr=False)
    tags: Sequence[str] = ()
    metadata: Mapping[str, str] | None = field(default=None, repr=False)


def to_of(email: EmailFields) -> tuple[Address, ...]:
    if isinstance(email.to, str | Address):
        return (recipient(email.to, where="to"),)
    if not isinstance(email.to, Sequence) or isinstance(email.to, bytes | bytearray):
        raise EmailInvalid(f"to is {described(email.to)}; give an address")
    if not email.group:
        raise EmailInvalid(
            "to is a list: give group=True for one message whose recipients see each other, or call "
            "send_templated_emails with a message for each"
        )
    recipients = addresses_of("to", email.to)
    if not recipients:
        raise EmailInvalid("to is empty; a message needs a recipient")
    return recipients


def group_of(email: EmailFields, where: str, recipients: Sequence[Recipient]) -> tuple[Address, ...]:
    if recipients and not email.group:
        raise EmailInvalid(f"{where} is for a message to a group: give group=True")
    return addresses_of(where, recipients)


def addresses_of(where: str, recipients: Sequence[Recipient]) -> tuple[Address, ...]:
    if isinstance(recipients, str | Address):
        raise EmailInvalid(f"{where} is one address; give a list")
    require(where, recipients, arguments.listed, EmailInvalid)
    return tuple(recipient(address, where=where) for address in recipients)


def sender_of(app: Effects, email: EmailFields, version: Version) -> Address:
    if email.sender is not None:
        return recipient(email.sender, where="sender")
    if version.declared.sender is not None:
        return parse_mailbox(version.declared.sender, where=f"template {version.name!r}: sender")
    default = state_of(app).settings.sender
    if default is None:
        raise ConfigurationError(
            "a message needs a sender: set EFFECTS_EMAIL_FROM, such as 'Shop <hello@shop.example>'"
        )
    return default


def headers_of(app: Effects, email: EmailFields, to: Address, category: str | None) -> tuple[tuple[str, str], ...]:
    """The caller's, and the way out of the category's mail where the caller gave none."""
    require("headers", email.headers, optional(arguments.mapping), EmailInvalid)
    headers = tuple(check_header(name, value) for name, value in (email.headers or {}).items())
    names = {name.lower() for name, _ in headers}
    if len(names) < len(headers):
        raise EmailInvalid("headers: a name is given twice")
    if "list-unsubscribe" in names:
        return headers
    if email.group and category not in (None, TRANSACTIONAL):
        raise EmailInvalid("a message to a group has no category: its link would unsubscribe one for all of them")
    return (*headers, *unsubscribe_headers(app, to.spec, category))
