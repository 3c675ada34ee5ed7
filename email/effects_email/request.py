"""From what an app asks for to a message that can be written: addresses checked, template rendered, all fixed.

First what messages have in common: whom a message is from and to, and the headers that follow from it.
"""

from __future__ import annotations

import hashlib
import inspect
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from effects import ConfigurationError, Effects
from effects.extend.arguments import arguments, check_arguments, optional, printable, require, require_json, to_plain
from effects.extend.jobs import ON_UNKNOWN, OnUnknown, app_of
from effects.extend.process import lazy
from effects.extend.text import described
from effects_email.errors import EmailInvalid, RenderingFailed
from effects_email.message import attachments as files
from effects_email.message.address import Recipient, normal_form, parse_mailbox, recipient
from effects_email.message.attachments import File
from effects_email.message.invite import Invite, calendar_of, content_type_of
from effects_email.message.mime import check_header
from effects_email.message.source import Address, MessageSource, StoredContent, metadata_of, tags_of
from effects_email.settings import DEFAULT_TRANSPORT, check_transport_name
from effects_email.state import state_of
from effects_email.suppression import TEXT_CHARS_MAX, TRANSACTIONAL
from effects_email.templates.folder import LAYOUT, Version, without_template
from effects_email.unsubscribe import unsubscribe_headers

if TYPE_CHECKING:
    from effects_email.templates.rendering import Rendered

with lazy.modules(__name__):
    from effects_email.templates import rendering

Call = TypeVar("Call", bound=Callable[..., Any])
RECIPIENTS_MAX = 100
CATEGORY_CHARS_MAX = 100
CONTEXT_BYTES_MAX = 256 * 1024
_FIELD_RULES = {
    **dict.fromkeys(("event_id", "key", "category", "transport"), optional(arguments.text)),
    "despite_suppression": optional(arguments.printable(TEXT_CHARS_MAX)),
    **dict.fromkeys(("run_at", "expires_at"), optional(arguments.aware)),
    "on_unknown": optional(arguments.one_of(ON_UNKNOWN)),
    "group": arguments.flag,
}
_RULES = {
    "template": arguments.printable(),
    "locale": optional(arguments.text),
    **_FIELD_RULES,
}
_DIRECT_RULES = {
    "subject": arguments.text, **dict.fromkeys(("text", "html", "markdown"), optional(arguments.text)), **_FIELD_RULES
}  # fmt: skip
_NO_STAMP = datetime(1970, 1, 1, tzinfo=UTC)
_json = msgspec.json.Encoder(order="deterministic", enc_hook=to_plain)  # texts of a subclass, such as SafeString


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
    cc: Recipient | Sequence[Recipient] = field(default=(), repr=False)
    bcc: Recipient | Sequence[Recipient] = field(default=(), repr=False)
    reply_to: Recipient | Sequence[Recipient] = field(default=(), repr=False)
    despite_suppression: str | None = None
    return_path: Recipient | None = field(default=None, repr=False)
    tags: Sequence[str] = ()
    metadata: Mapping[str, str] | None = field(default=None, repr=False)


class EmailOptions(TypedDict, total=False):
    """`EmailFields` but for `to`, as keyword arguments of a call; `send_templated_email` says what each means."""

    event_id: str | None
    key: str | None
    category: str | None
    transport: str | None
    attachments: Sequence[File | str | Path]
    invite: Invite | None
    headers: Mapping[str, str] | None
    run_at: datetime | None
    expires_at: datetime | None
    on_unknown: OnUnknown | None
    sender: Recipient | None
    group: bool
    cc: Recipient | Sequence[Recipient]
    bcc: Recipient | Sequence[Recipient]
    reply_to: Recipient | Sequence[Recipient]
    despite_suppression: str | None
    return_path: Recipient | None
    tags: Sequence[str]
    metadata: Mapping[str, str] | None


def spelled_out(call: Call) -> Call:
    """Show each of a call's `EmailOptions` in its signature, for `help` and whoever inspects it."""
    signature = inspect.signature(call)
    options = [
        inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.type)
        for option in fields(EmailFields)
        if option.name in EmailOptions.__annotations__
    ]
    parameters = list(signature.parameters.values())[:-1]
    call.__signature__ = signature.replace(parameters=parameters + options)  # type: ignore[attr-defined]
    return call


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
    return addresses_of("to", email.to)


def group_of(email: EmailFields, where: str, recipients: Recipient | Sequence[Recipient]) -> tuple[Address, ...]:
    if recipients and not email.group:
        raise EmailInvalid(f"{where} is for a message to a group: give group=True")
    return addresses_of(where, recipients)


def addresses_of(where: str, recipients: Recipient | Sequence[Recipient]) -> tuple[Address, ...]:
    """One address, or a list of them."""
    if isinstance(recipients, str | Address):
        return (recipient(recipients, where=where),)
    require(where, recipients, arguments.listed, EmailInvalid)
    return once(recipient(address, where=where) for address in recipients)


def once(addresses: Iterable[Address], others: Iterable[Address] = ()) -> tuple[Address, ...]:
    """The addresses that are not among the others, each once: the first form of it that was written."""
    seen = {normal_form(address.spec) for address in others}
    first: dict[str, Address] = {}
    for address in addresses:
        form = normal_form(address.spec)
        if form not in seen:
            first.setdefault(form, address)
    return tuple(first.values())


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


def headers_of(
    app: Effects, email: EmailFields, to: Sequence[Address], category: str | None
) -> tuple[tuple[str, str], ...]:
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
    return (*headers, *unsubscribe_headers(app, to[0].spec, category)) if to else headers


def _key_of(app: Effects, template: str, event_id: str | None, to: Sequence[Address], own: str | None = None) -> str:
    """The caller's own; else of recipients, template and event id; else one that no other call has.

    Keys are shown to operators: of an address there is a digest in it.

    Raises:
        EmailInvalid: the event id or the key is malformed.
    """
    if own is not None:
        key = own
    elif event_id is None:
        key = f"{template}:{uuid.uuid4().hex}"
    else:
        key = _derived_key(template, event_id, app.keys.digest(_key_recipients(to)))
    require("event_id", event_id, optional(printable()), EmailInvalid)
    require("the key (of template, event_id and recipient)", key, printable(), EmailInvalid)
    return key


def _plain_key_of(app: Effects, template: str, event_id: str, to: Sequence[Address]) -> str:
    """The derived key of a message that was written before there was a `digest` key."""
    return _derived_key(template, event_id, app.keys.digest(_key_recipients(to), like="sha256:"))


def _derived_key(template: str, event_id: str, digest: str) -> str:
    return f"{template}:{event_id}:{hashlib.sha256(digest.encode()).hexdigest()[:16]}"


def _key_recipients(to: Sequence[Address]) -> str:
    who = "\0".join(sorted(normal_form(address.spec) for address in to))
    return f"email key\0{who}"


@dataclass(frozen=True, slots=True)
class NewEmail(EmailFields):
    """One message to write; the arguments are those of `send_templated_email`."""

    template: str
    _: KW_ONLY
    context: Mapping[str, Any] = field(repr=False)
    locale: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectEmail(EmailFields):
    """One message in the caller's own words; the arguments are those of `send_email`."""

    subject: str = field(repr=False)
    text: str | None = field(default=None, repr=False)
    html: str | None = field(default=None, repr=False)
    markdown: str | None = field(default=None, repr=False)


class RenderedEmail(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is rendered and not yet written."""

    key: str
    plain_key: str | None  # a derived key in the form that it has without a `digest` key, else None
    event_id: str | None
    canonical: str  # what the digest is taken of: the caller's own words, not the template's version
    version: Version
    content: StoredContent
    files: Mapping[str, bytes]  # given as bytes, by their sha256
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
    check_arguments(email, _RULES, EmailInvalid)
    state = state_of(app)
    to = to_of(email)  # a bad address is told before a missing template
    version = state.folder.find(email.template, email.locale)
    context = _context(email.context)
    rendered = state.renderer.render(version, email.context)
    return _complete(app, email, now, to, version, rendered, context, msgspec.Raw(context.encode()))


def compose_email(app: Effects, email: DirectEmail, now: datetime) -> RenderedEmail:
    """As `render_email`, of a message that is given by its words.

    Raises:
        As `send_email`.
    """
    check_arguments(email, _DIRECT_RULES, EmailInvalid)
    if not any((email.text, email.html, email.markdown)):
        raise EmailInvalid("a message has none of text, html and markdown, or only empty ones")
    if email.html is not None and email.markdown is not None:
        raise EmailInvalid("a message has both html and markdown, which makes its HTML; give one")
    state, words = state_of(app), [email.subject, email.text, email.html]
    if email.markdown is None:
        version = without_template()
        rendered = state.renderer.take(version, email.subject, email.text, email.html)
    else:
        version = without_template(LAYOUT if state.settings.templates is None else state.folder.markdown_layout())
        rendered = state.renderer.take_markdown(version, email.subject, email.text, email.markdown)
        words.append(email.markdown)
    return _complete(app, email, now, to_of(email), version, rendered, "{}", words)


def _complete(
    app: Effects,
    email: NewEmail | DirectEmail,
    now: datetime,
    to: tuple[Address, ...],
    version: Version,
    rendered: Rendered,
    context: str,
    words: object,
) -> RenderedEmail:
    """The message with its texts: what else it says, and to whom.

    Args:
        words: the caller's, for the digest.
    """
    declared, attached = version.declared, files.listed(email.attachments)
    sender, cc = sender_of(app, email, version), once(group_of(email, "cc", email.cc), to)
    category = _category(email.category or declared.category)
    later = email.run_at is not None and email.run_at > now
    date = (email.run_at if later and email.run_at is not None else now).astimezone(UTC).replace(microsecond=0)
    if email.invite is not None:
        calendar = partial(calendar_of, email.invite, sender=sender, people=(*to, *cc))
        words = [words, calendar(stamp=_NO_STAMP).decode()]  # a later call of the same has another stamp
        attached = (*attached, files.invitation(calendar(stamp=now), content_type_of(email.invite)))
    source = MessageSource(
        message_id=f"{uuid.uuid4().hex}@{sender.domain}",
        date=date,
        sender=sender,
        to=to,
        cc=cc,
        bcc=once(group_of(email, "bcc", email.bcc), (*to, *cc)),
        reply_to=addresses_of("reply_to", email.reply_to),
        subject=rendered.subject,
        text=rendered.text,
        html=rendered.html,
        headers=headers_of(app, email, to, category),
        attachments=files.describe(app, attached),
        return_path=recipient(email.return_path, where="return_path") if email.return_path is not None else None,
        tags=tags_of(email.tags),
        metadata=metadata_of(email.metadata),
    )
    if not source.recipients():
        raise EmailInvalid("to, cc and bcc are empty; a message needs a recipient")
    if len(source.recipients()) > RECIPIENTS_MAX:
        raise EmailInvalid(f"a message to a group has at most {RECIPIENTS_MAX} recipients")
    name, transport = version.name, check_transport_name(email.transport or declared.transport or DEFAULT_TRANSPORT)
    return RenderedEmail(
        key=_key_of(app, name, email.event_id, to, own=email.key),
        plain_key=_plain_key(app, name, email, to),
        event_id=email.event_id,
        canonical=_canonical(email, name, source, attached, words),
        version=version,
        content=StoredContent(source, context),
        files=files.contents(attached, source.attachments),
        category=category,
        transport=transport,
        on_unknown=email.on_unknown or declared.on_unknown,
        run_at=email.run_at,
        expires_at=_expires_at(email, declared.expires_seconds, date),
        group=email.group,
        despite_suppression=email.despite_suppression,
    )


def check_template(app: Effects, email: NewEmail) -> None:
    """Refuse a template that there is not, or that takes what the context lacks, and a transport that there is not.

    What the context has may stand for other values: only names are looked at.

    Raises:
        TemplateNotFound, TemplateError, RenderingFailed, ConfigurationError: names it.
    """
    state = state_of(app)
    version = state.folder.find(email.template, email.locale)
    name = email.transport or version.declared.transport or DEFAULT_TRANSPORT
    check_transport_name(name)
    urls = state.settings.transport_urls()
    if urls and name not in urls:  # a process that knows none leaves that to the workers
        state.transports.get(name)
    if lacking := rendering.variables_of(version) - email.context.keys():
        try:
            state.renderer.render(version, email.context)
        except RenderingFailed as error:
            if any(f"{variable!r} is missing" in str(error) for variable in lacking):
                raise RenderingFailed(f"{error}, which has {', '.join(sorted(email.context)) or 'nothing'}") from None


# -- the pieces ------------------------------------------------------------------------------------------------------


def _context(context: Mapping[str, Any]) -> str:
    """The context as JSON text: for the digest, and for rendering again."""
    if not isinstance(context, Mapping):
        raise EmailInvalid(f"context is {described(context)}; give a dict")
    hint = "; give texts, numbers, moments, lists, dicts, dataclasses, msgspec or pydantic models"
    text = require_json("context", context, EmailInvalid, encode=_as_json, hint=hint)
    if len(text) > CONTEXT_BYTES_MAX:
        raise EmailInvalid(f"context: {len(text):,} bytes as JSON, and the limit is {CONTEXT_BYTES_MAX:,}")
    return text


def _as_json(value: Any) -> str:
    return _json.encode(to_plain(value)).decode()


def _category(category: str | None) -> str | None:
    require("category", category, optional(printable(CATEGORY_CHARS_MAX)), EmailInvalid)
    return category


def _expires_at(email: EmailFields, seconds: float | None, date: datetime) -> datetime | None:
    if email.expires_at is None and seconds is not None:
        return date + timedelta(seconds=seconds)
    return email.expires_at


def _plain_key(app: Effects, name: str, email: EmailFields, to: Sequence[Address]) -> str | None:
    if email.key is not None or email.event_id is None:
        return None
    return _plain_key_of(app, name, email.event_id, to)


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
    require("template", template, printable(), EmailInvalid)
    one_recipient = isinstance(to, str | Address)
    email = NewEmail(template, to=to, context={}, event_id=event_id, group=not one_recipient)
    require("event_id", event_id, printable(), EmailInvalid)
    return _key_of(app_of(effects), template, event_id, to_of(email))


def _canonical(
    email: NewEmail | DirectEmail, name: str, source: MessageSource, attached: Sequence[files.File], words: object
) -> str:
    """The caller's own words. Neither the template's text nor a file's bytes: a deploy makes no conflict of a retry."""
    people = {
        name: [normal_form(address.spec) for address in getattr(source, name)]
        for name in ("to", "cc", "bcc", "reply_to")
    }
    parts: list[Any] = [
        name, people, words, email.locale if isinstance(email, NewEmail) else None, email.category, email.transport,
        files.names(attached, source.attachments), sorted((email.headers or {}).items()),
    ]  # fmt: skip
    if source.tags or source.metadata:  # else the digests of earlier messages hold
        parts.append([source.tags, source.metadata])
    try:
        return _json.encode(parts).decode()
    except UnicodeEncodeError:
        raise EmailInvalid("a text of the message has half of a surrogate pair, which no mail can carry") from None
