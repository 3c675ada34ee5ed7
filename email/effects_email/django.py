"""The mail that Django itself sends: `EMAIL_BACKEND = "effects_email.django.EmailBackend"` in a project's settings.

Each `EmailMessage` (a password reset, what allauth sends, `mail_admins`) is written as a message of ours, in the
transaction of this thread where one is open on the database of the effects: if that rolls back, there was no mail.

| of the message | here |
|---|---|
| `to`, `cc`, `bcc`, `reply_to` | the same; more than one recipient is a group, of which each has its own result |
| `from_email` | the sender; Django's own default (`webmaster@localhost`, `root@localhost`) is EFFECTS_EMAIL_FROM |
| the header `From` | the sender, and then `from_email` is the return path, as with Django's SMTP backend |
| a body of `text/plain` or `text/html`, an alternative of the other | `text` and `html` |
| an alternative of `text/calendar` | an invitation, in the body and attached |
| attachments, also `MIMEBase`, with a Content-ID too | the same bytes; one without a name is called `attachment` |
| no subject, or a body of nothing | `(no subject)`, or an empty line |
| other headers | those that `effects_email.message.mime` lists |

What a message of ours cannot carry is an error that names it; nothing is left out.
"""

from __future__ import annotations

import mimetypes
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import Message
from email.utils import getaddresses
from typing import Any

from django.core.mail import EmailMessage
from django.core.mail.backends.base import BaseEmailBackend
from django.core.mail.message import BadHeaderError  # from where newer releases do not warn of it

from effects import EffectsError
from effects.contrib import django as project
from effects.extend.arguments import build_each
from effects.extend.process import own_logger
from effects.extend.text import described
from effects_email.api import write_rendered
from effects_email.errors import EmailInvalid
from effects_email.message.attachments import File, invitation
from effects_email.request import DirectEmail, compose_email

_OF_DJANGO = ("webmaster@localhost", "root@localhost")  # DEFAULT_FROM_EMAIL and SERVER_EMAIL, where none is set
_PLAIN, _HTML, _CALENDAR = "text/plain", "text/html", "text/calendar"
_FORMS = (("mixed_subtype", ("mixed", "related")), ("alternative_subtype", ("alternative",)))
_OF_PARTS = {"content-type", "content-transfer-encoding", "content-disposition", "content-id", "mime-version"}
_EMPTY = "\n"  # a body of nothing
_NO_SUBJECT = "(no subject)"  # as mail programs show it
_log = own_logger("effects.email")


class EmailBackend(BaseEmailBackend):
    """Writes Django's messages; `effects work` sends them."""

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Write these, all or none; with `fail_silently`, each for itself.

        Returns:
            How many were written. One without a recipient is not, as in Django. A crash before the caller's commit
            leaves nothing; after it each is sent once or is known not to have been.

        Raises:
            BadHeaderError: a line break in a header. EmailInvalid, AddressInvalid, AttachmentInvalid: a part that a
            message cannot carry; names it. ConfigurationError, StoreUnavailable: as `send_email`. None of them with
            `fail_silently`, which logs `email.not_written` by the error's class.
        """
        messages = [message for message in email_messages if message.recipients()]
        if not self.fail_silently:
            return _write(messages)
        return sum(map(_written_quietly, messages))


def _written_quietly(message: EmailMessage) -> int:
    try:
        return _write([message])
    except (EffectsError, BadHeaderError) as error:
        _log.error("email.not_written", extra={"error": type(error).__name__})
        return 0


def _write(messages: list[EmailMessage]) -> int:
    app, now = project.app, datetime.now(UTC)
    rendered = build_each("email_messages", messages, lambda _, message: compose_email(app, direct_email(message), now))
    if rendered:
        write_rendered(app, rendered, None)
    return len(rendered)


def direct_email(message: EmailMessage) -> DirectEmail:
    """A message of Django's as one of ours.

    Raises:
        As `send_messages`.
    """
    for name, forms in _FORMS:
        if (form := getattr(message, name, forms[0])) not in forms:
            raise EmailInvalid(f"{name} is {form!r}; a message has {' or '.join(forms)}")
    headers = {str(name): _line(str(name), value) for name, value in message.extra_headers.items()}
    special = {name.lower(): headers.pop(name) for name in list(headers) if name.lower() in ("from", "reply-to")}
    return DirectEmail(
        **_addresses(message, special),
        subject=_line("subject", message.subject) or _NO_SUBJECT,
        **_texts(message),
        attachments=[*map(_file, message.attachments), *_invitations(message)],
        headers=headers,
    )


def _addresses(message: EmailMessage, special: dict[str, str]) -> dict[str, Any]:
    """From whom and to whom.

    Args:
        special: the headers `from` and `reply-to`, which stand for more than themselves.
    """
    to, cc, bcc, replies = (
        [_line(where, address) for address in getattr(message, where) or ()]
        for where in ("to", "cc", "bcc", "reply_to")
    )
    sender: str | None = _line("from_email", message.from_email)
    if sender in _OF_DJANGO:
        sender = None
    if "reply-to" in special:
        replies = [f"{name} <{spec}>" if name else spec for name, spec in getaddresses([special["reply-to"]])]
    by_header = special.get("from")
    is_group = bool(cc or bcc) or len(to) > 1
    return {
        "to": to if is_group else to[0],
        "cc": cc,
        "bcc": bcc,
        "group": is_group,
        "reply_to": replies,
        "sender": by_header or sender,
        "return_path": sender if by_header else None,
    }


def _line(where: str, value: object) -> str:
    """A text of Django's, which may be a lazy translation.

    Raises:
        BadHeaderError: it has a line break.
    """
    text = str(value)
    if "\n" in text or "\r" in text:
        raise BadHeaderError(f"{where} has a line break, which could begin another header")
    return text


def _alternatives(message: EmailMessage) -> list[tuple[str, str]]:
    """Type and text of each."""
    alternatives = getattr(message, "alternatives", None) or []
    return [(str(mimetype), _text(content, f"an alternative of {mimetype}")) for content, mimetype in alternatives]


def _texts(message: EmailMessage) -> dict[str, Any]:
    body = (f"text/{message.content_subtype}", str(message.body) or _EMPTY)
    texts: dict[str, Any] = {}
    for mimetype, text in [body, *_alternatives(message)]:
        if mimetype.startswith(_CALENDAR):
            continue
        name = {_PLAIN: "text", _HTML: "html"}.get(mimetype)
        if name is None:
            raise EmailInvalid(f"a body or alternative is {mimetype}; a message has {_PLAIN}, {_HTML}, {_CALENDAR}")
        if name in texts:
            raise EmailInvalid(f"there are two bodies of {mimetype}; a message has one")
        texts[name] = text
    return texts


def _invitations(message: EmailMessage) -> list[File]:
    calendars = [(kind, text) for kind, text in _alternatives(message) if kind.startswith(_CALENDAR)]
    return [invitation(text.encode(), kind if ";" in kind else f"{kind}; charset=utf-8") for kind, text in calendars]


def _file(attachment: Any) -> File:
    if isinstance(attachment, Message):
        return _file_of_part(attachment)
    filename, content, mimetype = attachment
    return _named(
        content.encode() if isinstance(content, str) else _bytes(content, mimetype), filename or None, mimetype
    )


def _file_of_part(part: Message) -> File:
    """A part that the app has built, with its Content-ID where it is an image of the HTML."""
    kind, names = part.get_content_type(), {name.lower() for name in part}
    if part.is_multipart():
        raise EmailInvalid(f"an attachment is {kind}; a message carries parts that have no parts")
    if lost := sorted(names - _OF_PARTS):
        raise EmailInvalid(f"an attachment has the header {lost[0]}, which a message cannot carry")
    data = part.get_payload(decode=True)
    assert isinstance(data, bytes)  # it is not multipart
    charset = part.get_content_charset()
    if charset not in (None, "utf-8", "us-ascii") and kind.startswith("text/"):
        data = data.decode(charset).encode()
    content_id = part.get("Content-ID", "").strip().removeprefix("<").removesuffix(">")
    return _named(data, part.get_filename(), kind, content_id or None)


def _named(data: bytes, filename: str | None, mimetype: str | None, content_id: str | None = None) -> File:
    kind = mimetype.partition(";")[0].strip().lower() if mimetype else None
    ending = (mimetypes.guess_extension(kind) or "") if kind else ""
    return File(data, filename or f"attachment{ending}", kind, content_id)


def _bytes(content: object, mimetype: str | None) -> bytes:
    if not isinstance(content, bytes | bytearray | memoryview):
        raise EmailInvalid(f"an attachment of {mimetype} is {described(content)}; give its bytes or a text")
    return bytes(content)


def _text(content: object, where: str) -> str:
    if isinstance(content, bytes):
        return content.decode()
    if isinstance(content, Message):
        raise EmailInvalid(f"{where} is {described(content)}; give a text")
    return str(content)
