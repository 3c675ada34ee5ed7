"""Each stage × what a server may do there: the verdict, the mark, and what the server has taken."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from effects_email.transport.base import Kind
from tests.email.wire.conftest import ANN, BEN, BODY, Opened, Released, outgoing_message
from tests.peers.smtp import CUT, OFFERS, RESET, STALL, TOKEN, SmtpPeer, Step

Url: TypeAlias = Callable[[SmtpPeer], str]

TEMPORARY, PERMANENT = "451 4.3.0 not now", "550 5.3.0 never"
GARBAGE = b"\x00\xff what is this\r\n"
LINES = {"4xx": TEMPORARY, "5xx": PERMANENT, "cut": CUT, "stall": STALL, "garbage": GARBAGE}
LONG = b"Subject: long\r\n\r\n" + (b"z" * 70 + b"\r\n") * 120_000  # 8 MB: more than the sockets hold

DOWN, CONFIG, RETRY, UNKNOWN = "transport_down", "config", "retry", "unknown"
REFUSED = "refused_message"

# Stage → what the server does → the verdict's kind and code.
TABLE: dict[str, dict[str, tuple[Kind, str]]] = {
    "banner": {
        "4xx": (DOWN, "smtp_451_4.3.0"), "5xx": (CONFIG, "smtp_550_5.3.0"), "cut": (DOWN, "banner_closed"),
        "stall": (DOWN, "banner_timeout"), "garbage": (DOWN, "banner_garbage"),
    },
    "ehlo": {
        "4xx": (DOWN, "smtp_451_4.3.0"), "5xx": (CONFIG, "smtp_550_5.3.0"), "cut": (DOWN, "ehlo_closed"),
        "stall": (DOWN, "ehlo_timeout"), "garbage": (DOWN, "ehlo_garbage"),
    },
    "starttls": {
        "4xx": (DOWN, "smtp_451_4.3.0"), "5xx": (CONFIG, "smtp_550_5.3.0"), "cut": (DOWN, "starttls_closed"),
        "stall": (DOWN, "starttls_timeout"), "garbage": (DOWN, "starttls_garbage"),
    },
    "auth": {
        "4xx": (DOWN, "smtp_451_4.3.0"), "5xx": (CONFIG, "smtp_550_5.3.0"), "cut": (DOWN, "auth_closed"),
        "stall": (DOWN, "auth_timeout"), "garbage": (DOWN, "auth_garbage"),
    },
    "mail": {
        "4xx": (RETRY, "smtp_451_4.3.0"), "5xx": (CONFIG, "smtp_550_5.3.0"), "cut": (RETRY, "mail_closed"),
        "stall": (RETRY, "mail_timeout"), "garbage": (RETRY, "mail_garbage"),
    },
    "rcpt": {
        "4xx": (RETRY, "smtp_451_4.3.0"), "5xx": (REFUSED, "smtp_550_5.3.0"), "cut": (RETRY, "rcpt_closed"),
        "stall": (RETRY, "rcpt_timeout"), "garbage": (RETRY, "rcpt_garbage"),
    },
    "data": {
        "4xx": (RETRY, "smtp_451_4.3.0"), "5xx": (REFUSED, "smtp_550_5.3.0"), "cut": (RETRY, "data_closed"),
        "stall": (RETRY, "data_timeout"), "garbage": (RETRY, "data_garbage"),
    },
    "dot": {
        "4xx": (RETRY, "smtp_451_4.3.0"), "5xx": (REFUSED, "smtp_550_5.3.0"), "cut": (UNKNOWN, "dot_closed"),
        "stall": (UNKNOWN, "dot_timeout"), "garbage": (UNKNOWN, "dot_garbage"),
    },
}  # fmt: skip
CASES = [(stage, what) for stage, row in TABLE.items() for what in row]


@pytest.fixture
def opened(opened_with_login: Opened) -> Opened:
    return opened_with_login


@pytest.fixture
def url(login: str, ca_file: Path, token_file: Path) -> Url:
    """Of a peer, whose accounts are set: the transport's URL."""

    def of_peer(peer: SmtpPeer) -> str:
        if login == "password":
            return f"smtp+starttls://shop:secret@localhost:{peer.port}?ca_file={ca_file}"
        peer.accepts, peer.mechanisms = TOKEN.__eq__, ("XOAUTH2", "OAUTHBEARER")
        return f"smtp+starttls+oauth+file://shop@localhost:{peer.port}?ca_file={ca_file}&path={token_file}"

    return of_peer


def server(script: dict[str, Step], tls: ssl.SSLContext, *, pipelining: bool) -> SmtpPeer:
    offers = OFFERS if pipelining else OFFERS[1:]
    return SmtpPeer(script, offers=offers, tls=tls, accounts={"shop": "secret"})


@pytest.mark.parametrize("pipelining", [True, False], ids=["pipelining", "one by one"])
@pytest.mark.parametrize(("stage", "what"), CASES, ids=[f"{stage}-{what}" for stage, what in CASES])
def test_every_stage_ends_as_the_table_lists(
    stage: str, what: str, *, pipelining: bool, opened: Opened, server_tls: ssl.SSLContext, url: Url
) -> None:
    kind, code = TABLE[stage][what]
    released = Released()
    with server({stage: LINES[what]}, server_tls, pipelining=pipelining) as peer:
        patience = "timeout=0.5&connect_timeout=20&answer_timeout=0.5" if what == "stall" else "timeout=20"
        send_result = opened(url(peer), patience).send(outgoing_message(), release=released, seconds=50)
        assert (send_result.verdict.kind, send_result.verdict.code) == (kind, code)
        assert send_result.recipients[ANN] == send_result.verdict
        assert len(peer.messages) == (stage == "dot")
        assert released.calls == _marks(stage, pipelining=pipelining)
        assert send_result.verdict.reply is not None
        assert send_result.verdict.reply.stage == stage


def _marks(stage: str, *, pipelining: bool) -> int:
    """The mark is made when DATA is written; under pipelining that is before any answer."""
    if stage in ("data", "dot"):
        return 1
    return int(pipelining and stage in ("mail", "rcpt"))


@pytest.mark.parametrize("stage", [*TABLE, "quit"])
def test_a_reply_of_many_lines_is_one_reply(stage: str, opened: Opened, server_tls: ssl.SSLContext, url: Url) -> None:
    normal = {"banner": "220", "starttls": "220", "auth": "235", "data": "354", "quit": "221"}.get(stage, "250")
    last = "AUTH PLAIN XOAUTH2\r\n250-STARTTLS\r\n250 8BITMIME" if stage == "ehlo" else "2.0.0 the last"
    many = "\r\n".join([*(f"{normal}-line {number}" for number in range(100)), f"{normal}-{last}"])
    many = many.rpartition(f"{normal}-{last}")[0] + f"{normal}{'-' if stage == 'ehlo' else ' '}{last}"
    with server({stage: many}, server_tls, pipelining=True) as peer:
        send_result = opened(url(peer)).send(outgoing_message(), release=Released(), seconds=20)
        assert send_result.verdict.kind == "accepted"
        assert [message.data for message in peer.messages] == [BODY]


@pytest.mark.parametrize("stage", TABLE)
def test_a_refusal_of_many_lines_is_read_to_its_end(
    stage: str, opened: Opened, server_tls: ssl.SSLContext, url: Url
) -> None:
    refusal = "451-4.3.0 first\r\n451-4.3.0 second\r\n451 4.3.0 last"
    with server({stage: refusal}, server_tls, pipelining=True) as peer:
        send_result = opened(url(peer)).send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == TABLE[stage]["4xx"]
        assert send_result.verdict.reply is not None
        assert send_result.verdict.reply.text.count("\n") == 2


@pytest.mark.parametrize("stage", ["banner", "mail", "dot"])
@pytest.mark.parametrize("flood", [b"250-" + b"x" * 100_000, b"250-more\r\n" * 1000, b"250-a\r\n451 b\r\n"],
                         ids=["endless line", "endless lines", "two codes"])  # fmt: skip
def test_a_hostile_reply_is_garbage_and_bounded(stage: str, flood: bytes, opened: Opened) -> None:
    with SmtpPeer({stage: flood}) as peer:
        send_result = opened(peer.url).send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == TABLE[stage]["garbage"]


@pytest.mark.parametrize(("step", "kind", "code"), [
    (CUT, RETRY, "body_closed"), (RESET, RETRY, "body_closed"), (STALL, RETRY, "body_timeout"),
    ("552 5.3.4 too big", REFUSED, "smtp_552_5.3.4"), ("421 4.3.2 going down", RETRY, "smtp_421_4.3.2"),
], ids=["cut", "reset", "stall", "refused", "going"])  # fmt: skip
def test_faults_within_the_body_are_before_the_dot(step: Step, kind: str, code: str, opened: Opened) -> None:
    """A message that the socket does not take at once: its dot never left."""
    with SmtpPeer({"body": step}) as peer:
        send_result = opened(peer.url, "timeout=0.3").send(outgoing_message(data=LONG), release=Released(), seconds=60)
        assert (send_result.verdict.kind, send_result.verdict.code) == (kind, code)
        assert peer.messages == []


@pytest.mark.parametrize(("stage", "code"), [("ehlo", "ehlo_closed"), ("dot", "dot_closed")])
def test_a_reset_counts_as_a_close(stage: str, code: str, opened: Opened) -> None:
    with SmtpPeer({stage: RESET}) as peer:
        send_result = opened(peer.url).send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == (TABLE[stage]["cut"][0], code)


def test_a_server_that_lies_before_it_is_asked_is_not_believed(opened: Opened) -> None:
    """`250` behind the `354`, in the same breath: it must not be taken for the answer to the dot."""
    with SmtpPeer({"data": b"354 go ahead\r\n250 2.0.0 taken\r\n"}) as peer:
        send_result = opened(peer.url).send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("retry", "data_garbage")
        assert peer.messages == []


@pytest.mark.parametrize("extra", [b"", b"250 2.0.0 extra\r\n", b"250 2.0.0 extra\r\n250 2.0.0 another\r\n", b"25"])
def test_an_extra_reply_is_not_taken_for_the_next_messages(opened: Opened, extra: bytes) -> None:
    """Else Ben would be refused, and suppressed, in place of Ann."""
    refusal = "550 5.1.1 no such user"
    with SmtpPeer({"dot": b"250 2.0.0 queued\r\n" + extra, f"rcpt {ANN}": refusal}) as peer:
        transport = opened(peer.url)
        assert transport.send(outgoing_message(BEN), release=Released(), seconds=20).verdict.kind == "accepted"
        send_result = transport.send(outgoing_message(ANN, BEN), release=Released(), seconds=20)
        assert {address: verdict.kind for address, verdict in send_result.recipients.items()} == {
            ANN: "refused_recipient",
            BEN: "accepted",
        }
        assert peer.connections == (2 if extra else 1)


@pytest.mark.slow
def test_an_answer_that_never_comes_ends_with_the_time_given(opened: Opened) -> None:
    """`seconds` bounds everything; half of it stays for the answer after the dot."""
    with SmtpPeer({"mail": STALL}) as peer:
        send_result = opened(peer.url, "").send(outgoing_message(), release=Released(), seconds=0.6)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("retry", "mail_timeout")
    with SmtpPeer({"dot": STALL}) as peer:
        send_result = opened(peer.url, "").send(outgoing_message(), release=Released(), seconds=0.6)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("unknown", "dot_timeout")


@pytest.mark.parametrize("what", ["cut", "garbage", "stall", "5xx"])
def test_whatever_follows_quit_changes_nothing(what: str, opened: Opened) -> None:
    with SmtpPeer({"quit": LINES[what]}) as peer:
        transport = opened(peer.url)
        assert transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind == "accepted"
        transport.close()
        assert len(peer.messages) == 1


@pytest.mark.parametrize("stage", ["banner", "ehlo", "starttls", "auth"])
def test_without_a_session_the_reason_names_stage_and_reply(
    stage: str, opened: Opened, server_tls: ssl.SSLContext, url: Url
) -> None:
    """And neither the password nor an address, which a server may say again."""
    refusal = f"550-5.3.0 go away\r\n550-5.3.0 shop secret ann@example.com\r\n550 5.3.0 {TOKEN}"
    with server({stage: refusal}, server_tls, pipelining=True) as peer:
        reason = opened(url(peer)).send(outgoing_message(), release=Released(), seconds=20).verdict.reason
        assert f" (localhost:{peer.port}): 550 5.3.0 go away" in reason
        assert ("secret" if peer.accepts is None else TOKEN) not in reason
        assert "ann@example.com" not in reason
        assert "\n" not in reason


def test_a_closed_port_is_named_with_the_systems_reason(opened: Opened) -> None:
    with SmtpPeer({}) as peer:
        closed_port = peer.port
    transport = opened(f"smtp://127.0.0.1:{closed_port}?tls=none")
    verdict = transport.send(outgoing_message(), release=Released(), seconds=20).verdict
    assert verdict.code == "connect_failed"
    assert verdict.reason == f"no connection to the server (127.0.0.1:{closed_port}): Connection refused"
