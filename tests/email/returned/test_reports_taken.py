"""Where bounces come from: the envelope that a message had, a maildir, a mailbox, a pipe, a POST; and what follows."""

from __future__ import annotations

from email.utils import parseaddr
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from effects import ConfigurationError, Effects
from effects.worker import Worker
from effects_email import EmailReceipt, events_of, find_suppressions, send_email
from effects_email.admin import get_email
from effects_email.errors import MailboxUnavailable
from effects_email.receiver import bounces_asgi_app, bounces_wsgi_app
from effects_email.returned.mailboxes import ImapMailbox, ReportMaildir
from effects_email.returned.taking import take_report
from effects_email.returned.token import find_tokens
from tests.conftest import AppFactory
from tests.email.returned.conftest import DOMAIN, KEYS, Written, address_of
from tests.email.returned.corpus import Case, cases
from tests.email.returned.imap import ImapPeer
from tests.support.web_clients import asgi_client, wsgi_client

CASES = {case.name: case for case in cases()}
UNKNOWN_USER, DELIVERED = CASES["postfix: unknown user at the next server"], CASES["postfix: delivered, on request"]
QMAIL, COMPLAINT = CASES["qmail: no mailbox"], CASES["complaints: microsoft, few fields"]


def report(shop: Effects, receipt: EmailReceipt, address: str, case: Case = UNKNOWN_USER) -> bytes:
    return case.message(to=address_of(shop, receipt), address=address, message_id=receipt.message_id)


def envelopes(folder: Path) -> list[str]:
    """The envelope's senders of what lies in the maildir."""
    files = sorted((folder / "sent" / "new").iterdir())
    return [parseaddr(file.read_bytes().split(b"\r\n")[0].decode().partition(": ")[2])[1] for file in files]


# -- the envelope ----------------------------------------------------------------------------------------------------


def test_each_message_has_an_envelope_of_its_own_and_a_group_one_for_all(
    shop: Effects, written: Written, tmp_path: Path
) -> None:
    receipts = [written("ann@example.org"), written(["ann@example.org", "ben@example.org"], group=True)]
    Worker(shop).drain(30)
    tokens = {token.job_id: token.number for sender in envelopes(tmp_path) for token in find_tokens(shop, sender)}
    assert tokens == {receipts[0].job_id: 0, receipts[1].job_id: None}
    assert all(sender.endswith(f"@{DOMAIN}") and len(sender.partition("@")[0]) <= 64 for sender in envelopes(tmp_path))


@pytest.mark.parametrize(
    ("options", "call", "expected"),
    [
        ({}, {}, "hello@shop.example"),
        ({"email_return_path": "back@shop.example"}, {}, "back@shop.example"),
        ({"email_return_path": "back@shop.example"}, {"return_path": "Own <own@x.example>"}, "own@x.example"),
        ({"email_bounce_domain": DOMAIN}, {"return_path": "own@x.example"}, "own@x.example"),
        ({"email_bounce_domain": DOMAIN, "email_redirect": "team@shop.example"}, {}, "hello@shop.example"),
    ],
    ids=["from", "setting", "message", "message-first", "redirected"],
)
def test_the_envelopes_sender_is_that_of_the_message_or_of_the_settings(
    options: dict[str, Any], call: dict[str, Any], expected: str, app_factory: AppFactory, tmp_path: Path
) -> None:
    app = app_factory(
        job_types=[], keys=KEYS, email_from="Shop <hello@shop.example>", smtp_url=f"maildir:{tmp_path}/sent", **options
    )
    send_email(to="ann@example.org", subject="x", text="x", effects=app, **call)
    Worker(app).drain(30)
    assert envelopes(tmp_path) == [expected]


def test_a_worker_does_not_start_without_the_key_that_signs_addresses(app_factory: AppFactory, tmp_path: Path) -> None:
    app = app_factory(
        job_types=[], email_from="a@shop.example", email_bounce_domain=DOMAIN, smtp_url=f"maildir:{tmp_path}"
    )
    with pytest.raises(ConfigurationError, match="needs a key named digest"):
        Worker(app).drain(30)


# -- what follows ----------------------------------------------------------------------------------------------------


def test_a_report_stands_beside_what_was_recorded(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org")
    Worker(shop).drain(30)
    before = get_email(shop, receipt.key)
    fates = [before.fate]
    for case in (DELIVERED, UNKNOWN_USER, COMPLAINT):
        take_report(report(shop, receipt, "ann@example.org", case), effects=shop)
        fates.append(get_email(shop, receipt.key).fate)
    after = get_email(shop, receipt.key)
    assert fates == [None, "delivered", "bounced", "complained"]
    assert (after.state, after.outcome, after.updated_at) == (before.state, before.outcome, before.updated_at)
    assert [event.kind for event in events_of(receipt.message_id, effects=shop)] == [
        "delivered", "bounced_hard", "complained",
    ]  # fmt: skip
    assert {held.reason for held in find_suppressions("ann@example.org", effects=shop)} == {"hard_bounce", "complaint"}
    assert written("ann@example.org").suppressed


def test_a_bounce_that_was_forwarded_is_the_recipients_of_the_token(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org")
    data = UNKNOWN_USER.message(to=address_of(shop, receipt), address="ann.b@elsewhere.example", message_id="x@y")
    take_report(data, effects=shop)
    assert len(find_suppressions("ann@example.org", effects=shop)) == 1
    assert find_suppressions("ann.b@elsewhere.example", effects=shop) == []
    untraced = written("ben@example.org")
    data = UNKNOWN_USER.message(to="b@x.example", address="ben.b@elsewhere.example", message_id=untraced.message_id)
    assert take_report(data, effects=shop).fate == "taken"
    assert find_suppressions("ben@example.org", effects=shop) == []


def test_of_a_group_the_named_recipient_alone_is_suppressed(shop: Effects, written: Written) -> None:
    receipt = written(["ann@example.org", "ben@example.org"], group=True)
    to = address_of(shop, receipt, None)
    take_report(QMAIL.message(to=to, address="ben@example.org", message_id="x@y"), effects=shop)
    assert find_suppressions("ann@example.org", effects=shop) == []
    assert len(find_suppressions("ben@example.org", effects=shop)) == 1


def test_a_reason_is_not_taken_from_a_longer_address(shop: Effects, written: Written) -> None:
    """`ann@…` stands in `joann@…`, which is named first."""
    receipt = written(["ann@example.org", "joann@example.org"], group=True)
    words = (
        "Hi. This is the qmail-send program at mx.example.\nI'm afraid I wasn't able to deliver your message to the "
        "following addresses.\n\n<joann@example.org>:\n550 5.1.1 no such user\n\n<ann@example.org>:\n552 5.2.2 full\n\n"
        f"--- Below this line is a copy of the message.\n\nMessage-ID: <{receipt.message_id}>\n"
    )
    data = f"Return-Path: <>\nFrom: MAILER-DAEMON@mx.example\nSubject: failure notice\n\n{words}"
    assert sorted(take_report(data.encode(), effects=shop).kinds) == ["bounced_hard", "bounced_soft"]
    assert find_suppressions("ann@example.org", effects=shop) == []
    assert len(find_suppressions("joann@example.org", effects=shop)) == 1


def test_a_token_is_found_where_the_server_noted_the_recipient_and_whatever_its_case(
    shop: Effects, written: Written
) -> None:
    receipts = [written(f"u{number}@example.org") for number in range(3)]
    to = [address_of(shop, receipt) for receipt in receipts]
    plain = [
        UNKNOWN_USER.message(to="postmaster@shop.example", address=f"u{number}@example.org", message_id="x@y")
        for number in range(3)
    ]
    fates = [
        take_report(f"Delivered-To: {to[0].upper()}\r\n".encode() + plain[0], effects=shop).fate,
        take_report(plain[1], came_to=to[1], effects=shop).fate,
        take_report(plain[2], effects=shop).fate,
    ]
    assert fates == ["taken", "taken", "not_ours"]


def test_a_message_that_was_unknown_is_done_when_it_bounces(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org", on_unknown="hold")
    with shop.store.begin() as connection:
        connection.execute(text("UPDATE effects_sent_emails SET state = 'unknown'"))
        connection.execute(text("UPDATE effects_jobs SET unknown_count = 1"))
    take_report(report(shop, receipt, "ann@example.org"), effects=shop)
    Worker(shop).drain(30)
    assert get_email(shop, receipt.key).state == "done"


# -- where they come from --------------------------------------------------------------------------------------------


def test_a_maildir_is_read_once(shop: Effects, written: Written, tmp_path: Path) -> None:
    for name in ("new", "cur", "tmp"):
        (tmp_path / "bounces" / name).mkdir(parents=True)
    receipt = written("ann@example.org")
    (tmp_path / "bounces" / "new" / "1.a").write_bytes(report(shop, receipt, "ann@example.org"))
    (tmp_path / "bounces" / "new" / "2.a").write_bytes(b"From: a@b\n\nhello")
    source = ReportMaildir(tmp_path / "bounces")
    fates = []
    for name, data in source.unread():
        assert data is not None
        fates.append(take_report(data, effects=shop).fate)
        source.mark_read(name)
    assert fates == ["taken", "left_alone"]
    assert list(source.unread()) == []
    assert sorted(file.name for file in (tmp_path / "bounces" / "cur").iterdir()) == ["1.a:2,S", "2.a:2,S"]
    with pytest.raises(ConfigurationError, match="is no maildir"):
        ReportMaildir(tmp_path)


def test_a_mailbox_is_read_by_imap_and_only_what_is_on_record_is_flagged(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org")
    with ImapPeer([report(shop, receipt, "ann@example.org"), b"Subject: x\r\n\r\nhello"]) as server:
        with ImapMailbox(server.url("Bounces")) as mailbox:
            for uid, data in mailbox.unread():
                assert data is not None
                assert not server.seen & {int(uid)}
                take_report(data, effects=shop)
                mailbox.mark_read(uid)
        assert server.seen == {1, 2}
        with ImapMailbox(server.url("Bounces")) as mailbox:
            assert list(mailbox.unread()) == []
    assert get_email(shop, receipt.key).fate == "bounced"


def test_two_runs_may_read_one_maildir(tmp_path: Path) -> None:
    for name in ("new", "cur"):
        (tmp_path / name).mkdir()
    (tmp_path / "new" / "1").write_bytes(b"hello")
    [(name, _)] = ReportMaildir(tmp_path).unread()
    for _ in range(2):
        ReportMaildir(tmp_path).mark_read(name)
    assert [file.name for file in (tmp_path / "cur").iterdir()] == ["1:2,S"]


@pytest.mark.parametrize("fault", ["login", "mailbox", "hangup", "gone"])
def test_a_mailbox_that_cannot_be_read_is_named_without_its_password(fault: str) -> None:
    server = ImapPeer([b"x"], fault=fault)
    mailbox = ImapMailbox(server.url("Bounces"))
    with server:
        if fault != "gone":
            assert "hunter2" not in _refusal(mailbox)
    if fault == "gone":
        assert "127.0.0.1 cannot be reached" in _refusal(mailbox)


def _refusal(mailbox: ImapMailbox) -> str:
    with pytest.raises(MailboxUnavailable) as caught, mailbox:
        list(mailbox.unread())
    return str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["imap://mail.example.com/", "http://x", "imaps://", "imaps://h:x/", 'imap://localhost/"', "imaps://u:%C3%BC@x/"],
)
def test_a_wrong_url_of_a_mailbox_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        ImapMailbox(url)


def test_reports_are_posted_with_a_password(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org")
    data, right = report(shop, receipt, "ann@example.org"), ("effects", "a password of 16 characters")
    with wsgi_client(bounces_wsgi_app(secrets=right[1], effects=shop)) as client:
        assert client("POST", "/", content=data).status_code == 401
        assert client("POST", "/", content=data, auth=("effects", "another password of 16")).status_code == 401
        assert get_email(shop, receipt.key).fate is None
        assert [client("POST", "/", content=body, auth=right).status_code for body in (data, data, b"\xff")] == [
            204
        ] * 3
    with asgi_client(bounces_asgi_app(secrets=[right[1]], effects=shop)) as client:
        assert client("POST", "/x", content=data, auth=right).status_code == 204
    assert len(events_of(receipt.message_id, effects=shop)) == 1


def test_a_complaint_that_names_several_of_ours_is_held_against_none(shop: Effects, written: Written) -> None:
    """RFC 5965 has `Original-Rcpt-To` once for each recipient: whose complaint it is, is not said."""
    people = ["ann@example.org", "ben@example.org"]
    receipt = written(people, group=True)
    named = CASES["complaints: with the address"].message(
        to=address_of(shop, receipt, None), address=people[0], message_id=receipt.message_id
    )
    both = named.replace(b"Original-Rcpt-To: <ann@example.org>", b"Original-Rcpt-To: <ben@example.org>")
    both = both.replace(b"Original-Rcpt-To:", b"Original-Rcpt-To: <ann@example.org>\nOriginal-Rcpt-To:")
    assert take_report(both, effects=shop).kinds == ("complained",)
    assert [find_suppressions(address, effects=shop) for address in people] == [[], []]
    assert take_report(named, effects=shop).kinds == ("complained",)
    assert [bool(find_suppressions(address, effects=shop)) for address in people] == [True, False]
