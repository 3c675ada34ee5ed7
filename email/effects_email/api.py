"""What an app calls: write a message, in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

import msgspec

from effects import Effects
from effects.extend.arguments import build_each, each_of
from effects.extend.jobs import app_of
from effects.extend.sql import AnySession
from effects.extend.text import nearest
from effects_email.errors import EmailInvalid
from effects_email.message.address import Recipient, parse_mailbox
from effects_email.message.attachments import File, Files, inline_images
from effects_email.message.mime import build
from effects_email.message.source import MessageSource
from effects_email.request import (
    DirectEmail,
    EmailOptions,
    NewEmail,
    RenderedEmail,
    compose_email,
    render_email,
    spelled_out,
)
from effects_email.state import state_of
from effects_email.suppression import TRANSACTIONAL
from effects_email.writing import JOB_TYPE, EmailReceipt, write_messages


@spelled_out
def send_templated_email(
    template: str,
    *,
    to: Recipient | Sequence[Recipient],
    context: Mapping[str, Any],
    locale: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
    **options: Unpack[EmailOptions],
) -> EmailReceipt:
    """Render a template and write the message, to be sent once it is committed.

    Args:
        to: one address: `ann@example.com`, `Ann <ann@example.com>` or an `Address`. A list only with `group`.
        context: what the template may use: at most 256 KiB as JSON, values as `effects.kit.plain_values` takes them.
        event_id: what happened, such as `signup:17`. Together with template and recipient it is the key: the same
            again is the same message. Without it and without `key`, every call is its own message.
        key: your own idempotency key, at most 255 characters, shown to operators. The same key with the same content
            gives the first receipt; a newer version of the template is no other content.
        locale: `de` or `de-AT`: the template in exactly this, else in the language alone, else as it is by default.
        category: whose unsubscribes it respects; transport: the name of one that is set. Default the template's.
        attachments: paths or `File`s; 10 MiB in base64 at most; to stay until it has left. invite: an `Invite`.
        headers: further headers: those that begin with `X-`, and a few that `effects_email.message.mime` lists.
        run_at, expires_at: aware; not before, and not after. Default the template's `expires_seconds`.
        on_unknown: what to do where it may have been sent: `repeat_once` after a quarter of an hour, `hold` for an
            operator, or `repeat`. Default the template's, else `repeat_once`.
        sender: default the template's, else EFFECTS_EMAIL_FROM. reply_to, return_path: where answers and bounces go.
        tags, metadata: for a provider's statistics and events; at most 3 and 5, see `effects_email.message.source`.
        group: one message to many, at most 100, each with its own result. cc, bcc: with it; Bcc is in no header.
        despite_suppression: the reason to send to suppressed recipients too, such as a legal notice; kept in the log.
        session: as for `effects.enqueue` (docs/sessions.md), never committed by us; rolled back, or rolled back to a
            savepoint, there was no message. Without one, our own transaction.
        effects: the Effects to use; default that of the session's engine, else the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, the message is sent with the same bytes on
        every try, or ends as a dead, cancelled or unknown one that is on record.

    Raises:
        AddressInvalid: an address is malformed. EmailInvalid: a header, the context, the key or the subject is invalid.
        AttachmentInvalid: a file is missing or too large. IdempotencyConflict: the key was used with other content.
        TemplateNotFound, TemplateError, RenderingFailed: there is no such template, or a variable is missing.
        ConfigurationError: no templates or no sender is set. KeyUnavailable: EFFECTS_KEYS lost its `digest` key.
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
    """
    email = NewEmail(template, to=to, context=context, locale=locale, **options)
    return send_templated_emails([email], session=session, effects=effects)[0]


@spelled_out
def send_email(
    *,
    to: Recipient | Sequence[Recipient],
    subject: str,
    text: str | None = None,
    html: str | None = None,
    markdown: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
    **options: Unpack[EmailOptions],
) -> EmailReceipt:
    """Write one message without a template, in the caller's transaction, under the promises of `send_templated_email`.

    Args:
        subject: 1 to 1,000 characters; line breaks become spaces.
        text, html, markdown: at least one, and not both `html` and `markdown`; 2 MiB each at most. `<style>` is
            inlined; without `text` it is made from the HTML. Markdown becomes HTML in its own page, see
            email/README.md; a user's words go into it by `escape_markdown`.
        event_id: what happened, once: the key is made of it and the recipients; no template's message has it.
        others: as for `send_templated_email`.

    Returns:
        The receipt; a crash leaves what it leaves there.

    Raises:
        As `send_templated_email`, but for what is about templates. With the same key, another subject, text, HTML or
        Markdown is an IdempotencyConflict.
    """
    email = DirectEmail(to=to, subject=subject, text=text, html=html, markdown=markdown, **options)
    app = app_of(effects, session)
    return write_rendered(app, [compose_email(app, email, datetime.now(UTC))], session)[0]


def send_templated_emails(
    emails: Iterable[NewEmail], *, session: AnySession | None = None, effects: Effects | None = None
) -> list[EmailReceipt]:
    """`send_templated_email` for many: all are rendered before the first is written, 500 in four statements.

    Args:
        emails: the messages, in the order of the receipts.

    Raises:
        As `send_templated_email`. After an IdempotencyConflict nothing of this call is written: it was rolled back
        to a savepoint.
    """
    app = app_of(effects, session)
    now = datetime.now(UTC)
    emails = list(each_of(emails, NewEmail, "emails", EmailInvalid))
    messages = build_each("emails", emails, lambda _, email: render_email(app, email, now))
    return write_rendered(app, messages, session) if messages else []


def write_rendered(app: Effects, messages: Sequence[RenderedEmail], session: AnySession | None) -> list[EmailReceipt]:
    names = state_of(app).transports.names()  # a process that knows none leaves them to the workers
    for message in messages:
        if names and message.transport not in names:
            near = nearest(message.transport, names)
            raise EmailInvalid(f"the mail transport {message.transport!r} is not set{near} (set: {', '.join(names)})")
    with app.writing(session, {app.job_types.get(JOB_TYPE).queue}) as connection:
        return write_messages(app, connection, messages)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it would be. `eml` is its bytes, `html` its HTML part for a browser: with inline images in it."""

    source: MessageSource
    eml: bytes
    html: str | None
    template_version: str
    locale: str | None

    def __repr__(self) -> str:
        return "Preview()"


def preview_email(
    template: str,
    *,
    context: Mapping[str, Any],
    locale: str | None = None,
    to: Recipient = "you@example.com",
    sender: Recipient | None = None,
    attachments: Sequence[File | str | Path] = (),
    effects: Effects | None = None,
) -> Preview:
    """Render a template without writing anything; no database is needed.

    Args:
        template, context, locale, to, sender, attachments: as for `send_templated_email`.
        effects: the Effects to use; default the process's.

    Raises:
        As `send_templated_email`.
    """
    app = app_of(effects)
    state = state_of(app)
    if sender is None and state.settings.sender is None:
        declared = state.folder.find(template, locale).declared.sender
        sender = parse_mailbox(declared, where="sender") if declared else "sender@example.com"
    email = NewEmail(  # no category: a preview needs no unsubscribe link
        template, to=to, context=context, locale=locale, sender=sender, category=TRANSACTIONAL, attachments=attachments
    )
    message = render_email(app, email, datetime.now(UTC))
    references = [file for file in message.source.attachments if file.sha256 not in message.files]
    referred = Files(app).read(msgspec.structs.replace(message.source, attachments=tuple(references)), message.key)
    contents = {**message.files, **referred}
    html = message.source.html
    return Preview(
        source=message.source,
        eml=build(message.source, contents),
        html=inline_images(html, message.source.attachments, contents) if html is not None else None,
        template_version=message.version.version,
        locale=message.version.locale,
    )
