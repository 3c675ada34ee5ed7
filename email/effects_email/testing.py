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

from effects_email.message.mime import build
from effects_email.message.source import Attachment, open_content
from effects_email.tables import sent

if TYPE_CHECKING:
    from effects.testing import Toolkit


class WrittenEmail(msgspec.Struct, frozen=True, kw_only=True):
    """One message. `to`, `cc`, `bcc` and `sender` are bare addresses; `eml` is the whole message without its files."""

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
    attachments: list[Attachment]
    eml: bytes


def emails(toolkit: Toolkit) -> list[WrittenEmail]:
    """The entry point `effects.testing`: the messages that were written and committed so far, oldest first."""
    app = toolkit.app
    with app.store.read() as connection:
        rows = sent.oldest(app.store, connection)
    sent_emails = []
    for row in rows:
        content = open_content(app, row.key, row.content, row.sealed)
        if content is None:
            continue
        source = content.source
        sent_emails.append(
            WrittenEmail(
                key=row.key, template=row.template, locale=row.locale, category=row.category, state=row.state,
                sender=source.sender.spec, to=[address.spec for address in source.to],
                cc=[address.spec for address in source.cc],
                bcc=[address.spec for address in source.bcc],
                subject=source.subject, text=source.text, html=source.html,
                headers=dict(source.headers), attachments=list(source.attachments),
                eml=build(msgspec.structs.replace(source, attachments=()), {}),
            )
        )  # fmt: skip
    return sent_emails
