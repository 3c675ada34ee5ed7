"""For the tests of apps: `toolkit.emails`, every message that was written, as its recipients would read it.

    def test_signup_writes_to_the_user(effects_toolkit):
        sign_up("ann@example.com")
        [mail] = effects_toolkit.emails
        assert mail.to == ["ann@example.com"] and "Welcome" in mail.subject

Nothing is sent. `effects_toolkit.drain()` lets their jobs end as done; `state` then says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from effects.extend.text import repr_without
from effects_email.message.attachments import Files
from effects_email.message.mime import build
from effects_email.message.source import Attachment, open_content
from effects_email.tables import sent

if TYPE_CHECKING:
    from effects.testing import Toolkit


class WrittenAttachment(Attachment, frozen=True, kw_only=True):
    """A file of a message, as its recipients get it."""

    content: bytes

    def __repr__(self) -> str:
        """Without the bytes."""
        return repr_without(self, ("content",))


class WrittenEmail(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `to`, `cc`, `bcc` and `sender` are bare addresses; `eml` is the whole message, with its files."""

    key: str
    template: str
    locale: str | None
    category: str | None
    state: str
    sender: str
    to: list[str]
    cc: list[str]
    bcc: list[str]
    subject: str
    text: str
    html: str | None
    headers: dict[str, str]
    attachments: list[WrittenAttachment]
    eml: bytes


def emails(toolkit: Toolkit) -> list[WrittenEmail]:
    """The entry point `effects.testing`: the messages that were written and committed so far, oldest first.

    Raises:
        AttachmentMissing, ContentChanged: a file that was given by its path is gone, or is no longer what it was.
    """
    app = toolkit.app
    with app.store.read() as connection:
        rows = sent.oldest(app.store, connection)
    sent_emails, files = [], Files(app)
    for row in rows:
        content = open_content(app, row.key, row.content, row.sealed)
        if content is None:
            continue
        source = content.source
        contents = files.read(source, row.key)
        sent_emails.append(
            WrittenEmail(
                key=row.key, template=row.template, locale=row.locale, category=row.category, state=row.state,
                sender=source.sender.spec, to=[address.spec for address in source.to],
                cc=[address.spec for address in source.cc],
                bcc=[address.spec for address in source.bcc],
                subject=source.subject, text=source.text, html=source.html,
                headers=dict(source.headers),
                attachments=[
                    WrittenAttachment(**msgspec.structs.asdict(file), content=contents[file.sha256])
                    for file in source.attachments
                ],
                eml=build(source, contents),
            )
        )  # fmt: skip
    return sent_emails
