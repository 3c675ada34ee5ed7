"""Servers that we did not write: Postfix with TLS and AUTH, its smtp-sink, and aiosmtpd."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, Envelope, Session

from effects.keys.encryption import generate_key
from effects_email.transport.base import Transport
from tests.conftest import AppFactory
from tests.email.wire.conftest import BODY, SENDER, Opened, Released, outgoing_message
from tests.email.wire.post import Post, copies, message_id_of, postfix_url, write_templates
from tests.peers.postfix import PASSWORD, USER, Postfix
from tests.peers.smtp_cut import CutProxy
from tests.support import needs
from tests.support.waiting import wait_until

USERS = [f"user{number}@example.org" for number in range(3)]
DOTS = b"Subject: dots\r\nMessage-ID: <1@example.com>\r\n\r\n.one\r\n..two\r\n.\r\n...\r\nend\r\n"


@pytest.fixture(scope="module")
def postfix(authority: trustme.CA) -> Iterator[Postfix]:
    with Postfix(authority) as server:
        yield server


def sent(transport: Transport, *recipients: str, data: bytes = BODY) -> list[tuple[str, str]]:
    send_result = transport.send(outgoing_message(*recipients, data=data), release=Released(), seconds=30)
    return [(verdict.kind, verdict.code) for verdict in send_result.recipients.values()]


# -- Postfix -------------------------------------------------------------------------------------------------


def test_postfix_delivers_what_was_sent_by_starttls_and_auth(postfix: Postfix, opened: Opened, ca_file: Path) -> None:
    transport = opened(postfix_url(postfix, ca_file), "")
    send_result = transport.send(outgoing_message(*USERS, data=DOTS), release=Released(), seconds=30)
    assert {verdict.kind for verdict in send_result.recipients.values()} == {"accepted"}
    assert send_result.tls is not None
    assert send_result.tls.startswith("TLSv1.3")
    assert send_result.provider_id is not None
    assert send_result.provider_id in postfix.log
    wait_until(lambda: len(_dotted(postfix)) == len(USERS))
    for stored in _dotted(postfix):
        assert stored.replace(b"\n", b"\r\n").endswith(DOTS.partition(b"\r\n\r\n")[2])


def _dotted(server: Postfix) -> list[bytes]:
    return [stored for stored in server.messages() if b"Subject: dots" in stored]


def test_postfix_accepts_many_messages_over_one_connection(postfix: Postfix, opened: Opened, ca_file: Path) -> None:
    transport = opened(postfix_url(postfix, ca_file), "")
    names = {transport.send(outgoing_message(USERS[0]), release=Released(), seconds=30).provider_id for _ in range(30)}
    assert len(names) == 30
    transport.close()
    wait_until(lambda: "starttls=1 auth=1 mail=30 rcpt=30 data=30 quit=1" in postfix.log)
    wait_until(lambda: all(f"{name}: removed" in postfix.log for name in names))


@pytest.mark.slow
def test_an_apps_messages_are_in_the_mailbox_once(
    postfix: Postfix, app_factory: AppFactory, tmp_path: Path, ca_file: Path
) -> None:
    """From `send_templated_email` by the worker to the file in the maildir."""
    templates, keys = write_templates(tmp_path), f"k1={generate_key()}"
    url = postfix_url(postfix, ca_file)
    app = app_factory(job_types=[], keys=keys, smtp_url=url, email_from=SENDER, templates=str(templates))
    post = Post(app, templates, url, keys)
    written = {post.write(number, filling="x" * 70) for number in range(20)}
    post.drain()
    assert post.states() == dict.fromkeys(written, "done")
    wait_until(lambda: written <= set(copies(postfix.messages())))
    counted = copies(postfix.messages())
    assert [message_id for message_id in written if counted[message_id] != 1] == []
    for stored in postfix.messages():
        if message_id_of(stored) in written:
            assert b" begins with a dot\n" + b"x" * 70 + b"\n.\n" in stored


def test_postfix_refuses_an_unknown_recipient_alone(postfix: Postfix, opened: Opened, ca_file: Path) -> None:
    transport = opened(postfix_url(postfix, ca_file), "")
    assert sent(transport, USERS[0], "nobody@example.org") == [
        ("accepted", "smtp_250_2.0.0"), ("refused_recipient", "smtp_550_5.1.1"),
    ]  # fmt: skip
    assert sent(transport, "nobody@example.org") == [("refused_recipient", "smtp_550_5.1.1")]
    assert sent(transport, USERS[0]) == [("accepted", "smtp_250_2.0.0")]


def test_postfix_refuses_a_wrong_password(postfix: Postfix, opened: Opened, ca_file: Path) -> None:
    assert sent(opened(postfix_url(postfix, ca_file, password="wrong"), "")) == [("config", "smtp_535_5.7.8")]


@pytest.mark.slow
def test_postfix_is_not_sent_what_is_above_its_size(postfix: Postfix, opened: Opened, ca_file: Path) -> None:
    big = b"Subject: big\r\n\r\n" + (b"x" * 70 + b"\r\n") * 20_000
    assert sent(opened(postfix_url(postfix, ca_file), ""), data=big) == [("refused_message", "too_large")]


@pytest.mark.slow
def test_postfix_needs_a_certificate_of_our_authority(postfix: Postfix, opened: Opened) -> None:
    transport = opened(f"smtp+starttls://a:b@localhost:{postfix.port}", "")
    assert sent(transport) == [("config", "tls_unverified")]


UNASKED = """
smtpd_forbid_unauth_pipelining = yes
smtpd_data_restrictions = reject_unauth_pipelining
smtpd_tls_security_level = may
smtpd_error_sleep_time = 0
smtpd_hard_error_limit = 100
"""


@pytest.mark.slow
def test_postfix_that_forbids_unasked_commands_takes_those_that_are_announced(
    authority: trustme.CA, opened: Opened
) -> None:
    """A tenth of them refused, and a tenth refused for one of two recipients."""

    def recipients(number: int) -> list[str]:
        return {5: ["user1@example.org", "nobody@example.org"], 9: ["nobody@example.org"]}.get(number % 10, USERS[:1])

    with Postfix(authority, UNASKED) as server, CutProxy(server.port) as proxy, ThreadPoolExecutor(8) as threads:
        credentials = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}"
        transport = opened(f"smtp://{credentials}@localhost:{proxy.port}?connections=1", "")
        verdicts = list(threads.map(lambda number: sent(transport, *recipients(number)), range(60)))
        transport.close()
        taken, refused = ("accepted", "smtp_250_2.0.0"), ("refused_recipient", "smtp_550_5.1.1")
        expected = {5: [taken, refused], 9: [refused]}
        assert verdicts == [expected.get(number % 10, [taken]) for number in range(60)]
        assert sum(b"\r\n.\r\nMAIL FROM" in piece for piece in proxy.to_server) >= 40
        wait_until(lambda: "auth=1 mail=60 rcpt=54/66 data=54/60" in server.log)
        assert "pipelining" not in server.log
        wait_until(lambda: len(server.messages()) == 54)


# -- smtp-sink -----------------------------------------------------------------------------------------------


@pytest.fixture
def sink(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a smtp-sink with the options that the test names."""
    options: list[str] = getattr(request, "param", [])
    program = needs.program("smtp-sink")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    process = subprocess.Popen([program, "-u", "nobody", *options, f"127.0.0.1:{port}", "100"])
    try:
        wait_until(lambda: _open(port))
        yield port
    finally:
        process.kill()
        process.wait()


def _open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _sink(*cases: tuple[list[str], str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("sink", "kind", "code"), cases, indirect=["sink"], ids=[" ".join(options) or "plain" for options, *_ in cases]
    )


@_sink(
    ([], "accepted", "smtp_250_2.0.0"),
    (["-p"], "accepted", "smtp_250_2.0.0"),  # it offers no pipelining
    (["-q", "MAIL"], "retry", "mail_closed"),
    (["-q", "RCPT"], "retry", "rcpt_closed"),
    (["-q", "DATA"], "retry", "data_closed"),
    (["-q", "."], "unknown", "dot_closed"),
    (["-r", "MAIL"], "retry", "smtp_450_4.3.0"),
    (["-r", "RCPT"], "retry", "smtp_450_4.3.0"),
    (["-r", "DATA"], "retry", "smtp_450_4.3.0"),
    (["-r", "."], "retry", "smtp_450_4.3.0"),
    (["-f", "MAIL"], "refused_message", "smtp_500_5.3.0"),
    (["-f", "RCPT"], "refused_message", "smtp_500_5.3.0"),
    (["-f", "."], "refused_message", "smtp_500_5.3.0"),
)
def test_smtp_sink_is_read_as_the_table_lists(sink: int, kind: str, code: str, opened: Opened) -> None:
    assert sent(opened(f"smtp://127.0.0.1:{sink}")) == [(kind, code)]


# -- aiosmtpd ------------------------------------------------------------------------------------------------


class Keeper:
    """aiosmtpd's handler: keeps what came.

    aiosmtpd takes the doubled dot away from every line but one that is a lone dot, and so hands on what was sent.
    """

    def __init__(self) -> None:
        self.kept: list[Envelope] = []

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        self.kept.append(envelope)
        return "250 2.0.0 Ok: queued as AIO1"


@pytest.fixture
def keeper() -> Iterator[tuple[Keeper, int]]:
    handler = Keeper()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    controller = Controller(handler, hostname="127.0.0.1", port=port, enable_SMTPUTF8=True)
    controller.start()
    try:
        yield handler, port
    finally:
        controller.stop()


def test_aiosmtpd_gets_envelope_and_bytes(keeper: tuple[Keeper, int], opened: Opened) -> None:
    handler, port = keeper
    transport = opened(f"smtp://127.0.0.1:{port}")
    assert sent(transport, *USERS) == [("accepted", "smtp_250_2.0.0")] * 3
    [envelope] = handler.kept
    assert (envelope.mail_from, envelope.rcpt_tos) == (SENDER, USERS)
    assert envelope.original_content == BODY
    transport.close()


def test_aiosmtpd_gets_an_address_beyond_ascii(keeper: tuple[Keeper, int], opened: Opened) -> None:
    handler, port = keeper
    transport = opened(f"smtp://127.0.0.1:{port}")
    send_result = transport.send(outgoing_message("jürgen@example.org", utf8=True), release=Released(), seconds=20)
    assert send_result.verdict.kind == "accepted"
    assert handler.kept[0].rcpt_tos == ["jürgen@example.org"]
    transport.close()
