"""What reads strangers' bytes takes time in proportion to them, also where they were grown to make it slow."""

from __future__ import annotations

import json
import random
import smtplib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from effects import EffectsError
from effects.extend.secrets import signing
from effects.keys.encryption import KeyRing, generate_key
from effects.kit.http.exchange import Exchange
from effects.kit.http.messages import ResponseParser
from effects.model.schedules import Cron
from effects.store.db.urls import database_url
from effects.web.exchange import BadRequestError, fields_of
from effects_email.message.invite import without_attendees
from effects_email.providers.event_parsers import NotAnEvent, read_mailgun, read_postmark, read_resend, read_sendgrid
from effects_email.providers.ses import SnsVerifier, read_ses
from effects_email.providers.signatures import check_mailgun, knows_password
from effects_email.returned.mailboxes import ImapMailbox, MailboxUnavailable
from effects_email.returned.parts import MULTIPARTS_MAX
from effects_email.returned.reading import read_report
from effects_email.returned.token import find_tokens
from effects_email.templates.folder import without_template
from effects_email.templates.markdown import escape_markdown, html_of
from effects_email.templates.rendering import Renderer
from effects_email.transport.http_api.mailgun import Mailgun
from effects_email.transport.http_api.postmark import Postmark
from effects_email.transport.http_api.resend import Resend
from effects_email.transport.http_api.sendgrid import SendGrid
from effects_email.transport.http_api.ses import Ses
from effects_email.transport.http_api.transport import find as find_row
from effects_email.transport.replies.verdicts import reply_of, verdict_of_reply
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.server import SendProgress, Timeouts, server_of
from effects_email.transport.url import TransportURL
from effects_reports.transport.address import parse_address
from effects_reports.transport.upload import S3Answer
from effects_webhooks.classify import http_date, retry_after
from effects_webhooks.echoes import striking
from effects_webhooks.endpoint_values import check_url
from tests.email.returned.corpus import cases
from tests.support.cpu_bounded import Squared, cpu_bounded
from tests.support.sampling import is_full, sample

CHARS = 64 * 1024
REFUSALS = (EffectsError, BadRequestError, MailboxUnavailable, ValueError, RecursionError, msgspec.MsgspecError)
CPU_SECONDS = 10.0  # many times what the slowest takes in proportion, on a slow and busy machine too
GROWN = 200 if is_full() else 2  # of each parser's seeds
TOPIC = "arn:aws:sns:eu-west-1:123456789012:mail"
REPORTS = [
    case.message(to="b@x.example", address="ann@example.org", message_id="1@x").decode("latin-1") for case in cases()
]
STYLED = "<style>p{color:red}</style>"
TOKEN = "T0ken-of/a+secret=7"
HTML = (
    f'{STYLED}<!-- a --><table><tr><td><a href="https://a.example/?b=c&amp;d">b</a></td></tr></table><ul><li>c<br></li>'
    '</ul><blockquote><p class="d">e</p></blockquote><![CDATA[f]]><?g?><pre>h</pre><script>i</script>'
)
MARKDOWN = (
    "# a\n\n> *b* **c** `d` [e](https://f.example) ![g](h.png)\n\n- 1. i\n\n|j|k|\n|-|-|\n|l|m|\n\n[n]: o\n~~p~~ "
    "<q> &r;\n"
)
EVENT = json.dumps(
    {"type": "email.bounced", "data": {"to": ["a@b.example"], "tags": [{"name": "x", "value": "y"}], "headers": [{}]},
     "Records": [{"Type": "Bounce"}], "event-data": {"message": {"headers": {"message-id": "a@b"}}},
     "sg_message_id": "x.y"}
)  # fmt: skip
SNS = json.dumps(
    {"Type": "Notification", "MessageId": "m", "TopicArn": TOPIC, "Message": "{}", "Timestamp": "t",
     "SignatureVersion": "1", "Signature": "cw==", "SigningCertURL": "https://sns.eu-west-1.amazonaws.com/SimpleNotificationService-1.pem"}
)  # fmt: skip
UPLOADS = "<ListMultipartUploadsResult><Upload><Key>a&amp;b</Key><UploadId>c</UploadId></Upload><Code>d</Code>"
_ODD_HEAD = "HTTP/1.1 200 OK\r\nodd\r\n"
MAILGUN = json.dumps({"signature": {"timestamp": "1700000000", "token": "t", "signature": "s"}})


class Parser(NamedTuple):
    """What reads a text, and texts to grow others from; `further` are known to have been slow."""

    read: Callable[[str], object]
    seeds: list[str]
    further: tuple[str, ...] = ()
    chars: int = CHARS


def _report(text: str) -> object:
    return read_report(text.encode("latin-1", "replace"))


def _page(html: str) -> object:
    return Renderer().take(without_template(), "subject", None, html)


def _uploads(body: str) -> object:
    exchange = SimpleNamespace(
        status=200,
        failure=None,
        reason="",
        wrote=True,
        body=body.encode(),
        header=lambda _: None,
        body_end="whole",
        unread={},
    )
    answer = S3Answer(cast(Exchange, exchange))
    return answer.uploads_of("a"), answer.upload_id


def _events(body: str) -> None:
    document = json.loads(body)
    for read in (read_resend, read_postmark, read_mailgun, read_sendgrid, read_ses):
        with suppress(NotAnEvent):
            cast(Any, read)("id", document)


def _signed(text: str) -> object:
    headers = {"webhook-id": text, "webhook-timestamp": text, "webhook-signature": text}
    return signing.verify_with([b"k" * 32], headers, b"{}", tolerance_seconds=300)


def _answer(text: str) -> object:
    """Byte by byte."""
    parser = ResponseParser()
    for byte in text.encode("latin-1", "replace"):
        if parser.over or parser.fault is not None:
            break
        parser.feed(bytes((byte,)))
    parser.settle()
    return parser.status


def _verdict(text: str) -> object:
    return verdict_of_reply(reply_of("rcpt", 550, text))


@contextmanager
def saying(text: str) -> Iterator[int]:
    """The port of a server that says this to the first who connects, whatever is asked, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def say() -> None:
            with suppress(OSError), server.accept()[0] as peer:
                peer.sendall(text.encode("latin-1", "replace"))
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

        thread = threading.Thread(target=say)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            thread.join()


def _session(text: str) -> object:
    with saying(text) as port, suppress(OSError, smtplib.SMTPException):
        client = Client(server_of(TransportURL("default", f"smtp://127.0.0.1:{port}")), SendProgress(30.0, Timeouts()))
        try:
            return client.command(b"MAIL FROM:<a@b.example>", "mail")
        finally:
            client.quit_quietly()
    return None


def _mailbox(text: str) -> None:
    with saying(text) as port, ImapMailbox(f"imap://127.0.0.1:{port}/INBOX") as mailbox:
        for _ in mailbox.unread():
            pass


def _sent(text: str) -> None:
    """What a provider's interface answers to a message, by each of them."""
    document = json.loads(text)
    if isinstance(document, dict):
        for provider in (Mailgun("a.example"), Postmark(), Resend(), SendGrid(), Ses("eu-west-1", cast(Any, None))):
            said = provider.said(document)
            with suppress(StopIteration):
                find_row(provider.rows, 400, said)


def _repeated(text: str) -> object:
    strike = striking(f"https://a.example/hooks/{TOKEN}?key={TOKEN}", {"x-key": TOKEN}, [b"k" * 32], f"v1,{TOKEN}")
    return strike(text.encode(), is_cut=True)


def _tokens(text: str) -> object:
    return find_tokens(cast(Any, SimpleNamespace(keys=KeyRing(f"digest={generate_key()}"))), text)


def nested(count: int, before: str = "") -> str:
    return "".join(f"{before}Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(count))


PARSERS = {
    "a report": Parser(
        _report, REPORTS,
        (
            'Content-Type: multipart/report; a="' + ";" * CHARS, 'Content-Type: multipart/report; a="' + '\\";' * CHARS,
            nested(300, "X: y\r") + "\n" * CHARS, nested(MULTIPARTS_MAX) + "\n" * CHARS,
            "Content-Type: multipart/mixed; " + "a*0=b; " * CHARS, "Content-Type:\r multipart/mixed; a=" + ";" * CHARS,
            "Content-Disposition: a; filename*0=" + ";" * CHARS, "Subject: " + "=?a?q?b?= " * CHARS,
            "From: a\n " + "\n ;" * CHARS, "Content-Type: message/rfc822\n\n" * 4000,
            "Content-Type: multipart/digest; boundary=b\n\n" + "--b\n\n\n" * CHARS,
        ),
        128 * 1024,
    ),
    "a page": Parser(
        _page, [HTML, STYLED],
        (
            "<a " * CHARS, "<!--" * CHARS, "<!-- >" * CHARS, "<![" * CHARS, "<a b='" * CHARS, STYLED + "<b>" * CHARS,
            STYLED + "<svg>" + "<td>" * CHARS, "<blockquote>x" * CHARS, "<a href=http://x>" * CHARS, "<ul><li>" * CHARS,
            STYLED.replace("p{", "p," * CHARS + "p{"), "<![CDATA[" * CHARS, "<?" * CHARS,
        ),
    ),
    "Markdown": Parser(html_of, [MARKDOWN], ("![" * CHARS, "*_" * CHARS, "[a](" * CHARS), 16 * 1024),
    "text in Markdown": Parser(escape_markdown, [MARKDOWN]),
    "a bucket's answer": Parser(
        _uploads, [UPLOADS],
        ("<Upload>" * CHARS, "<Upload><Key>" * CHARS + "</Upload>", "<UploadId>" * CHARS, "<Code>" * CHARS), 128 * 1024,
    ),
    "a provider's events": Parser(_events, [EVENT]),
    "SNS": Parser(lambda text: SnsVerifier([TOPIC], fetch=lambda _: None).check(text.encode()), [SNS]),
    "Mailgun": Parser(lambda text: check_mailgun([b"k"], {}, text.encode()), [MAILGUN]),
    "a password": Parser(lambda text: knows_password([b"h"], {"authorization": text}), ["Basic ZWZmZWN0czpw"]),
    "a signature": Parser(_signed, ["msg_1", "1700000000", "v1,cw== v1,cw=="]),
    "a wait": Parser(lambda text: retry_after(text, 0.0), ["120", "Fri, 31 Dec 2027 23:59:59 GMT", "1.5"]),
    "an answer": Parser(
        _answer, [f"{_ODD_HEAD} c\r\nd: e\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 103 a\r\nb\r\n\r\n"],
        (
            "HTTP/1.1 103 a\r\nb\r\n\r\n" * CHARS, _ODD_HEAD + "c: d\r\n" * CHARS, _ODD_HEAD + "\r" * CHARS,
            "HTTP/1.1 103 a\r\nb\r\n\r\nHTTP/1.1 200" + " " * CHARS, _ODD_HEAD + "Content-Length: 1" + ", 1" * CHARS,
        ),
        16 * 1024,
    ),
    "a date": Parser(http_date, ["Fri, 31 Dec 2027 23:59:59 GMT", "Friday, 31-Dec-27 23:59:59 GMT"]),
    "an endpoint's URL": Parser(check_url, ["https://user:a@b.example:443/c?d=e#f", "https://[::1]/%41"]),
    "a bucket's URL": Parser(parse_address, ["s3://a/b?region=c&endpoint=https://d.example:9000"]),
    "a database's URL": Parser(database_url, ["postgresql+psycopg://a:b@c:5432,d/e?f=g", "sqlite:///a.db"]),
    "an SMTP server": Parser(
        _session, ["220 a ESMTP\r\n250-a\r\n250-SIZE 9\r\n250-AUTH=LOGIN PLAIN\r\n250 PIPELINING\r\n250 2.1.0 ok\r\n"],
        ("220-a\r\n" * CHARS, "220 a\r\n" + "250-" + "a" * CHARS, "220 a\r\n250-AUTH " + "a " * CHARS), 16 * 1024,
    ),
    "an IMAP server": Parser(
        _mailbox, ["* OK [CAPABILITY IMAP4] a\r\n* CAPABILITY IMAP4rev1\r\n* 1 FETCH (UID 2 BODY[] {3}\r\nabc)\r\n"],
        ("* OK a\r\n" * CHARS, "* OK a\r\n* 1 FETCH (BODY[] {9}\r\n" * CHARS, "* OK [" + "A " * CHARS),
    ),
    "a provider's answer": Parser(
        _sent,
        ['{"message": "a", "name": "b", "ErrorCode": 406, "Message": "You tried to send to a c@d.example",'
         ' "errors": [{"message": "e", "field": "f", "help": null}], "__type": "g", "code": "h"}'],
    ),
    "an answer that repeats": Parser(
        _repeated, [f"a {TOKEN} b", f'{{"key": "{TOKEN}"}}'], (TOKEN * CHARS, TOKEN[:-1] * CHARS, TOKEN[0] * CHARS)
    ),
    "a bounce's address": Parser(_tokens, ["b-" + "a2" * 26 + "a@b.example"], ("b-" * CHARS, "b-" + "a" * CHARS)),
    "a form": Parser(fields_of, ["a=b&c=%41&d=e+f"], ("a=b&" * CHARS, "%" * CHARS, "a=" + "%41" * CHARS)),
    "a cron line": Parser(Cron, ["0 7 1,2 1-6/2 MON#1", "*/5 * L * *"], ("0 " * 5 + "1," * CHARS, "0-" * CHARS)),
    "a reply": Parser(_verdict, ["5.1.1 <ann@example.org>: Recipient address rejected: User unknown"]),
    "a calendar": Parser(
        lambda text: without_attendees(text.encode(), {"a@b.example"}),
        ["BEGIN:VCALENDAR\r\nATTENDEE;CN=\"a\\,b\";RSVP=TRUE:mailto:a@b.example\r\n x\r\nEND:VCALENDAR\r\n"],
    ),
}  # fmt: skip


def grown(parser: Parser) -> Iterator[str]:
    """The seeds with a piece of theirs repeated, up to the size; the same by the same seed of the run."""
    chance = random.Random(repr(sample(range(10**6), 1)))
    for _ in range(GROWN):
        seed = chance.choice(parser.seeds)
        begin = chance.randrange(len(seed))
        piece = seed[begin : begin + chance.choice((1, 2, 5, 20, 80))]
        yield f"{seed[:begin]}{piece * (parser.chars // len(piece))}{chance.choice((seed[begin:], ''))}"


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_reading_takes_time_in_proportion(name: str) -> None:
    parser = PARSERS[name]
    for text in (*(text[: parser.chars] for text in parser.further), *grown(parser)):
        try:
            with cpu_bounded(CPU_SECONDS), suppress(*REFUSALS):
                parser.read(text)
        except Squared:
            pytest.fail(f"{name}: {len(text):,} characters of {text[:40]!r} … {text[-40:]!r} took too long")
