"""Goal: the password of a mailbox goes to a server that is known, and to no other. Method: real TLS on loopback."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from effects_email.errors import MailboxUnavailable
from effects_email.returned.mailboxes import ImapMailbox
from tests.email.returned.imap import ImapPeer

SCHEMES = ("imaps", "imap+starttls")


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return authority


def context_of(authority: trustme.CA, name: str = "127.0.0.1") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_mailbox_is_read_over_tls(scheme: str, authority: trustme.CA, tmp_path: Path) -> None:
    with (
        ImapPeer([b"Subject: x\r\n\r\nhello"], scheme=scheme, context=context_of(authority)) as server,
        ImapMailbox(server.url("INBOX"), ca_file=str(tmp_path / "ca.pem")) as mailbox,
    ):
        assert [data for _, data in mailbox.unread()] == [b"Subject: x\r\n\r\nhello"]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("fault", ["another authority", "another name"])
def test_no_password_goes_to_a_server_that_is_not_known(
    scheme: str, fault: str, authority: trustme.CA, tmp_path: Path
) -> None:
    context = context_of(trustme.CA()) if fault == "another authority" else context_of(authority, "mail.example.com")
    with ImapPeer([], scheme=scheme, context=context) as server:
        mailbox = ImapMailbox(server.url("INBOX"), ca_file=str(tmp_path / "ca.pem"))
        with pytest.raises(MailboxUnavailable, match=r"127\.0\.0\.1: its certificate cannot be verified"), mailbox:
            pass
    assert [command for command in server.commands if "LOGIN" in command] == []


def test_no_password_goes_out_in_clear_where_tls_is_not_offered() -> None:
    with ImapPeer([], scheme="imap+starttls") as server:
        mailbox = ImapMailbox(server.url("INBOX"))
        with pytest.raises(MailboxUnavailable, match="does not offer STARTTLS"), mailbox:
            pass
    assert [command for command in server.commands if "LOGIN" in command] == []
