"""SendGrid and Mailgun behind the transport interface: what each is sent, and whether it can be asked."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from effects import ConfigurationError
from effects_email.message.source import Address, Attachment
from effects_email.transport.base import Transport
from effects_email.transport.http_api.fields import reference
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import Released
from tests.email.world.stand_ins import (
    ANN,
    BEN,
    CAT,
    TOKEN,
    MailgunBox,
    Postbox,
    SendGridBox,
    outgoing_message,
    receiver,
    url_of,
)

PDF = b"%PDF-1.7\r\n" + b"x" * 500
HASH = hashlib.sha256(PDF).hexdigest()
ATTACHED = Attachment(
    url="file:a.pdf", filename="a.pdf", content_type="application/pdf", size_bytes=len(PDF), sha256=HASH
)


@pytest.fixture
def opened() -> Iterator[Callable[[str, Postbox], Transport]]:
    """`opened("sendgrid", box)`: the provider's transport, to this stand-in."""
    with ExitStack() as stack:

        def open_to(scheme: str, box: Postbox) -> Transport:
            peer = stack.enter_context(receiver(box.serve))
            return stack.enter_context(closing(open_transport("test", url_of(scheme, peer.port))))

        yield open_to


def test_sendgrid_gets_the_message_as_fields(opened: Callable[[str, Postbox], Transport]) -> None:
    box = SendGridBox()
    message = outgoing_message(
        ANN, BEN, CAT, to=(Address("ann", "example.org", "Ann, the “first”"),), cc=(Address("ben", "example.org"),),
        bcc=(Address("cat", "example.org"),), reply_to=(Address("help", "example.com", "Help"),), html="<p>Hello</p>",
        attachments=(ATTACHED,), files={HASH: PDF},
    )  # fmt: skip
    sent = opened("sendgrid", box).send(message, release=Released(), seconds=10)
    assert (sent.verdict.kind, set(sent.recipients), len(sent.provider_id or "")) == ("accepted", {ANN, BEN, CAT}, 22)
    [taken] = box.messages
    [attached] = taken.pop("attachments")
    assert (base64.b64decode(attached.pop("content")), attached) == (
        PDF, {"filename": "a.pdf", "type": "application/pdf", "disposition": "attachment"},
    )  # fmt: skip
    assert taken == {
        "personalizations": [{
            "to": [{"email": ANN, "name": "Ann, the “first”"}], "cc": [{"email": BEN}], "bcc": [{"email": CAT}],
        }],
        "from": {"email": "shop@example.com", "name": "The Shop"}, "subject": "Hello",
        "content": [{"type": "text/plain", "value": "Hello, you."}, {"type": "text/html", "value": "<p>Hello</p>"}],
        "headers": {"Auto-Submitted": "auto-generated", "X-Shop": "books"},
        "custom_args": {"effects_message": reference("1@example.com"), "effects_recipients": "3"},
        "reply_to_list": [{"email": "help@example.com", "name": "Help"}],
    }  # fmt: skip


def test_sendgrid_gets_an_invitation_as_a_part_of_the_body(opened: Callable[[str, Postbox], Transport]) -> None:
    """Of its type, `method` is the one parameter that SendGrid takes."""
    calendar = b"BEGIN:VCALENDAR\r\nMETHOD:REQUEST\r\nEND:VCALENDAR\r\n"
    digest = hashlib.sha256(calendar).hexdigest()
    invitation = Attachment(
        url="own:invite", filename="invite.ics", content_type="text/calendar; method=REQUEST; charset=utf-8",
        size_bytes=len(calendar), sha256=digest,
    )  # fmt: skip
    box = SendGridBox()
    message = outgoing_message(attachments=(invitation,), files={digest: calendar})
    opened("sendgrid", box).send(message, release=Released(), seconds=10)
    [taken] = box.messages
    assert taken["content"][-1] == {"type": "text/calendar; method=REQUEST", "value": calendar.decode()}
    [attached] = taken["attachments"]
    assert (attached["type"], base64.b64decode(attached["content"])) == ("application/ics", calendar)


def test_mailgun_gets_our_bytes(opened: Callable[[str, Postbox], Transport]) -> None:
    box = MailgunBox()
    message = outgoing_message(ANN, CAT, to=(Address("ann", "example.org"),), bcc=(Address("cat", "example.org"),))
    sent = opened("mailgun", box).send(message, release=Released(), seconds=10)
    assert (sent.verdict.kind, sent.provider_id) == ("accepted", "1@example.com")
    [taken] = box.messages
    assert taken["data"] == message.data
    assert CAT.encode() not in message.data
    assert (taken["to"], taken["v:effects_message"], taken["v:effects_recipients"]) == (
        [ANN, CAT], reference("1@example.com"), "2",
    )  # fmt: skip


def test_mailgun_can_be_asked_and_sendgrid_cannot(opened: Callable[[str, Postbox], Transport]) -> None:
    mailgun, sendgrid = opened("mailgun", MailgunBox()), opened("sendgrid", SendGridBox())
    assert (mailgun.traceable, sendgrid.traceable) == (True, False)
    for transport, before, after in ((mailgun, False, True), (sendgrid, None, None)):
        assert transport.ask(outgoing_message()) is before
        transport.send(outgoing_message(), release=Released(), seconds=10)
        assert transport.ask(outgoing_message()) is after
        assert transport.ask(outgoing_message(message_id="2@example.com")) is before


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sendgrid:", "SENDGRID_API_KEY"),
        (f"sendgrid://{TOKEN}@?region=mars", "region"),
        ("mailgun:?domain=mg.example.com", "MAILGUN_API_KEY"),
        (f"mailgun://{TOKEN}@", "sending domain"),
        (f"mailgun://{TOKEN}@?domain=../x", "sending domain"),
        (f"mailgun://{TOKEN}@?domain=mg.example.com&x=1", "unknown option"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SENDGRID_API_KEY", raising=False)
    monkeypatch.delenv("MAILGUN_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_transport("test", url)
    assert TOKEN not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        (f"sendgrid://{TOKEN}@", "https://api.sendgrid.com"),
        (f"sendgrid://{TOKEN}@?region=eu", "https://api.eu.sendgrid.com"),
        (f"mailgun://{TOKEN}@?domain=mg.example.com", "https://api.mailgun.net"),
        (f"mailgun://{TOKEN}@?domain=mg.example.com&region=eu", "https://api.eu.mailgun.net"),
    ],
)
def test_each_region_has_its_origin(url: str, origin: str) -> None:
    assert origin in repr(open_transport("test", url))
