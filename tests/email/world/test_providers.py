"""Resend and Postmark behind the transport interface: fields, keys, refusals of single recipients, the question."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from effects import ConfigurationError, LeaseLost
from effects_email.message.source import Address, Attachment
from effects_email.transport.base import LoopTransport, Transport
from effects_email.transport.http_api.fields import reference
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import Released
from tests.email.world.stand_ins import ANN, BEN, CAT, TOKEN, PostmarkBox, ResendBox, answer, outgoing_message, receiver
from tests.peers.http import Answer, Receiver

PNG, PDF = b"\x89PNG" + bytes(range(256)) * 40, b"%PDF-1.7\r\n" + b"x" * 500


def file(name: str, content: bytes, kind: str, content_id: str | None = None) -> Attachment:
    return Attachment(
        url=f"file:{name}", filename=name, content_type=kind, size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(), content_id=content_id,
    )  # fmt: skip


FILES = {hashlib.sha256(content).hexdigest(): content for content in (PNG, PDF)}
ATTACHED = (file("logo.png", PNG, "image/png", "logo"), file("Rechnung №1.pdf", PDF, "application/pdf"))


@pytest.fixture
def resend_box() -> ResendBox:
    return ResendBox()


@pytest.fixture
def postmark_box() -> PostmarkBox:
    return PostmarkBox()


@pytest.fixture
def resend_peer(resend_box: ResendBox) -> Iterator[Receiver]:
    with receiver(resend_box.serve) as peer:
        yield peer


@pytest.fixture
def postmark_peer(postmark_box: PostmarkBox) -> Iterator[Receiver]:
    with receiver(postmark_box.serve) as peer:
        yield peer


@pytest.fixture
def resend(resend_peer: Receiver) -> Iterator[Transport]:
    yield from opened(f"resend://{TOKEN}@?origin=http://127.0.0.1:{resend_peer.port}")


@pytest.fixture
def postmark(postmark_peer: Receiver) -> Iterator[Transport]:
    yield from opened(f"postmark://{TOKEN}@?origin=http://127.0.0.1:{postmark_peer.port}&stream=mine")


def opened(url: str) -> Iterator[Transport]:
    transport = open_transport("test", url)
    yield transport
    transport.close()


# -- the fields ------------------------------------------------------------------------------------------------------


def test_resend_gets_the_message_as_fields(resend: Transport, resend_box: ResendBox) -> None:
    sent = resend.send(
        outgoing_message(
            ANN, BEN, CAT,
            to=(Address("ann", "example.org", "Ann, the “first”"),), cc=(Address("ben", "example.org", "Bén"),),
            bcc=(Address("cat", "example.org"),), reply_to=(Address("help", "example.com", "Help"),),
            html="<p>Hello</p>", attachments=ATTACHED, files=FILES, subject="Grüße ✉",
            headers=(("List-Unsubscribe", "<https://shop.example/u?token=" + "A" * 300 + ">"),),
        ),
        release=Released(), seconds=10,
    )  # fmt: skip
    assert (sent.verdict.kind, set(sent.recipients)) == ("accepted", {ANN, BEN, CAT})
    assert sent.provider_id
    assert {"connect", "body", "answer"} <= set(sent.phases)
    [message] = resend_box.messages
    attached = message.pop("attachments")
    assert [
        (attachment["filename"], attachment["content_type"], attachment.get("content_id")) for attachment in attached
    ] == [
        ("logo.png", "image/png", "logo"), ("Rechnung №1.pdf", "application/pdf", None),
    ]  # fmt: skip
    assert [base64.b64decode(attachment["content"]) for attachment in attached] == [PNG, PDF]
    assert message == {
        "from": "The Shop <shop@example.com>", "to": ["Ann the “first” <ann@example.org>"],
        "cc": ["Bén <ben@example.org>"], "bcc": ["cat@example.org"], "reply_to": ["Help <help@example.com>"],
        "subject": "Grüße ✉", "text": "Hello, you.", "html": "<p>Hello</p>",
        "headers": {
            "Auto-Submitted": "auto-generated",
            "List-Unsubscribe": "<https://shop.example/u?token=" + "A" * 300 + ">",
        },
        "tags": [
            {"name": "effects_message", "value": reference("1@example.com")},
            {"name": "effects_recipients", "value": "3"},
        ],
    }  # fmt: skip


def test_postmark_gets_the_message_as_fields(postmark: Transport, postmark_box: PostmarkBox) -> None:
    sent = postmark.send(
        outgoing_message(
            ANN, BEN,
            to=(Address("ann", "example.org", 'Ann "A", the first'),), bcc=(Address("ben", "example.org"),),
            html="<p>Hello</p>", attachments=ATTACHED, files=FILES,
        ),
        release=Released(), seconds=10,
    )  # fmt: skip
    assert sent.verdict.kind == "accepted"
    [message] = postmark_box.messages
    attached = message.pop("Attachments")
    assert [
        (attachment["Name"], attachment["ContentType"], attachment.get("ContentID")) for attachment in attached
    ] == [
        ("logo.png", "image/png", "cid:logo"), ("Rechnung №1.pdf", "application/pdf", None),
    ]  # fmt: skip
    assert [base64.b64decode(attachment["Content"]) for attachment in attached] == [PNG, PDF]
    headers = {header["Name"]: header["Value"] for header in message.pop("Headers")}
    assert headers == {
        "Auto-Submitted": "auto-generated", "X-Shop": "books", "Message-ID": "<1@example.com>", "X-PM-KeepID": "true",
    }  # fmt: skip
    assert message == {
        "From": '"The Shop" <shop@example.com>', "To": '"Ann \\"A\\", the first" <ann@example.org>',
        "Bcc": "ben@example.org", "Subject": "Hello", "TextBody": "Hello, you.", "HtmlBody": "<p>Hello</p>",
        "MessageStream": "mine", "Metadata": {"effects-message": reference("1@example.com")},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipients", "to", "expected"),
    [
        (("staging@example.net",), (ANN,), {"to": ["staging@example.net"]}),
        ((BEN,), (ANN, BEN), {"to": [BEN]}),
        ((CAT,), (ANN,), {"to": [CAT]}),
    ],
    ids=["redirected", "the rest of a group", "only a bcc is left"],
)
def test_the_envelope_decides_the_recipients(
    resend: Transport, resend_box: ResendBox, recipients: tuple[str, ...], to: tuple[str, ...], expected: dict[str, Any]
) -> None:
    people = tuple(Address(*recipient.split("@")) for recipient in to)
    resend.send(
        outgoing_message(*recipients, to=people, bcc=(Address("cat", "example.org"),)), release=Released(), seconds=10
    )
    [message] = resend_box.messages
    assert {name: message[name] for name in ("to", "cc", "bcc") if name in message} == expected


@pytest.mark.parametrize("name", ["resend", "postmark"])
def test_no_recipient_in_bcc_is_shown_to_another(name: str, request: pytest.FixtureRequest) -> None:
    """As where the one in To is suppressed: an API has no way to send without a To."""
    hidden = (Address("ben", "example.org"), Address("cat", "example.org"))
    outgoing = outgoing_message(BEN, CAT, to=(Address("ann", "example.org"),), bcc=hidden)
    sent = request.getfixturevalue(name).send(outgoing, release=Released(), seconds=10)
    assert {verdict.code for verdict in sent.recipients.values()} == {"only_bcc_left"}
    assert (sent.verdict.kind, request.getfixturevalue(f"{name}_box").messages) == ("refused_message", [])


def test_an_attachment_missing_from_the_bytes_stops_the_message(resend: Transport, resend_peer: Receiver) -> None:
    attachment = file("other.pdf", b"other", "application/pdf")
    whole = outgoing_message(files={ATTACHED[1].sha256: PDF}, attachments=(ATTACHED[1],))
    altered = outgoing_message(files={attachment.sha256: b"changed"}, attachments=(attachment,))
    released = Released()
    assert resend.send(whole, release=released, seconds=10).verdict.kind == "accepted"
    refused = resend.send(altered, release=released, seconds=10)
    assert (refused.verdict.kind, refused.verdict.code) == ("refused_message", "content_missing")
    assert (released.calls, len(resend_peer.requests)) == (1, 1)


# -- what no API takes -----------------------------------------------------------------------------------------------


def test_addresses_that_need_smtputf8_are_refused_one_by_one(postmark: Transport, postmark_box: PostmarkBox) -> None:
    odd = "jürgen@example.org"
    sent = postmark.send(outgoing_message(ANN, odd), release=Released(), seconds=10)
    assert sent.verdict.kind == "accepted"
    assert (sent.recipients[ANN].kind, sent.recipients[odd].kind) == ("accepted", "refused_recipient")
    assert [message["To"] for message in postmark_box.messages] == [ANN]
    alone = postmark.send(outgoing_message(odd), release=Released(), seconds=10)
    assert (alone.verdict.kind, alone.verdict.suppress) == ("refused_recipient", None)
    sender = postmark.send(outgoing_message(sender=Address("jürgen", "example.com")), release=Released(), seconds=10)
    assert sender.verdict.kind == "refused_message"
    many = postmark.send(outgoing_message(*(f"u{n}@example.org" for n in range(51))), release=Released(), seconds=10)
    assert (many.verdict.code, len(many.recipients)) == ("too_many_recipients", 51)
    assert len(postmark_box.messages) == 1


# -- keys ------------------------------------------------------------------------------------------------------------


def test_every_try_has_the_same_key_and_bytes_and_another_message_another(
    resend: Transport, resend_peer: Receiver, resend_box: ResendBox
) -> None:
    resend_box.faults = [500, 503, Answer(reset=True)]
    for _ in range(5):
        resend.send(outgoing_message(files=FILES, attachments=ATTACHED), release=Released(), seconds=10)
    assert len({(request.headers["idempotency-key"], request.body) for request in resend_peer.requests}) == 1
    assert len(resend_box.messages) == 1
    for different in (outgoing_message(message_id="2@example.com"), outgoing_message(key="signup:2")):
        resend.send(different, release=Released(), seconds=10)
    keys = [request.headers["idempotency-key"] for request in resend_peer.requests]
    assert len(set(keys)) == 3
    assert all(1 <= len(key) <= 256 and key.isalnum() for key in keys)
    assert resend.key_lifetime_seconds == 86_400


def test_a_lost_answer_is_unknown_and_the_repeat_sends_nothing(resend: Transport, resend_box: ResendBox) -> None:
    resend_box.lose = 1
    first = resend.send(outgoing_message(), release=Released(), seconds=10)
    assert (first.verdict.kind, first.verdict.code, first.verdict.after_seconds) == ("unknown", "no_answer", 30)
    again = resend.send(outgoing_message(), release=Released(), seconds=10)
    assert again.verdict.kind == "accepted"
    assert again.provider_id
    assert len(resend_box.messages) == 1


def test_the_same_key_with_other_content_is_never_sent_again(resend: Transport, resend_box: ResendBox) -> None:
    resend_box.lose = 1
    resend.send(outgoing_message(ANN, BEN), release=Released(), seconds=10)
    changed = resend.send(outgoing_message(ANN, text="changed"), release=Released(), seconds=10)
    assert (changed.verdict.kind, changed.verdict.code) == ("unknown", "resend_409_invalid_idempotent_request")
    assert len(resend_box.messages) == 1


# -- refusals of single recipients -----------------------------------------------------------------------------------


def test_a_partial_refusal_applies_to_the_named_recipients(postmark: Transport, postmark_box: PostmarkBox) -> None:
    postmark_box.inactive = {BEN}
    sent = postmark.send(outgoing_message(ANN, BEN, CAT), release=Released(), seconds=10)
    assert sent.verdict.kind == "accepted"
    assert {recipient: (verdict.kind, verdict.suppress) for recipient, verdict in sent.recipients.items()} == {
        ANN: ("accepted", None), BEN: ("refused_recipient", "hard"), CAT: ("accepted", None),
    }  # fmt: skip
    alone = postmark.send(outgoing_message(BEN), release=Released(), seconds=10)
    assert (alone.verdict.kind, alone.verdict.code, alone.verdict.suppress) == (
        "refused_recipient", "postmark_406", "hard",
    )  # fmt: skip


def test_a_message_refused_for_one_is_tried_again_for_others(postmark: Transport, postmark_box: PostmarkBox) -> None:
    said = f"Found inactive addresses: {BEN.upper()}. They bounced."
    postmark_box.faults = [answer(422, ErrorCode=406, Message=said)]
    sent = postmark.send(outgoing_message(ANN, BEN), release=Released(), seconds=10)
    assert sent.verdict.kind == "retry"
    assert {recipient: (verdict.kind, verdict.suppress) for recipient, verdict in sent.recipients.items()} == {
        ANN: ("retry", None), BEN: ("refused_recipient", "hard"),
    }  # fmt: skip
    assert postmark_box.messages == []


# -- the question ----------------------------------------------------------------------------------------------------


def test_postmark_can_be_searched_and_resend_repeats_by_key(
    postmark: Transport, postmark_box: PostmarkBox, resend: Transport
) -> None:
    assert postmark.ask(outgoing_message()) is False
    postmark_box.lose = 1
    lost = postmark.send(outgoing_message(), release=Released(), seconds=10)
    assert (lost.verdict.kind, lost.verdict.after_seconds) == ("unknown", None)
    assert postmark.ask(outgoing_message()) is True
    assert postmark.ask(outgoing_message(message_id="2@example.com")) is False
    for silent in (Answer(503), Answer(reset=True), Answer(200, b"[]"), Answer(200, b"{}"), Answer(200, b"\xff")):
        postmark_box.faults = [silent]
        assert postmark.ask(outgoing_message()) is None
    assert resend.ask(outgoing_message()) is None


# -- the point of no return ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["resend", "postmark"])
def test_a_lost_lease_sends_nothing(request: pytest.FixtureRequest, which: str) -> None:
    transport: Transport = request.getfixturevalue(which)
    peer: Receiver = request.getfixturevalue(f"{which}_peer")
    for _ in range(2):
        with pytest.raises(LeaseLost):
            transport.send(outgoing_message(), release=Released(LeaseLost()), seconds=10)
    assert peer.requests == []
    assert transport.send(outgoing_message(), release=Released(), seconds=10).verdict.kind == "accepted"


def test_messages_on_one_loop_share_connections(
    resend: LoopTransport, resend_peer: Receiver, resend_box: ResendBox
) -> None:
    async def release() -> None:
        """As if it were on record."""

    async def send(number: int) -> list[str]:
        sent = [
            await resend.send_on_loop(
                outgoing_message(message_id=f"{number}-{turn}@example.com"), release=release, seconds=10
            )
            for turn in range(5)
        ]
        return [result.verdict.kind for result in sent]

    async def send_all() -> list[list[str]]:
        return await asyncio.gather(*(send(number) for number in range(8)))

    assert asyncio.run(send_all()) == [["accepted"] * 5] * 8
    assert len(resend_box.messages) == 40
    assert len(resend_peer.connections) <= 8


def test_the_providers_words_are_stored_without_the_token(resend: Transport, resend_box: ResendBox) -> None:
    resend_box.faults = [answer(422, name="validation_error", message=f"the key {TOKEN}\x1b[2J is odd " + "x" * 900)]
    verdict = resend.send(outgoing_message(), release=Released(), seconds=10).verdict
    assert verdict.reply is not None
    assert TOKEN not in json.dumps(verdict.reply.text)
    assert verdict.reply.text.isprintable()
    assert len(verdict.reply.text) <= 512
    assert TOKEN not in repr(resend)


# -- URLs ------------------------------------------------------------------------------------------------------------


def test_the_token_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, variable in (("resend", "RESEND_API_KEY"), ("postmark", "POSTMARK_SERVER_TOKEN")):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(ConfigurationError, match=variable):
            open_transport("bulk", f"{name}:")
        monkeypatch.setenv(variable, TOKEN)
        transport = open_transport("bulk", f"{name}:")
        assert transport.name == "bulk"
        transport.close()
        monkeypatch.setenv("SHOP_TOKEN", TOKEN)
        open_transport("bulk", f"{name}:?token_env=SHOP_TOKEN").close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"resend://{TOKEN}@example.com", "another address is"),
        (f"resend://{TOKEN}:pw@", "another address is"),
        (f"resend://{TOKEN}@?origin=http://example.com", "https"),
        (f"resend://{TOKEN}@?origin=https://example.com/path", "without a path"),
        (f"resend://{TOKEN}@?origin=https://u:p@example.com", "without a path"),
        (f"resend://{TOKEN}@?stream=x", "an unknown option"),
        (f"postmark://{TOKEN}@?strem=x", "an unknown option; there are token_env, origin, stream"),
        ("postmark://a%0ab@", "has no token"),
    ],
)
def test_an_invalid_url_is_refused_without_its_token(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        open_transport("bulk", url)
    assert TOKEN not in str(refused.value)
    assert "'bulk'" in str(refused.value)
