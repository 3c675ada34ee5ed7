"""From what an app asks for to a message that can be written: addresses checked, template rendered, all fixed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from effects import ConfigurationError, Effects
from effects.extend import (
    ON_UNKNOWN,
    OnUnknown,
    app_of,
    arguments,
    check_arguments,
    described,
    optional,
    path_of_fault,
    printable,
    require,
    to_plain,
)
from effects_email.errors import EmailInvalid
from effects_email.message import attachments as files
from effects_email.message.address import Recipient, normal_form, parse_mailbox, recipient
from effects_email.message.attachments import File
from effects_email.message.headers import check_header
from effects_email.message.key import key_of, plain_key_of
from effects_email.message.source import Address, MessageSource, StoredContent
from effects_email.settings import DEFAULT_TRANSPORT, check_transport_name
from effects_email.state import state_of
from effects_email.suppression import TEXT_CHARS_MAX, TRANSACTIONAL
from effects_email.templates.folder import Version
from effects_email.unsubscribe import unsubscribe_headers

RECIPIENTS_MAX = 100
CATEGORY_CHARS_MAX = 100
CONTEXT_BYTES_MAX = 256 * 1024
_RULES = {
    "template": arguments.printable(),
    **dict.fromkeys(("event_id", "key", "locale", "category", "transport"), optional(arguments.text)),
    "despite_suppression": optional(arguments.printable(TEXT_CHARS_MAX)),
    **dict.fromkeys(("run_at", "expires_at"), optional(arguments.aware)),
    "on_unknown": optional(arguments.one_of(ON_UNKNOWN)),
    "group": arguments.flag,
}
_json = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class NewEmail:
    """One message to write; the arguments are those of `send_templated_email`."""

    template: str
    _: KW_ONLY
    to: Recipient | Sequence[Recipient] = field(repr=False)
    context: Mapping[str, Any] = field(repr=False)
    event_id: str | None = None
    key: str | None = None
    locale: str | None = None
    category: str | None = None
    transport: str | None = None
    attachments: Sequence[File | str | Path] = ()
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


class RenderedEmail(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is rendered and not yet written."""

    key: str
    plain_key: str | None  # a derived key in the form that it has without a `digest` key, else None
    event_id: str | None
    canonical: str  # what the digest is taken of: the caller's own words, not the template's version
    version: Version
    content: StoredContent
    category: str | None
    transport: str
    on_unknown: OnUnknown | None
    run_at: datetime | None
    expires_at: datetime | None
    group: bool
    despite_suppression: str | None

    @property
    def source(self) -> MessageSource:
        return self.content.source

    def __repr__(self) -> str:
        return f"RenderedEmail(key={self.key!r})"


def render_email(app: Effects, email: NewEmail, now: datetime) -> RenderedEmail:
    """
    Args:
        now: the Date, unless the message is for later.

    Raises:
        As `send_templated_email`.
    """
    _check(email)
    state = state_of(app)
    to = _to(email)
    version = state.folder.find(email.template, email.locale)
    declared = version.declared
    context = _context(email.context)
    rendered = state.renderer.render(version, email.context)
    sender = _sender(app, email, version)
    category = _category(email.category or declared.category)
    later = email.run_at is not None and email.run_at > now
    date = (email.run_at if later and email.run_at is not None else now).astimezone(UTC).replace(microsecond=0)
    source = MessageSource(
        message_id=f"{uuid.uuid4().hex}@{sender.domain}",
        date=date,
        sender=sender,
        to=to,
        cc=_group(email, "cc", email.cc),
        bcc=_group(email, "bcc", email.bcc),
        reply_to=_addresses("reply_to", email.reply_to),
        subject=rendered.subject,
        text=rendered.text,
        html=rendered.html,
        headers=_headers(app, email, to[0], category),
        attachments=files.describe(app, email.attachments),
    )
    if len(source.recipients()) > RECIPIENTS_MAX:
        raise EmailInvalid(f"a message to a group has at most {RECIPIENTS_MAX} recipients")
    return RenderedEmail(
        key=key_of(app, email.template, email.event_id, to, own=email.key),
        plain_key=_plain_key(app, email, to),
        event_id=email.event_id,
        canonical=_canonical(email, source, context),
        version=version,
        content=StoredContent(source, context),
        category=category,
        transport=check_transport_name(email.transport or declared.transport or DEFAULT_TRANSPORT),
        on_unknown=email.on_unknown or declared.on_unknown,
        run_at=email.run_at,
        expires_at=_expires_at(email, declared.expires_seconds, date),
        group=email.group,
        despite_suppression=email.despite_suppression,
    )


def check_template(app: Effects, template: str, locale: str | None, transport: str | None) -> None:
    """Refuse a template that there is not, and a name that no transport has.

    Raises:
        TemplateNotFound, TemplateError, ConfigurationError: names it.
    """
    version = state_of(app).folder.find(template, locale)
    check_transport_name(transport or version.declared.transport or DEFAULT_TRANSPORT)


# -- the pieces ------------------------------------------------------------------------------------------------------


def _check(email: NewEmail) -> None:
    check_arguments(email, _RULES, EmailInvalid)


def _to(email: NewEmail) -> tuple[Address, ...]:
    if isinstance(email.to, str | Address):
        return (recipient(email.to, where="to"),)
    if not isinstance(email.to, Sequence):
        raise EmailInvalid(f"to is {described(email.to)}; give an address")
    if not email.group:
        raise EmailInvalid(
            "to is a list: give group=True for one message whose recipients see each other, or call "
            "send_templated_emails with a message for each"
        )
    recipients = _addresses("to", email.to)
    if not recipients:
        raise EmailInvalid("to is empty; a message needs a recipient")
    return recipients


def _group(email: NewEmail, where: str, recipients: Sequence[Recipient]) -> tuple[Address, ...]:
    if recipients and not email.group:
        raise EmailInvalid(f"{where} is for a message to a group: give group=True")
    return _addresses(where, recipients)


def _addresses(where: str, recipients: Sequence[Recipient]) -> tuple[Address, ...]:
    if isinstance(recipients, str | Address):
        raise EmailInvalid(f"{where} is one address; give a list")
    return tuple(recipient(address, where=where) for address in recipients)


def _sender(app: Effects, email: NewEmail, version: Version) -> Address:
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


def _headers(app: Effects, email: NewEmail, to: Address, category: str | None) -> tuple[tuple[str, str], ...]:
    """The caller's, and the way out of the category's mail where the caller gave none."""
    headers = tuple(check_header(name, value) for name, value in (email.headers or {}).items())
    names = {name.lower() for name, _ in headers}
    if len(names) < len(headers):
        raise EmailInvalid("headers: a name is given twice")
    if "list-unsubscribe" in names:
        return headers
    if email.group and category not in (None, TRANSACTIONAL):
        raise EmailInvalid("a message to a group has no category: its link would unsubscribe one for all of them")
    return (*headers, *unsubscribe_headers(app, to.spec, category))


def _context(context: Mapping[str, Any]) -> str:
    """The context as JSON text: for the digest, and for rendering again."""
    if not isinstance(context, Mapping):
        raise EmailInvalid(f"context is {described(context)}; give a dict")
    try:
        text = _as_json(context)
    except (TypeError, ValueError, RecursionError) as error:
        kind = str(error) if isinstance(error, TypeError) else "no JSON"  # names the class, not the value
        raise EmailInvalid(
            f"context{path_of_fault(context, _as_json)}: {kind}; give texts, numbers, moments, lists, dicts, "
            "dataclasses, msgspec or pydantic models"
        ) from None
    if len(text) > CONTEXT_BYTES_MAX:
        raise EmailInvalid(f"context: {len(text):,} bytes as JSON, and the limit is {CONTEXT_BYTES_MAX:,}")
    return text


def _as_json(value: Any) -> str:
    return _json.encode(to_plain(value)).decode()


def _category(category: str | None) -> str | None:
    require("category", category, optional(printable(CATEGORY_CHARS_MAX)), EmailInvalid)
    return category


def _expires_at(email: NewEmail, seconds: float | None, date: datetime) -> datetime | None:
    if email.expires_at is None and seconds is not None:
        return date + timedelta(seconds=seconds)
    return email.expires_at


def _plain_key(app: Effects, email: NewEmail, to: Sequence[Address]) -> str | None:
    if email.key is not None or email.event_id is None:
        return None
    return plain_key_of(app, email.template, email.event_id, to)


def email_key(
    template: str, *, to: Recipient | Sequence[Recipient], event_id: str, effects: Effects | None = None
) -> str:
    """The key of the message that `send_templated_email` writes, or has written, for these three without a `key`.

    By it `effects.cancel(key=…)` withdraws a message whose receipt is not at hand.

    Args:
        to: one address; for a message to a group the list of those in To.

    Raises:
        AddressInvalid, EmailInvalid: an address, the template's name or the event id is malformed.
    """
    one_recipient = isinstance(to, str | Address)
    email = NewEmail(template, to=to, context={}, event_id=event_id, group=not one_recipient)
    require("event_id", event_id, printable(), EmailInvalid)
    return key_of(app_of(effects), template, event_id, _to(email))


def _canonical(email: NewEmail, source: MessageSource, context: str) -> str:
    """The caller's own words. Neither the template's text nor a file's bytes: a deploy makes no conflict of a retry."""
    people = {
        name: [normal_form(address.spec) for address in getattr(source, name)]
        for name in ("to", "cc", "bcc", "reply_to")
    }
    words: list[Any] = [
        email.template, people, msgspec.Raw(context.encode()), email.locale, email.category, email.transport,
        files.names(email.attachments), sorted((email.headers or {}).items()),
    ]  # fmt: skip
    return _json.encode(words).decode()
