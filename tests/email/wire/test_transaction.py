"""MAIL, RCPT, DATA, the dot: what goes over the wire, to whom, and when the point of no return is marked."""

from __future__ import annotations

import threading

import pytest

from effects.errors import LeaseLost
from tests.email.wire.conftest import ANN, BEN, BODY, CAT, SENDER, Opened, Released, outgoing_message
from tests.peers.smtp import CUT, OFFERS, SmtpPeer

SERIAL = OFFERS[1:]
BOTH = pytest.mark.parametrize("offers", [OFFERS, SERIAL], ids=["pipelining", "one by one"])


@pytest.fixture
def opened(opened_with_login: Opened) -> Opened:
    return opened_with_login


@BOTH
def test_a_message_arrives_as_it_is(offers: tuple[str, ...], opened: Opened) -> None:
    with SmtpPeer(offers=offers) as peer:
        send_result = opened(peer.url).send(outgoing_message(ANN, BEN), release=Released(), seconds=20)
        assert send_result.verdict.kind == "accepted"
        assert send_result.provider_id == "PEER0001"
        assert send_result.peer == f"127.0.0.1:{peer.port}"
        assert {"connect", "envelope", "release", "body", "answer"} <= set(send_result.phases)
        [message] = peer.messages
        assert (message.sender, message.recipients, message.data) == (SENDER, (ANN, BEN), BODY)
        assert f"SIZE={len(BODY)}" in message.options


@pytest.mark.parametrize("data", [
    b".\r\n", b"..\r\n", b"\r\n.\r\n", b"A: b\r\n\r\n.\r\n..\r\n...\r\nx.\r\n", b"A: b\r\n\r\nno end of line", b"\r\n",
    b"A: b\r\n\r\n" + b".x\r\n" * 20_000, b"A: b\r\n\r\n" + b"." * 40_000 + b"\r\n",
])  # fmt: skip
def test_dots_are_doubled_on_the_wire_only(data: bytes, opened: Opened) -> None:
    with SmtpPeer() as peer:
        opened(peer.url).send(outgoing_message(data=data), release=Released(), seconds=20)
        assert peer.messages[0].data == data.removesuffix(b"\r\n") + b"\r\n"


@BOTH
def test_each_recipient_has_a_verdict_of_its_own(offers: tuple[str, ...], opened: Opened) -> None:
    script = {f"rcpt {BEN}": "550 5.1.1 no such user", f"rcpt {CAT}": "450 4.2.1 later"}
    with SmtpPeer(script, offers=offers) as peer:
        send_result = opened(peer.url).send(outgoing_message(ANN, BEN, CAT), release=Released(), seconds=20)
        assert send_result.verdict.kind == "accepted"
        kinds = {address: verdict.kind for address, verdict in send_result.recipients.items()}
        assert kinds == {ANN: "accepted", BEN: "refused_recipient", CAT: "retry"}
        assert send_result.recipients[BEN].suppress == "hard"
        assert [message.recipients for message in peer.messages] == [(ANN,)]


@pytest.mark.parametrize(("reply", "kinds", "suppressed"), [
    (f"550 5.1.1 <{BEN}>: no such user", {ANN: "retry", BEN: "refused_recipient", CAT: "retry"}, {BEN}),
    ("550 5.1.1 no such user", dict.fromkeys((ANN, BEN, CAT), "refused_recipient"), set()),
    ("550 5.7.1 spam", dict.fromkeys((ANN, BEN, CAT), "refused_message"), set()),
    ("554 Message rejected: Email address is not verified", dict.fromkeys((ANN, BEN, CAT), "config"), set()),
])  # fmt: skip
@pytest.mark.parametrize("stage", ["data", "dot"])
def test_one_answer_for_several_suppresses_only_the_named(
    stage: str, reply: str, kinds: dict[str, str], suppressed: set[str], opened: Opened
) -> None:
    with SmtpPeer({stage: reply}) as peer:
        send_result = opened(peer.url).send(outgoing_message(ANN, BEN, CAT), release=Released(), seconds=20)
    assert {address: verdict.kind for address, verdict in send_result.recipients.items()} == kinds
    assert {address for address, verdict in send_result.recipients.items() if verdict.suppress} == suppressed


@BOTH
def test_no_body_follows_when_every_recipient_is_refused(offers: tuple[str, ...], opened: Opened) -> None:
    with SmtpPeer({"rcpt": "550 5.1.1 no such user"}, offers=offers) as peer:
        transport = opened(peer.url)
        send_result = transport.send(outgoing_message(ANN, BEN), release=Released(), seconds=20)
        assert send_result.verdict.kind == "refused_recipient"
        assert peer.messages == []
        del peer.script["rcpt"]
        assert transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind == "accepted"
        assert peer.connections == 1  # after a RSET, the session serves again
        assert peer.commands.count("RSET") == 1


def test_a_server_that_expects_a_body_without_recipients_gets_a_lone_dot(opened: Opened) -> None:
    with SmtpPeer({"rcpt": "550 5.1.1 no such user", "data": "354 go ahead"}) as peer:
        send_result = opened(peer.url).send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("refused_recipient", "smtp_550_5.1.1")
        assert peer.messages == []


@BOTH
def test_a_421_amid_the_recipients_leaves_the_others_to_be_tried_again(offers: tuple[str, ...], opened: Opened) -> None:
    script = {f"rcpt {ANN}": "550 5.1.1 no such user", f"rcpt {BEN}": "421 4.3.2 going down"}
    with SmtpPeer(script, offers=offers) as peer:
        send_result = opened(peer.url).send(outgoing_message(ANN, BEN, CAT), release=Released(), seconds=20)
        kinds = {address: verdict.kind for address, verdict in send_result.recipients.items()}
        assert kinds == {ANN: "refused_recipient", BEN: "retry", CAT: "retry"}
        assert peer.messages == []


@BOTH
@pytest.mark.parametrize("reply", ["452 4.5.3 too many recipients", "452 too many", "552 too many"])
def test_too_many_recipients_are_served_by_the_next_transaction(
    reply: str, offers: tuple[str, ...], opened: Opened
) -> None:
    """Of five, the server takes two at a time."""
    many = [f"user{number}@example.org" for number in range(5)]
    taken = "250 2.1.5 ok"
    with SmtpPeer({"rcpt": [taken, taken, reply, reply, reply, taken, taken, reply]}, offers=offers) as peer:
        released = Released()
        send_result = opened(peer.url).send(outgoing_message(*many), release=released, seconds=20)
        assert {verdict.kind for verdict in send_result.recipients.values()} == {"accepted"}
        assert [message.recipients for message in peer.messages] == [tuple(many[:2]), tuple(many[2:4]), (many[4],)]
        assert released.calls == 1


def test_a_first_recipient_that_is_too_many_is_tried_again_later(opened: Opened) -> None:
    with SmtpPeer({"rcpt": "452 4.5.3 too many recipients"}) as peer:
        send_result = opened(peer.url).send(outgoing_message(ANN, BEN), release=Released(), seconds=20)
        assert {verdict.kind for verdict in send_result.recipients.values()} == {"retry"}


def test_more_than_a_hundred_recipients_go_in_hundreds(opened: Opened) -> None:
    many = [f"user{number}@example.org" for number in range(230)]
    with SmtpPeer() as peer:
        send_result = opened(peer.url).send(outgoing_message(*many), release=Released(), seconds=20)
        assert [len(message.recipients) for message in peer.messages] == [100, 100, 30]
        assert set(send_result.recipients) == set(many)


def test_a_lost_answer_leaves_only_its_own_transaction_unknown(opened: Opened) -> None:
    many = [f"user{number}@example.org" for number in range(230)]
    with SmtpPeer({"dot": ["250 2.0.0 ok", CUT]}) as peer:
        send_result = opened(peer.url).send(outgoing_message(*many), release=Released(), seconds=20)
        assert send_result.verdict.kind == "unknown"
        kinds = [send_result.recipients[address].kind for address in many]
        assert kinds == ["accepted"] * 100 + ["unknown"] * 100 + ["retry"] * 30
        assert len(peer.messages) == 2


# -- the point of no return ----------------------------------------------------------------------------------


@BOTH
def test_the_release_comes_before_the_body_and_after_data(offers: tuple[str, ...], opened: Opened) -> None:
    with SmtpPeer(offers=offers) as peer:
        seen: list[tuple[bool, int]] = []

        def release() -> None:
            peer.reached["data"].wait(10)
            seen.append(("DATA" in peer.commands, len(peer.messages)))

        peer.reached["data"] = threading.Event()
        opened(peer.url).send(outgoing_message(), release=release, seconds=20)
        assert seen == [(True, 0)]


@BOTH
def test_without_the_release_no_body_is_sent(offers: tuple[str, ...], opened: Opened) -> None:
    with SmtpPeer(offers=offers) as peer:
        transport = opened(peer.url)
        with pytest.raises(LeaseLost):
            transport.send(outgoing_message(), release=Released(LeaseLost()), seconds=20)
        assert transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind == "accepted"
        assert len(peer.messages) == 1  # and over another connection
        assert peer.connections == 2


@pytest.mark.parametrize("error", [OSError("disk"), TimeoutError(), ValueError("no"), KeyboardInterrupt()])
def test_an_exception_of_the_release_is_never_taken_for_a_wire_fault(error: BaseException, opened: Opened) -> None:
    with SmtpPeer() as peer:
        with pytest.raises(type(error)):
            opened(peer.url).send(outgoing_message(), release=Released(error), seconds=20)
        assert peer.messages == []


# -- what the server offers ----------------------------------------------------------------------------------


def test_a_message_above_the_servers_size_is_not_sent(opened: Opened) -> None:
    released = Released()
    with SmtpPeer(offers=("PIPELINING", "SIZE 1000")) as peer:
        transport = opened(peer.url)
        send_result = transport.send(outgoing_message(data=b"A: b\r\n\r\n" + b"x" * 1000), release=released, seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("refused_message", "too_large")
        assert "1,008 bytes" in send_result.verdict.reason
        assert "1,000" in send_result.verdict.reason
        assert (released.calls, peer.commands_of("MAIL")) == (0, [])
        assert transport.send(outgoing_message(), release=released, seconds=20).verdict.kind == "accepted"


def test_an_address_beyond_ascii_needs_a_server_with_smtputf8(opened: Opened) -> None:
    juergen = "jürgen@example.org"
    with SmtpPeer() as peer:
        send_result = opened(peer.url).send(outgoing_message(juergen, utf8=True), release=Released(), seconds=20)
        assert send_result.verdict.kind == "accepted"
        assert "SMTPUTF8" in peer.messages[0].options
        assert peer.messages[0].recipients == (juergen,)
    with SmtpPeer(offers=("PIPELINING",)) as peer:
        send_result = opened(peer.url).send(outgoing_message(juergen, ANN, utf8=True), release=Released(), seconds=20)
        assert send_result.recipients[juergen].kind == "refused_recipient"
        assert send_result.recipients[ANN].kind == "refused_message"
        assert {verdict.code for verdict in send_result.recipients.values()} == {"no_smtputf8"}
        assert peer.commands_of("MAIL") == []


def test_eight_bits_are_declared_or_refused(opened: Opened) -> None:
    data = "Subject: ü\r\n\r\nü\r\n".encode()
    with SmtpPeer() as peer:
        opened(peer.url).send(outgoing_message(data=data), release=Released(), seconds=20)
        assert "BODY=8BITMIME" in peer.messages[0].options
    with SmtpPeer(offers=("PIPELINING",)) as peer:
        send_result = opened(peer.url).send(outgoing_message(data=data), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("refused_message", "no_8bitmime")


@pytest.mark.parametrize("address", [
    "a@b.org>\r\nRCPT TO:<x@y.org", "a\nb@c.org", "a b@c.org", "a<b@c.org", "a>b@c.org", "no-at", "@b.org", "a@",
    "a@b\x00c", '"a\r\nb"@c.org', "x" * 320 + "@b.org",
])  # fmt: skip
def test_an_address_that_could_inject_commands_never_reaches_the_wire(address: str, opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url)
        send_result = transport.send(outgoing_message(address, ANN), release=Released(), seconds=20)
        assert (send_result.recipients[address].kind, send_result.recipients[address].code) == (
            "refused_recipient", "bad_address",
        )  # fmt: skip
        assert send_result.recipients[ANN].kind == "accepted"
        assert [message.recipients for message in peer.messages] == [(ANN,)]
        send_result = transport.send(outgoing_message(sender=address), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("config", "bad_sender")


def test_a_quoted_local_part_and_an_empty_sender_are_addresses(opened: Opened) -> None:
    quoted = '"a b>c"@example.org'
    with SmtpPeer() as peer:
        send_result = opened(peer.url).send(outgoing_message(quoted, sender=""), release=Released(), seconds=20)
        assert send_result.verdict.kind == "accepted"
        assert (peer.messages[0].sender, peer.messages[0].recipients) == ("", (quoted,))


@pytest.mark.parametrize(
    "data", [b"A: b\n\r\nx\r\n", b"A: b\r\n\r\n.\rx\r\n", b"A: b\r\n\r\nx\n.\nMAIL FROM:<a@b>\r\n"]
)
def test_a_bare_line_end_is_not_sent(data: bytes, opened: Opened) -> None:
    """Servers that read it differently could be made to see two messages in one."""
    with SmtpPeer() as peer:
        send_result = opened(peer.url).send(outgoing_message(data=data), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("refused_message", "bare_line_end")
        assert peer.connections == 0
