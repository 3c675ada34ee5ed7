"""TLS is required and verified, credentials go over TLS, and neither they nor their refusal are shown to anybody."""

from __future__ import annotations

import base64
import logging
import ssl
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme

from effects_email.transport.base import SendResult
from tests.email.wire.conftest import Opened, Released, outgoing_message, server_context
from tests.peers.smtp import CUT, RESET, STALL, Act, SmtpPeer

PASSWORD = "p@ss/w:rd%"
QUOTED = "p%40ss%2Fw%3Ard%25"


def sent(opened: Opened, url: str) -> SendResult:
    return opened(url).send(outgoing_message(), release=Released(), seconds=20)


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_a_verified_server_gets_credentials_and_message(
    scheme: str, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    with SmtpPeer(tls=server_tls, implicit=scheme == "smtps", accounts={"shop": PASSWORD}) as peer:
        send_result = sent(opened, f"{scheme}://shop:{QUOTED}@localhost:{peer.port}?ca_file={ca_file}")
        assert send_result.verdict.kind == "accepted"
        assert send_result.tls is not None
        assert send_result.tls.startswith("TLSv1.")
        assert {"tls", "auth"} <= set(send_result.phases)
        assert len(peer.messages) == 1


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_a_session_in_tls_that_the_server_closed_is_replaced_without_harm(
    scheme: str, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    with SmtpPeer(tls=server_tls, implicit=scheme == "smtps") as peer:
        transport = opened(f"{scheme}://localhost:{peer.port}?ca_file={ca_file}")
        for _ in range(3):
            released = Released()
            send_result = transport.send(outgoing_message(), release=released, seconds=20)
            assert (send_result.verdict.kind, released.calls) == ("accepted", 1)
            peer.hang_up()
        assert (len(peer.messages), peer.connections) == (3, 3)


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_a_cut_after_the_dot_is_unknown_in_tls_too(
    scheme: str, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    with SmtpPeer({"dot": [CUT, RESET]}, tls=server_tls, implicit=scheme == "smtps") as peer:
        transport = opened(f"{scheme}://localhost:{peer.port}?ca_file={ca_file}")
        kinds = [transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind for _ in range(2)]
        assert kinds == ["unknown", "unknown"]
        assert len(peer.messages) == 2


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
@pytest.mark.parametrize("step", [CUT, RESET, STALL], ids=["cut", "reset", "stall"])
def test_a_cut_within_a_long_body_is_before_the_dot_in_tls_too(
    scheme: str, step: Act, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    data = b"Subject: long\r\n\r\n" + (b"z" * 70 + b"\r\n") * 120_000
    with SmtpPeer({"body": step}, tls=server_tls, implicit=scheme == "smtps") as peer:
        transport = opened(f"{scheme}://localhost:{peer.port}?ca_file={ca_file}", "timeout=1")
        send_result = transport.send(outgoing_message(data=data), release=Released(), seconds=60)
        assert (send_result.verdict.kind, peer.messages) == ("retry", [])


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_an_unknown_authority_is_a_configuration_error(scheme: str, opened: Opened, server_tls: ssl.SSLContext) -> None:
    with SmtpPeer(tls=server_tls, implicit=scheme == "smtps") as peer:
        send_result = sent(opened, f"{scheme}://localhost:{peer.port}")
        assert (send_result.verdict.kind, peer.messages) == ("config", [])
        assert send_result.verdict.code == "tls_unverified"
        assert peer.commands_of("MAIL") == []


@pytest.mark.parametrize("scheme", ["smtps", "smtp+starttls"])
def test_another_servers_certificate_is_refused(
    scheme: str, opened: Opened, authority: trustme.CA, ca_file: Path
) -> None:
    with SmtpPeer(tls=server_context(authority, "elsewhere.example"), implicit=scheme == "smtps") as peer:
        send_result = sent(opened, f"{scheme}://localhost:{peer.port}?ca_file={ca_file}")
        assert send_result.verdict.code == "tls_unverified"
        assert send_result.verdict.kind == "config"


def test_without_starttls_nothing_is_sent_in_clear(opened: Opened) -> None:
    with SmtpPeer(accounts={"shop": PASSWORD}) as peer:
        send_result = sent(opened, f"smtp+starttls://shop:{QUOTED}@localhost:{peer.port}")
        assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "starttls_not_offered")
        assert [command.split()[0] for command in peer.commands] == ["ehlo"]


def test_bytes_received_in_clear_are_no_answer_under_tls(
    opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    with SmtpPeer({"starttls": b"220 go\r\n250 injected\r\n"}, tls=server_tls) as peer:
        send_result = sent(opened, f"smtp+starttls://localhost:{peer.port}?ca_file={ca_file}")
        assert send_result.verdict.kind == "transport_down"
        assert peer.messages == []


def test_a_server_without_tls_is_a_configuration_error_after_the_third_time(opened: Opened, ca_file: Path) -> None:
    with SmtpPeer() as peer:
        transport = opened(f"smtps://localhost:{peer.port}?ca_file={ca_file}")
        kinds = [transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind for _ in range(4)]
        assert kinds == ["transport_down", "transport_down", "config", "config"]


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5"])
@pytest.mark.parametrize("clear", [True, False], ids=["in clear", "tls"])
def test_any_mechanism_that_the_server_has_logs_in(
    mechanism: str, *, clear: bool, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path
) -> None:
    tls = None if clear else server_tls
    with SmtpPeer(tls=tls, accounts={"shop": PASSWORD}, mechanisms=[mechanism]) as peer:
        rest = f"shop:{QUOTED}@localhost:{peer.port}"
        send_result = sent(opened, f"smtp://{rest}" if clear else f"smtp+starttls://{rest}?ca_file={ca_file}")
        assert send_result.verdict.kind == "accepted"


def test_a_password_goes_in_clear_only_where_no_other_way_is_offered(opened: Opened) -> None:
    with SmtpPeer(accounts={"shop": PASSWORD}, mechanisms=["LOGIN", "PLAIN", "CRAM-MD5"]) as peer:
        assert sent(opened, f"smtp://shop:{QUOTED}@localhost:{peer.port}").verdict.kind == "accepted"
        assert peer.commands_of("AUTH") == ["AUTH CRAM-MD5"]


def test_a_wrong_password_is_tried_once(opened: Opened) -> None:
    """Servers lock an account after some."""
    with SmtpPeer(accounts={"shop": "other"}, mechanisms=["PLAIN", "LOGIN", "CRAM-MD5"]) as peer:
        send_result = sent(opened, f"smtp://shop:{QUOTED}@localhost:{peer.port}")
        assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "smtp_535_5.7.8")
        assert len(peer.commands_of("AUTH")) == 1


def test_a_refused_mechanism_gives_way_to_the_next(opened: Opened) -> None:
    with SmtpPeer({"auth": ["504 5.5.4 not that one"]}, accounts={"shop": PASSWORD}) as peer:
        assert sent(opened, f"smtp://shop:{QUOTED}@localhost:{peer.port}").verdict.kind == "accepted"
        assert [command.split()[1] for command in peer.commands_of("AUTH")] == ["PLAIN", "LOGIN"]


@pytest.mark.parametrize(("offers", "mechanisms"), [
    ("", "none"), ("XOAUTH2 OAUTHBEARER", "XOAUTH2, OAUTHBEARER"), ("GSSAPI \x07 " + "X" * 30, "GSSAPI"),
    (" ".join(f"M{number}" for number in range(100)), ", ".join(f"M{number}" for number in range(12))),
])  # fmt: skip
def test_no_way_to_log_in_is_a_configuration_error_that_names_the_mechanisms(
    offers: str, mechanisms: str, opened: Opened
) -> None:
    greeting = f"250-peer\r\n250 AUTH {offers}" if offers else "250 peer"
    with SmtpPeer({"ehlo": greeting}) as peer:
        send_result = sent(opened, f"smtp://shop:x@localhost:{peer.port}")
        assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "auth_not_offered")
        needed = "this login needs one of CRAM-MD5, PLAIN, LOGIN"
        assert send_result.verdict.reason.endswith(f": it offers {mechanisms}; {needed}")
        assert peer.commands_of("AUTH") == []


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5"])
@pytest.mark.parametrize("password", ["pä$$wörd 密码", "x" * 600, "a"], ids=["beyond ASCII", "long", "short"])
def test_a_password_goes_as_utf8_and_a_long_one_in_a_line_by_itself(
    mechanism: str, password: str, opened: Opened
) -> None:
    """RFC 4616, section 2; RFC 4954, section 4: a command has at most 512 characters."""
    with SmtpPeer(accounts={"zoë": password}, mechanisms=[mechanism]) as peer:
        assert sent(opened, f"smtp://{quote('zoë')}:{quote(password)}@localhost:{peer.port}").verdict.kind == "accepted"
        assert max(map(len, peer.commands)) <= 510


def test_challenges_that_never_end_are_no_session(opened: Opened) -> None:
    with SmtpPeer({"auth": "334 " + "\r\n334 " * 20}, accounts={"shop": "x"}) as peer:
        verdict = sent(opened, f"smtp://shop:x@localhost:{peer.port}").verdict
        assert (verdict.kind, verdict.code, peer.messages) == ("transport_down", "smtp_334", [])


@pytest.mark.parametrize("refusal", ["500 what", "501 no", "502 5.5.1 not implemented", "504 no"])
def test_a_server_without_ehlo_is_greeted_by_helo(refusal: str, opened: Opened) -> None:
    with SmtpPeer({"ehlo": refusal}) as peer:
        assert sent(opened, peer.url).verdict.kind == "accepted"
        assert [command[:4].upper() for command in peer.commands[:3]] == ["EHLO", "HELO", "MAIL"]


@pytest.mark.parametrize(("scheme", "script", "code"), [
    ("smtp", {"ehlo": "502 no", "helo": "550 5.7.1 not you"}, "smtp_550_5.7.1"),
    ("smtp", {"ehlo": "550 5.7.1 not you"}, "smtp_550_5.7.1"),
    ("smtp+starttls", {"ehlo": "502 no"}, "starttls_not_offered"),
])  # fmt: skip
def test_a_refused_greeting_is_no_session(scheme: str, script: dict[str, str], code: str, opened: Opened) -> None:
    with SmtpPeer(script) as peer:
        verdict = sent(opened, f"{scheme}://localhost:{peer.port}").verdict
        assert (verdict.kind, verdict.code, peer.messages) == ("config", code, [])


def test_wrong_credentials_are_not_shown(
    opened: Opened, server_tls: ssl.SSLContext, ca_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even where the server says them again."""
    both = base64.b64encode(f"\0shop\0{PASSWORD}".encode()).decode()
    echo = f"535 5.7.8 no: {PASSWORD} {both}"
    with caplog.at_level(logging.DEBUG), SmtpPeer({"auth": echo}, tls=server_tls, accounts={"shop": "other"}) as peer:
        transport = opened(f"smtp+starttls://shop:{QUOTED}@localhost:{peer.port}?ca_file={ca_file}")
        send_result = transport.send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "smtp_535_5.7.8")
        seen = f"{send_result!r} {transport!r} {vars(transport)!r} {caplog.text}"
        for secret in (PASSWORD, QUOTED, both):
            assert secret not in seen
