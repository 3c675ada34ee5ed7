"""A real Postfix whose next server refuses a recipient: its report comes back to the message's own address."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from effects.keys.encryption import generate_key
from effects_email import find_suppressions
from effects_email.admin import get_email
from effects_email.returned.mailboxes import ReportMaildir
from effects_email.returned.taking import take_report
from tests.conftest import AppFactory
from tests.email.wire.post import SENDER, Post, postfix_url, write_templates
from tests.peers.postfix import Postfix
from tests.peers.smtp import SmtpPeer
from tests.support.waiting import wait_until

_SETTINGS = """
virtual_mailbox_domains = bounces.example.com
virtual_mailbox_maps = inline:{{ @bounces.example.com=bounces/ }}
transport_maps = inline:{{ example.org=smtp:[127.0.0.1]:{port} }}
smtp_host_lookup = native
smtp_dns_support_level = disabled
"""


@pytest.mark.slow
def test_what_a_real_postfix_reports_is_found_and_followed(
    authority: trustme.CA, app_factory: AppFactory, tmp_path: Path, ca_file: Path
) -> None:
    refusing = SmtpPeer({"rcpt": "550 5.1.1 no such user here"})
    with refusing as server, Postfix(authority, _SETTINGS.format(port=server.port)) as postfix:
        url, keys = postfix_url(postfix, ca_file), f"k1={generate_key()},digest={generate_key()}"
        app = app_factory(
            job_types=[], keys=keys, smtp_url=url, email_from=SENDER, templates=str(write_templates(tmp_path)),
            email_bounce_domain="bounces.example.com",
        )  # fmt: skip
        post = Post(app, tmp_path, url, keys)
        message_id = post.write(1)
        post.drain()
        assert (post.states(), get_email(app, message_id).fate) == ({message_id: "done"}, None)
        new = postfix.folder / "mail" / "bounces" / "new"
        wait_until(lambda: new.is_dir() and list(new.iterdir()))
        [(_, data)] = ReportMaildir(new.parent).unread()
        report = take_report(data, effects=app)
    assert (report.fate, report.kinds) == ("taken", ("bounced_hard",)), data.decode()
    [event] = get_email(app, message_id).events
    assert (event.kind, event.code) == ("bounced_hard", "dsn_5.1.1")
    assert [held.reason for held in find_suppressions("user1@example.org", effects=app)] == ["hard_bounce"]
    assert post.states() == {message_id: "done"}
