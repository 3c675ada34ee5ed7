"""The inbox of `effects dev`: every message as a file in a maildir, and the pages that show them."""

from __future__ import annotations

import base64
import email
import email.policy
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

from effects import Effects
from effects.extend.files import attachment
from effects.extend.text import moment, whole_number
from effects.web import PAGE_ROWS, NavigationEntry, PageAnswer, PageRoute, Pages, Visit, choice_of
from effects_email.dashboard.pages import framed, remote_hosts
from effects_email.errors import EmailNotFound
from effects_email.jobs.send import EmailSend
from effects_email.settings import DEFAULT_TRANSPORT, EmailSettings
from effects_email.state import state_of
from effects_email.transport.base import Transport
from effects_email.transport.maildir import MaildirTransport
from effects_email.transport.registry import Transports

VIEWS = ("seen", "text", "source")


class InboxTransports(Transports):
    """Whatever the name, the transport is one maildir."""

    def __init__(self, folder: Path) -> None:
        super().__init__({DEFAULT_TRANSPORT: f"maildir:{folder}"})
        self._inbox = cast("Transport", MaildirTransport(DEFAULT_TRANSPORT, folder))

    def get(self, name: str) -> Transport:
        return self._inbox


def inbox(app: Effects, folder: Path) -> Pages:
    """The entry point `effects.dev`: every message goes into the folder, unsigned, as it was written.

    What would look into the DNS, sign by a key that is not here, hold or redirect is unset.
    """
    settings: EmailSettings = app.packages["email"]
    settings = app.packages["email"] = replace(
        settings, smtp_url=None, email_transports={}, email_failover="", email_redirect=None, email_hold=False,
        email_bounce_domain="", dkim_keys="",
    )  # fmt: skip
    state = state_of(app)
    state.settings, state.transports = settings, InboxTransports(folder)
    current = app.job_types.get(EmailSend.name)
    app.job_types.replace(EmailSend(app, retry=current.retry))
    return Pages(
        name="email_inbox", label="", package="effects_email.dashboard",
        navigation=(NavigationEntry("email_inbox", "Mail inbox", "i"),),
        routes=(
            _route("email_inbox", "/dev/mail", partial(_list, folder)),
            _route("email_inbox_mail", "/dev/mail/{mail}", partial(_mail, folder)),
            _route("email_inbox_html", "/dev/mail/{mail}/html", partial(_html, folder)),
            _route("email_inbox_file", "/dev/mail/{mail}/files/{id}", partial(_file, folder)),
        ),
    )  # fmt: skip


def _route(name: str, pattern: str, view: partial[PageAnswer]) -> PageRoute:
    return PageRoute(name, ("GET",), pattern, view, role="admin", personal=True)


class Mail(NamedTuple):
    """A message as it came: the file's name in addresses, its envelope, and what it consists of."""

    name: str
    came_at: datetime
    to: list[str]
    message: EmailMessage
    source: bytes

    @property
    def files(self) -> list[EmailMessage]:
        """Attachments and inline images."""
        return [part for part in _leaves(self.message) if part.get_filename() or part["Content-ID"]]

    def text(self, kind: str) -> str | None:
        """Its body of this kind, `plain` or `html`."""
        body = cast("EmailMessage | None", self.message.get_body((kind,)))
        return None if body is None else str(body.get_content())


def _leaves(message: EmailMessage) -> Iterator[EmailMessage]:
    return (part for part in message.walk() if not part.is_multipart())


def _read(path: Path) -> Mail:
    source = path.read_bytes()
    message = email.message_from_bytes(source, policy=email.policy.default)
    came_at = moment(path.stat().st_mtime)
    return Mail(path.name.split(".")[1], came_at, [str(each) for each in message.get_all("Delivered-To", [])], message,
                source)  # fmt: skip


def _list(folder: Path, visit: Visit) -> PageAnswer:
    paths = sorted((folder / "new").glob("*.*"), key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    mails = [_read(path) for path in paths[:PAGE_ROWS]]
    return visit.page("email/inbox.html", revealed=True, mails=mails, more=len(paths) - len(mails))


def _found(folder: Path, visit: Visit) -> Mail:
    name = visit.values["mail"]
    for path in (folder / "new").glob(f"*.{name}.*"):
        return _read(path)
    raise EmailNotFound("there is no such message in the inbox")


def _mail(folder: Path, visit: Visit) -> PageAnswer:
    mail = _found(folder, visit)
    html = mail.text("html")
    view = choice_of(visit.query, "view", VIEWS) or ("seen" if html is not None else "text")
    return visit.page(
        "email/inbox_mail.html", revealed=True, mail=mail, view=view, views=VIEWS, text=mail.text("plain"),
        has_html=html is not None, hosts=remote_hosts(html), source=mail.source.decode("utf-8", "replace"),
    )  # fmt: skip


def _html(folder: Path, visit: Visit) -> PageAnswer:
    mail = _found(folder, visit)
    html = mail.text("html")
    if html is None:
        raise EmailNotFound("the message has no HTML")
    for part in mail.files:
        name = str(part["Content-ID"] or "").strip("<>")
        if name:
            data = base64.b64encode(_bytes(part)).decode()
            html = html.replace(f"cid:{name}", f"data:{part.get_content_type()};base64,{data}")
    return framed(html)


def _file(folder: Path, visit: Visit) -> PageAnswer:
    files = _found(folder, visit).files
    number = whole_number(visit.values["id"]) or 0
    if not 0 < number <= len(files):
        raise EmailNotFound("the message has no such file")
    part = files[number - 1]
    headers = (
        ("content-disposition", attachment(part.get_filename() or f"part-{number}")), ("cache-control", "no-store"),
        ("content-security-policy", "default-src 'none'; sandbox"),
    )  # fmt: skip
    return PageAnswer(200, _bytes(part), part.get_content_type(), headers)


def _bytes(part: EmailMessage) -> bytes:
    return cast("bytes", part.get_payload(decode=True) or b"")
