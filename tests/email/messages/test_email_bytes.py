"""The bytes of a message, read back by the standard library's parser, which did not make them."""

from __future__ import annotations

import email
import os
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email import policy
from email.header import decode_header, make_header
from email.utils import parsedate_to_datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from effects import Effects, EnqueueError
from effects.kit.files import open_storage
from effects_email import AddressInvalid, EmailInvalid, File, NewEmail, RenderingFailed, parse_address
from effects_email.message.address import one_line, parse_mailbox
from effects_email.message.attachments import ENCODED_BYTES_MAX, describe
from effects_email.message.mime import build, check_header
from effects_email.message.source import Address, MessageSource
from effects_email.request import RenderedEmail, render_email
from tests.email.messages.conftest import write
from tests.support.sampling import sample

COUNT = int(os.environ.get("EFFECTS_TEST_MESSAGES", "5000"))  # 100,000 by hand, with EFFECTS_TEST_FULL=1
SAMPLED = 1000
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PARTS = MessageSource(
    message_id="0123@shop.example", date=NOW, sender=Address("hello", "shop.example", "Shop"),
    to=(Address("ann", "x.example"),), subject="Hello", text="Hello\n",
)  # fmt: skip
OURS = ["From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "MIME-Version"]
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")


def parsed(data: bytes) -> Any:
    return email.message_from_bytes(data, policy=policy.default)


def lines_of(text: str) -> list[str]:
    """However they end; the last may end without a break or with one."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def check_wire(data: bytes) -> None:
    assert not _BARE.search(data), "a bare CR or LF"
    assert max(map(len, data.split(b"\r\n"))) <= 998
    assert b"\0" not in data


# -- generated -----------------------------------------------------------------------------------------------------

PIECES = [
    "Ann", "O'Neil", "Müller", "Åsa", "名前", "שלום", "😀", "é", "x" * 80, "word " * 30, "ü" * 60, "=?utf-8?q?evil?=",
    "=?x",
    "\r\nBcc: evil@evil.example", "\n.\nMAIL FROM:<e@e.example>", "\r\n\r\n<html>", "\r", "\n", "\0", "\t", "\x0b",
    "\x0c", "\x1b[31m",
    "\x7f", "\x85", "\u2028", "\u2029", "\u00a0", "\u200b", "\u202e", "\ufeff", "\ud800", '"', "\\", "(", ")", "<",
    ">", "@", ",", ";",
    ":", "[", "]", ".", "..", " ", "  ", "%0d%0a", "&", "{{", "?=", "$", "Bcc: a@b.example", "a@b.example", "-", "_",
    "'",
]  # fmt: skip
LOCALS = ["ann", "ann.lee", "a+tag", "o'neil", "x_y-z", "UPPER", "1", "ünï", "用户", "a{b}", "!#$%&'*+/=?^_`{|}~-"]
DOMAINS = ["x.example", "Sub.X.Example", "müller.example", "例え.example", "xn--mller-kva.example", "a-b.co.example"]


def random_text(dice: random.Random, most: int = 5) -> str:
    return "".join(dice.choice(PIECES) for _ in range(dice.randrange(most + 1)))


def generated(number: int) -> tuple[NewEmail, list[Address]]:
    dice = random.Random(number)  # the same for the same number
    people: list[Address] = []
    for _ in range(dice.choice([1, 1, 1, 3, 8])):
        spec = f"{dice.choice(LOCALS)}@{dice.choice(DOMAINS)}"
        people.append(Address(*spec.rsplit("@", 1), name=random_text(dice) if dice.random() < 0.7 else ""))
    cut = dice.randrange(1, len(people) + 1)
    headers = {f"X-{number}-{n}": random_text(dice, 4) for n in range(dice.randrange(3))}
    if dice.random() < 0.05:
        headers[random_text(dice, 2)] = "x"
    new_email = NewEmail(
        "any", to=people[:cut], cc=people[cut:], group=True, headers=headers,
        reply_to=[Address("re", "x.example", random_text(dice, 2))] if dice.random() < 0.2 else [],
        context={"subject": f"s{random_text(dice, 8)}", "text": random_text(dice, 12), "html": random_text(dice, 6)},
    )  # fmt: skip
    return new_email, people


@pytest.fixture
def maker(tmp_path: Path) -> Iterator[Effects]:
    folder = write(tmp_path / "emails", {
        "any/subject.txt": "{{ subject }}", "any/body.txt": "{{ text }}", "any/body.html": "<p>{{ html }}</p>",
    })  # fmt: skip
    app = Effects(f"sqlite:///{tmp_path / 'x.db'}", templates=folder, email_from="Shöp, Inc <hello@shop.example>")
    yield app
    app.dispose()


def close(name: str) -> str:
    """Without white space: the parser puts one between the encoded words of a phrase, where RFC 2047 has none."""
    return re.sub(r"\s", "", name)


def each_once(people: Sequence[Address]) -> dict[str, str]:
    """The names by address: who is listed twice stands once, where and as they were listed first."""
    first: dict[str, str] = {}
    for person in people:
        first.setdefault(parse_address(person.spec).spec, one_line(person.name))
    return first


def check(rendered: RenderedEmail, new_email: NewEmail, people: list[Address]) -> None:
    data = build(rendered.source, {})
    check_wire(data)
    message = parsed(data)
    listed = each_once(people)
    to_count = len(each_once(people[: len(new_email.to)]))
    names = [
        *OURS[:2],
        *(["Cc"] if len(listed) > to_count else []),
        *(["Reply-To"] if new_email.reply_to else []),
        *OURS[2:],
    ]
    assert message.keys() == [*names, *(new_email.headers or {}), "Content-Type"]
    to, cc = message["to"].addresses, message["cc"].addresses if "cc" in message else ()
    assert len(to) == to_count
    # The parser takes the bytes of RFC 6532 for what they are not; back to what they are.
    assert [addressee.addr_spec.encode("ascii", "surrogateescape").decode() for addressee in (*to, *cc)] == [*listed]
    assert [close(addressee.display_name) for addressee in (*to, *cc)] == [close(name) for name in listed.values()]
    assert [author.addr_spec for author in message["from"].addresses] == ["hello@shop.example"]
    assert str(message["subject"]) == one_line(str(new_email.context["subject"])) == rendered.source.subject
    for name, value in (new_email.headers or {}).items():
        raw = email.message_from_bytes(data)[name].replace("\r\n", "")
        assert str(make_header(decode_header(raw))) == value.strip(" \t")
    assert all(part.defects == [] for part in message.walk())
    assert rendered.source.text == new_email.context["text"]
    assert unescape(rendered.source.html or "") == f"<p>{new_email.context['html']}</p>"
    text, html = message.get_body(("plain",)).get_content(), message.get_body(("html",)).get_content()
    assert lines_of(text) == (lines_of(rendered.source.text) or [""])
    assert lines_of(html) == lines_of(rendered.source.html or "")
    assert b"\r\nBcc:" not in data.partition(b"\r\n\r\n")[0]


@pytest.mark.slow
def test_generated_messages_hold_their_content_and_nothing_else(maker: Effects) -> None:
    refusals: list[str] = []
    numbers = sample(range(COUNT), SAMPLED)
    for number in numbers:
        new_email, people = generated(number)
        try:
            rendered = render_email(maker, new_email, NOW)
        except (EnqueueError, RenderingFailed) as error:
            refusals.append(str(error))
            continue
        try:
            check(rendered, new_email, people)
        except AssertionError as error:
            pytest.fail(f"message {number}: {error}")
    assert len(numbers) * 0.1 < len(refusals) < len(numbers) * 0.8
    assert "evil" not in " ".join(refusals)


def test_the_same_parts_are_the_same_bytes() -> None:
    parts = replace(PARTS, html="<p>ü</p>", text="ü\n", subject="ü" * 100)
    assert build(parts, {}) == build(replace(parts), {})
    assert build(parts, {}) != build(replace(parts, message_id="0124@shop.example"), {})


# -- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "local", "domain"),
    [
        ("Ann@EXAMPLE.com", "Ann", "example.com"), ("a@müller.example", "a", "xn--mller-kva.example"),
        ("a@MÜLLER.example", "a", "xn--mller-kva.example"), ("用户@例え.example", "用户", "xn--r8jz45g.example"),
        ("a+b@x.test", "a+b", "x.test"), ("a@Mail.local", "a", "mail.local"),
        ("a@host.internal", "a", "host.internal"),
    ],
)  # fmt: skip
def test_an_address_is_parsed(spec: str, local: str, domain: str) -> None:
    address = parse_address(spec)
    assert (address.local, address.domain) == (local, domain)


@pytest.mark.parametrize(
    "spec", ["ann@localhost", "root@LOCALHOST", "ann@localhost.", "ann@localhost.localdomain", "ann@shop.localhost",
             "Ann <ann@localhost>"],
)  # fmt: skip
def test_the_mail_servers_own_host_is_no_address(spec: str) -> None:
    with pytest.raises(AddressInvalid, match="at localhost, the mail server's own host; give an address of a domain"):
        parse_mailbox(spec, where="to")


@pytest.mark.parametrize(
    "spec", ["", "a", "@b.example", "a@", "a@b", "a b@c.example", "a@b c.example", "a@b..example", ".a@b.example",
    "a@-b.example",
             "a@b.example\n", "\na@b.example", "a@b.example,c@d.example", "<a@b.example>", "A <a@b.example>",
             "a@[127.0.0.1]",
             '"a b"@c.example', "a@b.example(c)", "a@b.example;c", "a\0@b.example", "a@b\0.example",
             "x" * 65 + "@b.example",
             "a@" + "x" * 64 + ".example", "a@" + "x." * 130 + "example", "a\u2028@b.example", "a@b.exa\u2028mple",
             "\ud800@b.example"],
)  # fmt: skip
def test_an_invalid_address_is_refused_without_being_quoted(spec: str) -> None:
    with pytest.raises(AddressInvalid, match="to is no e-mail address") as caught:
        parse_address(spec, where="to")
    assert len(spec) < 3 or spec not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "spec"),
    [
        ("a@b.example", "", "a@b.example"), (" a@b.example ", "", "a@b.example"), ("Shop <a@b.example>", "Shop",
        "a@b.example"),
        ('"Shop, Inc" <a@b.example>', "Shop, Inc", "a@b.example"), ("Shop, Inc <a@b.example>", "Shop, Inc",
        "a@b.example"),
        (r'"Ann \"the boss\" \\ <x@y>: sales" <a@b.example>', r'Ann "the boss" \ <x@y>: sales', "a@b.example"),
        ("Zoë <用户@例え.example>", "Zoë", "用户@xn--r8jz45g.example"), ("<a@b.example>", "", "a@b.example"),
        ("Ann\r\nBcc, x <a@b.example>", "Ann Bcc, x", "a@b.example"), ("O'Neil (work) <a@b.example>", "O'Neil (work)",
        "a@b.example"),
    ],
)  # fmt: skip
def test_a_mailbox_with_a_name_or_without(text: str, name: str, spec: str) -> None:
    mailbox = parse_mailbox(text, where="EFFECTS_EMAIL_FROM")
    assert (mailbox.name, mailbox.spec) == (name, spec)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Shop",
        "Shop <>",
        "a@b.example <c@d.example> x",
        "<a@b.example",
        "Shop <a@b.example>, x@y.example",
        "x@y.example, Ann <a@b.example>",
        "Ann <x@y.example>, Bob <a@b.example>",
        'Ann "x" <a@b.example>',
        '"Ann <a@b.example>',
        "Team: Ann <a@b.example>",
        "Ann <a@b.example>;",
        "Ann <<a@b.example>>",
        "Ann <a@b.example\n>",
    ],
)
def test_an_invalid_mailbox(text: str) -> None:
    with pytest.raises(AddressInvalid, match="EFFECTS_EMAIL_FROM is no e-mail address"):
        parse_mailbox(text, where="EFFECTS_EMAIL_FROM")


# -- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["From", "to", "Bcc", "Sender", "Subject", "Date", "Message-ID", "Content-Type",
"MIME-Version", "Received",
                                  "Return-Path", "DKIM-Signature", "Resent-To", "Reply-To", "X", "X-A:", "X-A B",
                                  "X-A\n", "X-Ä", "", "-X"])  # fmt: skip
def test_reserved_and_invalid_header_names_are_refused(name: str) -> None:
    with pytest.raises(EmailInvalid, match="headers: "):
        check_header(name, "x")


@pytest.mark.parametrize(
    "break_", ["\r\n", "\n", "\r", "\0", "\x0b", "\x0c", "\x1c", "\x7f", "\x85", "\u2028", "\u2029", "\ud800"]
)
def test_a_value_with_a_break_is_refused(break_: str) -> None:
    with pytest.raises(EmailInvalid, match="X-A holds a line break or a control character"):
        check_header("X-A", f"a{break_}Bcc: b@x.example")


def test_a_run_of_blanks_makes_no_line_too_long() -> None:
    for value in ("a" + " \t" * 1500 + "b", f"{'a' * 970}{' ' * 500}b", f"a{' ' * 200}b"):
        data = build(replace(PARTS, headers=(check_header("X-A", value),)), {})
        check_wire(data)
        assert str(make_header(decode_header(email.message_from_bytes(data)["X-A"].replace("\r\n", "")))) == value
    assert check_header("References", f"<a@b>{' ' * 3000}<c@d>") == ("References", "<a@b> <c@d>")


def test_the_list_headers_pass_as_they_are() -> None:
    link = "<https://shop.example/u?token=" + "t" * 300 + ">, <mailto:u@shop.example?subject=x>"
    headers = (
        ("List-Unsubscribe", link),
        ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click"),
        ("References", "<a@b> " * 40 + "<c@d>"),
    )
    data = build(replace(PARTS, headers=headers), {})
    check_wire(data)
    message = parsed(data)
    assert [(name, " ".join(str(message[name]).split())) for name, _ in headers] == list(headers)


# -- bodies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", ["", "x", "x\n", "\n\n", ".", ".\n..\n.x\n", "From me\n>From you\n", "a\r\nb\rc\nd", "x" * 5000,
    "ü" * 5000, "日本語\n" * 500,
             "a = b =20 =\n", "trailing \t\n space ", "--=_alternative\n--\n", "\x00\x01\x0c", "\u2028\u0085",
             "😀" * 3, "tab\tx"],
)  # fmt: skip
def test_a_body_comes_back_as_it_was(body: str) -> None:
    data = build(replace(PARTS, text=body, html=f"<p>{body}</p>"), {})
    check_wire(data)
    assert data.isascii()
    for kind, expected in (("plain", body), ("html", f"<p>{body}</p>")):
        decoded = parsed(data).get_body((kind,)).get_payload(decode=True).decode()
        assert lines_of(decoded) == (lines_of(expected) or [""])


@pytest.mark.parametrize("before", ["", "x\n", "\n\n", "ü\n", "日本語\n" * 9])
@pytest.mark.parametrize("after", ["", "x", "Monday", " ", "\n", "x" * 70, "x " * 200, "x" * 2000, "ü", "From x"])
def test_no_line_of_a_body_begins_as_a_mbox_message_does(before: str, after: str) -> None:
    """`From ` at a line's beginning would become `>From `, and break a signature. In any encoding."""
    body = f"{before}From {after}\nFrom {after}\nFrom: no\n from no\n"
    data = build(replace(PARTS, text=body, html=f"<p>\n{body}"), {})
    check_wire(data)
    assert [line for line in data.split(b"\r\n") if line.startswith(b"From ")] == []
    rest = data.partition(b"\r\n\r\n")[2]
    if b"quoted-printable" in rest:
        assert max(map(len, re.findall(rb"^=46rom.*$", rest, re.MULTILINE)), default=0) <= 76
    for kind, expected in (("plain", body), ("html", f"<p>\n{body}")):
        content = parsed(data).get_body((kind,)).get_payload(decode=True).decode()
        assert lines_of(content) == lines_of(expected)


@given(st.lists(st.sampled_from(["From ", "x", "=", " ", "\n", "ü", "y" * 60, "z" * 77]), max_size=30).map("".join))
def test_wrapped_lines_do_not_begin_with_from_either(body: str) -> None:
    data = build(replace(PARTS, text=body), {})
    assert [line for line in data.split(b"\r\n") if line.startswith(b"From ")] == []
    assert lines_of(parsed(data).get_payload(decode=True).decode()) == (lines_of(body) or [""])


def test_a_body_that_holds_its_own_boundary_gets_another() -> None:
    seen = build(replace(PARTS, html="<p>x</p>"), {})
    boundary = parsed(seen).get_boundary()
    data = build(replace(PARTS, text=f"--{boundary}\n\nevil\n--{boundary}--\n", html="<p>x</p>"), {})
    message = parsed(data)
    assert [part.get_content_type() for part in message.iter_parts()] == ["text/plain", "text/html"]
    assert message.get_boundary() != boundary


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a.pdf", "ü ä.pdf", 'q"uote.csv', "日本語.xlsx", "a;b=c.txt", "x" * 240, "noending", "a b.PNG"]
)
def test_a_file_comes_back_under_its_name(tmp_path: Path, maker: Effects, name: str) -> None:
    content = bytes(range(256)) * 50 + b"\r\n.\r\n"
    (tmp_path / "f").write_bytes(content)
    [described] = describe(maker, [File(tmp_path / "f", filename=name)])
    data = build(replace(PARTS, attachments=(described,)), {described.sha256: content})
    check_wire(data)
    message = parsed(data)
    [part] = message.iter_attachments()
    assert (part.get_filename(), part.get_payload(decode=True)) == (name, content)
    assert message.get_body().get_content().strip() == "Hello"


def test_images_are_related_to_the_html_and_files_are_attached(tmp_path: Path, maker: Effects) -> None:
    (tmp_path / "logo.png").write_bytes(b"png")
    (tmp_path / "a.pdf").write_bytes(b"pdf")
    files = describe(maker, [tmp_path / "a.pdf", File(tmp_path / "logo.png", content_id="logo")])
    data = build(
        replace(PARTS, html="<img src='cid:logo'>", attachments=files),
        {attachment.sha256: b"x" for attachment in files},
    )
    shape = [
        (part.get_content_type(), part.get_content_disposition(), part["content-id"]) for part in parsed(data).walk()
    ]
    assert shape == [
        ("multipart/mixed", None, None), ("multipart/related", None, None), ("multipart/alternative", None, None),
        ("text/plain", None, None), ("text/html", None, None), ("image/png", "inline", "<logo>"),
        ("application/pdf", "attachment", None),
    ]  # fmt: skip


WRONG_FILES = [
    (File("f", filename="a/b"), "no path"), (File("f", filename="a\nb"), "no path"), (File("f", filename="ü" * 121),
    "1 to 240"),
    (File("f", filename=""), "1 to 240"), (File("f", content_type="text"), "type/subtype"), (File("f",
    content_type="a/b\r\nX: y"), "type/"),
    (File("f", content_type="message/rfc822"), "type/subtype"), (File("f", content_id="<x>"), "content_id"),
    (File("nope"), "cannot be read"),
    (File("storage:nope/x.csv"), "cannot be read"), (File("file:///etc/passwd"), "give a path"),
    (File("a\0b", filename="a"), "holds NUL"), (File("\udcff", filename="a"), "not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "says"), WRONG_FILES)
def test_a_file_that_cannot_be_attached(
    tmp_path: Path, maker: Effects, monkeypatch: pytest.MonkeyPatch, file: File, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises(EnqueueError, match=says):
        describe(maker, [file])


def test_a_message_has_ten_mebibytes_of_files(tmp_path: Path, maker: Effects) -> None:
    with (tmp_path / "f").open("wb") as file:
        file.truncate(ENCODED_BYTES_MAX * 76 // 78 // 4 * 3 - 100)
    assert describe(maker, [tmp_path / "f"])
    (tmp_path / "g").write_bytes(b"x" * 200)
    with pytest.raises(EnqueueError, match="send a link to the file instead"):
        describe(maker, [tmp_path / "f", tmp_path / "g"])
    with pytest.raises(EnqueueError, match="same content_id"):
        describe(maker, [File(tmp_path / "g", content_id="a"), File(tmp_path / "g", content_id="a")])


def test_a_stored_file_is_attached_by_its_name(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'x.db'}", storage_url=f"{tmp_path / 'files'}")
    for name in ("reports/june.csv", "june.csv"):
        with open_storage(app.settings.storage_url).writer(name) as writer:
            writer.write(b"a,b\n")
            writer.finish()
        [attachment] = describe(app, [f"storage:{name}"])
        assert (attachment.filename, attachment.size_bytes, attachment.content_type) == ("june.csv", 4, "text/csv")
    app.dispose()


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("a.csv", "text/csv"), ("a.csv.gz", "application/octet-stream"), ("a.tar.xz", "application/octet-stream"),
        ("a.eml", "application/octet-stream"), ("a", "application/octet-stream"),
    ],
)  # fmt: skip
def test_a_file_has_the_type_of_its_bytes(maker: Effects, name: str, content_type: str) -> None:
    [attachment] = describe(maker, [File(b"x", filename=name)])
    assert attachment.content_type == content_type


def test_date_and_message_id_are_those_of_the_call() -> None:
    message = parsed(build(PARTS, {}))
    assert parsedate_to_datetime(message["date"]) == NOW
    assert message["message-id"] == "<0123@shop.example>"
