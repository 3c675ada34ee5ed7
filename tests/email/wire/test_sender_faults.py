"""A real Postfix that refuses our sender, our address or one recipient at RCPT, as it does by default."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects_email.suppression import list_suppressions
from effects_email.transport.base import Verdict
from tests.conftest import AppFactory
from tests.email.wire.conftest import Opened, Released, outgoing_message
from tests.email.wire.post import Post, postfix_url, write_templates
from tests.peers.postfix import Postfix

UNKNOWN_SENDER = "hello@example.org"  # of a domain that is the server's own, without a mailbox
CLOSED = {  # the second in words that no server uses of a recipient
    "user7@example.org": "RESOLVER.RST.AuthRequired; authentication required",
    "user8@example.org": "please authenticate",
}
FAULTS = {
    "the sender": ("smtpd_reject_unlisted_sender = yes", UNKNOWN_SENDER),
    "the client": ("smtpd_client_restrictions = reject", "shop@example.com"),
    "relaying": ("virtual_mailbox_domains = elsewhere.example\nsmtpd_relay_restrictions = reject_unauth_destination",
                 "shop@example.com"),
}  # fmt: skip


@contextmanager
def closed_to_us(authority: trustme.CA, folder: Path) -> Iterator[Postfix]:
    """Two recipients are refused in words that might be about our login; the others are taken."""
    table = folder / "closed"
    lines = (f"/^{address}$/ 550 5.7.1 {words}\n" for address, words in CLOSED.items())
    table.write_text("".join(lines))
    settings = (
        f"smtpd_recipient_restrictions = check_recipient_access regexp:{table}, permit_sasl_authenticated, reject"
    )
    with Postfix(authority, settings) as server:
        yield server


def heard(opened: Opened, server: Postfix, ca_file: Path, *recipients: str, sender: str) -> list[Verdict]:
    transport = opened(postfix_url(server, ca_file), "")
    send_result = transport.send(outgoing_message(*recipients, sender=sender), release=Released(), seconds=30)
    return list(send_result.recipients.values())


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["the sender", "the client", "relaying"])
def test_a_fault_of_ours_at_rcpt_suppresses_no_recipient(
    fault: str, authority: trustme.CA, opened: Opened, ca_file: Path
) -> None:
    settings, sender = FAULTS[fault]
    with Postfix(authority, settings) as server:
        [verdict] = heard(opened, server, ca_file, "user1@example.org", sender=sender)
    assert verdict.reply is not None
    assert (verdict.reply.stage, verdict.kind, verdict.suppress) == ("rcpt", "config", None)
    assert verdict.about in ("sender", "reputation", "account")


def shop_of(app_factory: AppFactory, tmp_path: Path, server: Postfix, ca_file: Path, sender: str) -> Post:
    templates, keys, url = write_templates(tmp_path), f"k1={generate_key()}", postfix_url(server, ca_file)
    app = app_factory(job_types=[], keys=keys, smtp_url=url, email_from=sender, templates=str(templates))
    return Post(app, templates, url, keys)


@pytest.mark.slow
def test_a_mistyped_sender_loses_no_mail_and_suppresses_no_customer(
    authority: trustme.CA, app_factory: AppFactory, tmp_path: Path, ca_file: Path
) -> None:
    settings, sender = FAULTS["the sender"]
    with Postfix(authority, settings) as server:
        post = shop_of(app_factory, tmp_path, server, ca_file, sender)
        for number in range(5):
            post.write(number)
        for _ in range(4):
            post.once()
            post.app.store.shift_clock(600)
        assert set(post.states().values()) == {"intended"}
        assert list_suppressions(effects=post.app) == []
        assert [row["paused_until"] is not None for row in post.rows("SELECT paused_until FROM effects_limits")] == [
            True
        ]
        (server.folder / "mailboxes").write_text("/^(user[0-9]+|hello)@example\\.org$/ inbox/\n")  # mended
        server.reload()
        post.drain()
        assert set(post.states().values()) == {"done"}
    assert audit(post.app.store, post.app.ledgers) == []


@pytest.mark.slow
def test_closed_recipients_stop_no_other_mail(
    authority: trustme.CA, app_factory: AppFactory, tmp_path: Path, ca_file: Path
) -> None:
    with closed_to_us(authority, tmp_path) as server:
        post = shop_of(app_factory, tmp_path, server, ca_file, "shop@example.com")
        for number in (7, 8, *range(10, 60)):
            post.write(number)
        post.once()
        assert Counter(post.states().values()) == {"done": 50, "refused": 1, "intended": 1}
        assert post.rows("SELECT 1 AS found FROM effects_limits WHERE paused_until IS NOT NULL") == []
        assert list_suppressions(effects=post.app) == []
