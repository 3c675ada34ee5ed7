"""Whatever a stranger sends: it raises nothing, and suppresses no one without a proof."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effects import Effects
from effects_email import list_suppressions
from effects_email.returned.reading import read_report
from effects_email.returned.taking import take_report
from tests.email.returned.conftest import Written, address_of
from tests.email.returned.corpus import cases
from tests.support.sampling import is_full, sample

EXAMPLES = 3000 if is_full() else 150
MESSAGES = [
    case.message(to="b-x@bounces.shop.example", address="ann@example.org", message_id="1@shop.example")
    for case in cases()
]
PIECES = [
    b"Content-Type: multipart/report; boundary=\"=_b\"\n", b"Content-Type: message/delivery-status\n", b"--=_b\n",
    b"Content-Transfer-Encoding: base64\n", b"Content-Type: text/plain; charset=\xff\x00\n", b"\n\n", b"\r\n\r\n",
    b"Final-Recipient: rfc822;;;@@\n", b"Status: 5..1\n", b"=?utf-8?b?////?=", b"Subject: =?x?q?\xff?=\n", b"Action:\n",
    b"Content-Type: message/rfc822\n", b"Date: Sun, 99 Dec 99999 99:99:99 +9999\n", b"<" * 500, b"@" * 500,
    b"Content-Type: message/feedback-report\nFeedback-Type: abuse\n", b"boundary=", b'"', b"\x00" * 20,
]  # fmt: skip


@st.composite
def bent(draw: st.DrawFn) -> bytes:
    """A report of the corpus, cut and mixed with pieces of others."""
    data = bytearray(draw(st.sampled_from(MESSAGES)))
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 200)))
        data[start:end] = draw(st.one_of(st.sampled_from(PIECES), st.binary(max_size=40)))
    return bytes(data)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.one_of(bent(), st.binary(max_size=2000)))
def test_reading_raises_nothing(data: bytes) -> None:
    read_report(data)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\n", b"\r\n\r\n", b":", b"\xff" * 10_000, b"a" * 2_000_000, b"X-Failed-Recipients: " + b"a@b," * 50_000,
        b"".join(b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(3000)),
        b"Content-Type: message/rfc822\n\n" * 3000,
        b"Return-Path: <>\nFrom: mailer-daemon@x\n\n" + b"undeliverable " * 80_000,
        b"Return-Path: <>\nFrom: mailer-daemon@x\n\nundeliverable\n"
        + b"".join(b"u%d@x.example\n" % n for n in range(9000)),
        b"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: message/delivery-status\n\n"
        + b"Final-Recipient: rfc822;a@b.example\nAction: failed\n\n" * 5000,
    ],
    ids=["empty", "line", "lines", "colon", "high", "long", "header", "deep", "nested", "words", "list", "groups"],
)  # fmt: skip
def test_what_is_large_or_deep_is_read_or_left_alone(data: bytes) -> None:
    report = read_report(data)
    assert report is None or len(report.recipients) <= 5000


_REPORT = """\
From: MAILER-DAEMON@mx.example
Message-ID: <{number}@mx.example>
Content-Type: multipart/report; report-type=delivery-status; boundary="=_b"

--=_b
Content-Type: text/plain; charset={charset}

{words}

Message-ID: <{message_id}>
--=_b
Content-Type: message/delivery-status

Final-Recipient: rfc822; {address}
Action: failed
Status: {status}
Diagnostic-Code: smtp; {diagnostic}

--=_b--
"""
_USUAL = {
    "charset": "utf-8",
    "words": "x",
    "address": "ann@example.org",
    "status": "4.2.0",
    "diagnostic": "450 4.2.0 x",
}
# What gives way only behind the reading: while a token is opened, a row is looked up, or a reply is judged.
_ODD = {
    "a token with a letter that is a K in other alphabets": {"words": f"b-{'a' * 52}\u212a@bounces.shop.example"},
    "a wait in seconds of another alphabet": {
        "words": "Final-Recipient: rfc822; ann@example.org\nAction: failed\n"
        "Diagnostic-Code: smtp; 450 4.2.0 try again in 5 \u017f",
    },
    "a Message-ID with half of a surrogate pair": {"charset": "utf-7", "words": "Message-ID: <a+2AA-b@x>"},
    "a Message-ID with NUL": {"words": "Message-ID: <a\0b@x>"},
    "a Message-ID beyond ASCII": {"words": "Message-ID: <ü@x>"},
    "a recipient with half of a surrogate pair": {
        "charset": "utf-7", "words": "Final-Recipient: rfc822; +2AA-@x.example\nAction: failed",
    },
}  # fmt: skip


def test_no_report_of_a_recipients_stops_the_others(shop: Effects, written: Written) -> None:
    """Each is proven: a recipient has the Message-ID, and writes what they like around it."""
    receipt = written("ann@example.org")
    for number, odd in enumerate(_ODD.values()):
        data = _REPORT.format(number=number, message_id=receipt.message_id, **{**_USUAL, **odd})
        assert take_report(data.encode(), effects=shop).fate == "taken", data
    assert list_suppressions(effects=shop) == []


def test_encodings_that_take_their_time_are_not_decoded() -> None:
    for charset in ("punycode", "idna", "unicode_escape", "RAW-Unicode-Escape"):
        data = _REPORT.format(number=1, message_id="1@x", **{**_USUAL, "charset": charset, "words": "a\\u0041-b.c"})
        report = read_report(data.encode())
        assert report is not None
        assert "a\\u0041-b.c" in report.text, charset


def test_no_more_multiparts_are_taken_apart_than_parts_are_read() -> None:
    """A parser looks for the end of each in every line: three hundred of them take half a minute."""
    report = _REPORT.format(number=1, message_id="1@x", **_USUAL)
    for before in ("", "X: y\r", "X: y\n", "X: y\r\n"):  # whatever the parser takes for the end of a line
        for count, is_read in ((15, True), (25, False)):
            nested = "".join(f'{before}Content-Type: multipart/mixed; boundary="{n}"\n\n--{n}\n' for n in range(count))
            assert (read_report(report.replace("--=_b--", f"--=_b\n{nested}").encode()) is not None) is is_read


def test_a_report_has_as_many_recipients_as_a_message() -> None:
    """Each becomes an event in a transaction of its own."""
    groups = "".join(f"Final-Recipient: rfc822; u{number}@x.example\nAction: failed\n\n" for number in range(300))
    complaints = "Feedback-Type: abuse\n\n" * 300
    for label, fields in (("message/delivery-status", groups), ("message/feedback-report", complaints)):
        report = read_report(
            f"Content-Type: multipart/report; boundary=b\n\n--b\nContent-Type: {label}\n\n{fields}".encode()
        )
        assert report is not None
        assert len(report.recipients) == 100


def test_forged_and_bent_reports_suppress_no_one(shop: Effects, written: Written) -> None:
    """Of real messages, whose tokens are altered in one place, or whose Message-IDs are guessed."""
    receipt = written("ann@example.org")
    own = address_of(shop, receipt)
    chance = random.Random(7)
    for case in sample(cases(), 30):
        place = chance.randrange(2, 54)
        letter = chance.choice([letter for letter in "abcdefghijklmnopqrstuvwxyz234567" if letter != own[place]])
        forged = own[:place] + letter + own[place + 1 :]
        guessed = f"{chance.randbytes(16).hex()}@shop.example"
        report = take_report(case.message(to=forged, address="ann@example.org", message_id=guessed), effects=shop)
        assert report.fate in ("not_ours", "left_alone"), case.name
    assert list_suppressions(effects=shop) == []


def test_a_report_names_no_recipient_who_did_not_get_the_message(shop: Effects, written: Written) -> None:
    """Who has a message, and so its token, can report a failure of their own address alone."""
    receipt = written(["ann@example.org", "ben@example.org"], group=True)
    written("zoe@example.org")
    for case in cases():
        for to, message_id in ((address_of(shop, receipt, None), "x@y"), ("b@shop.example", receipt.message_id)):
            take_report(case.message(to=to, address="zoe@example.org", message_id=message_id), effects=shop)
    assert list_suppressions(effects=shop) == []
