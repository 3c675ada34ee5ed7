"""A message announced behind another one: one write, one round trip, and each outcome as exactly known as alone."""

from __future__ import annotations

import ssl
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from effects.errors import LeaseLost
from effects_email.transport.base import OutgoingMessage, SendResult, Transport
from effects_email.transport.smtp import pool as turn_module
from tests.email.wire.announcing import ONE, is_pipelined, send_behind
from tests.email.wire.conftest import ANN, BEN, CAT, Opened, Released, outgoing_message
from tests.peers.smtp import CUT, OFFERS, RESET, STALL, Script, SmtpPeer, Step
from tests.peers.smtp_cut import CutProxy
from tests.support.sampling import sample
from tests.support.waiting import wait_until

PATIENT = f"timeout=20&connect_timeout=20&answer_timeout=20&{ONE}"
HASTY = f"timeout=0.5&connect_timeout=20&answer_timeout=0.5&{ONE}"


@pytest.fixture
def opened(opened_with_login: Opened) -> Opened:
    return opened_with_login


def bodied(number: int, *recipients: str) -> OutgoingMessage:
    return outgoing_message(
        *recipients or (ANN,), data=b"Subject: m%d\r\n\r\n.dotted\r\nend of %d\r\n" % (number, number)
    )


def kinds(results: list[SendResult | BaseException]) -> list[str]:
    return [result.verdict.kind if isinstance(result, SendResult) else type(result).__name__ for result in results]


def of_each(result: object) -> dict[str, str]:
    """The kind of verdict of each recipient of a message that was sent."""
    assert isinstance(result, SendResult)
    return {address: verdict.kind for address, verdict in result.recipients.items()}


def subjects(peer: SmtpPeer) -> Counter[str]:
    return Counter(message.data.split(b"\r\n")[0].decode().removeprefix("Subject: ") for message in peer.messages)


def test_the_next_message_is_announced_in_one_write_with_the_end_of_this_one(opened: Opened) -> None:
    with SmtpPeer() as peer, CutProxy(peer.port) as proxy:
        results = send_behind(opened(proxy.url, PATIENT), bodied(1), [bodied(2, BEN), bodied(3, CAT)])
        assert kinds(results) == ["accepted"] * 3
        assert (peer.connections, list(subjects(peer))) == (1, ["m1", "m2", "m3"])
        assert [message.recipients for message in peer.messages] == [(ANN,), (BEN,), (CAT,)]
        ends = [piece for piece in proxy.to_server if b"end of" in piece]
        assert ends[0].endswith(
            f"\r\n.\r\nMAIL FROM:<shop@example.com> SIZE=34\r\nRCPT TO:<{BEN}>\r\nDATA\r\n".encode()
        )
        assert ends[1].endswith(f"RCPT TO:<{CAT}>\r\nDATA\r\n".encode())
        assert ends[2].endswith(b"end of 3\r\n.\r\n")
        assert peer.commands_of("RSET") == peer.commands_of("NOOP") == []


def test_its_release_is_recorded_before_its_first_byte_and_while_the_other_waits(opened: Opened) -> None:
    """The first message's answer comes after the second's release, whose body comes after that answer."""
    answered = threading.Event()
    with SmtpPeer() as peer, CutProxy(peer.port) as proxy:

        def release() -> None:
            wait_until(lambda: len(peer.messages) == 1)
            assert b"end of 2" not in b"".join(proxy.to_server)
            answered.set()

        results = send_behind(opened(proxy.url, PATIENT), bodied(1), [bodied(2)], [release])
        assert kinds(results) == ["accepted"] * 2
        assert answered.is_set()
        assert peer.connections == 1


def test_a_message_whose_release_is_refused_is_not_sent_and_the_one_before_it_is_done(opened: Opened) -> None:
    """The second is over before the first is answered."""
    ended = threading.Event()

    class LateAnswers(SmtpPeer):
        def step(self, stage: str) -> Step | None:
            assert stage != "dot" or ended.wait(20)
            return super().step(stage)

    with LateAnswers() as peer:
        transport = opened(peer.url, PATIENT)
        results = send_behind(transport, bodied(1), [bodied(2)], [Released(LeaseLost())], ended=ended)
        assert kinds(results) == ["accepted", "LeaseLost"]
        assert kinds(send_behind(transport, bodied(3), [])) == ["accepted"]
        assert list(subjects(peer)) == ["m1", "m3"]
        assert is_pipelined(transport)


def test_a_server_without_pipelining_gets_each_command_by_itself(opened: Opened) -> None:
    with SmtpPeer(offers=OFFERS[1:]) as peer, CutProxy(peer.port) as proxy:
        results = send_behind(opened(proxy.url, PATIENT), bodied(1), [bodied(2)])
        assert kinds(results) == ["accepted"] * 2
        assert not [piece for piece in proxy.to_server if b"MAIL" in piece and b"RCPT" in piece]


@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
def test_many_threads_share_few_connections(
    opened: Opened, server_tls: ssl.SSLContext, ca_file: Path, *, tls: bool
) -> None:
    with SmtpPeer(tls=server_tls if tls else None) as peer, ThreadPoolExecutor(8) as threads:
        url = f"smtp+starttls://localhost:{peer.port}?ca_file={ca_file}" if tls else peer.url
        transport = opened(url, "timeout=20&answer_timeout=20&connections=2&messages_per_connection=30")

        def send(number: int) -> str:
            return transport.send(bodied(number), release=Released(), seconds=50).verdict.kind

        assert list(threads.map(send, range(200))) == ["accepted"] * 200
        assert subjects(peer) == Counter({f"m{number}": 1 for number in range(200)})
        assert peer.connections <= 8  # no connection serves less than its 30, but for the last two
        assert max(Counter(message.connection for message in peer.messages).values()) == 30


# -- what the server says of either ------------------------------------------------------------------------------


@pytest.mark.parametrize(("dot", "kind"), [
    ("451 4.3.0 not now", "retry"), ("550 5.7.1 spam", "refused_message"), ("452 4.2.2 full", "retry"),
])  # fmt: skip
def test_a_refusal_of_the_first_message_is_not_the_seconds(dot: str, kind: str, opened: Opened) -> None:
    with SmtpPeer({"dot": [dot]}) as peer:
        results = send_behind(opened(peer.url, PATIENT), bodied(1), [bodied(2)])
        assert kinds(results) == [kind, "accepted"]
        assert peer.connections == 1


@pytest.mark.parametrize("data", ["554 5.5.1 no valid recipients", "354 go ahead"])
def test_a_refusal_of_the_second_is_its_own_and_leaves_the_connection(data: str, opened: Opened) -> None:
    with SmtpPeer({f"rcpt {BEN}": "550 5.1.1 no such user", "data": ["354 go ahead", data]}) as peer:
        transport = opened(peer.url, PATIENT)
        results = send_behind(transport, bodied(1), [bodied(2, BEN), bodied(3)])
        assert kinds(results) == ["accepted", "refused_recipient", "accepted"]
        assert (peer.connections, list(subjects(peer))) == (1, ["m1", "m3"])
        assert is_pipelined(transport)


def test_some_of_its_recipients_may_be_refused(opened: Opened) -> None:
    with SmtpPeer({f"rcpt {BEN}": "550 5.1.1 no such user"}) as peer:
        results = send_behind(opened(peer.url, PATIENT), bodied(1), [bodied(2, ANN, BEN, CAT)])
        assert of_each(results[1]) == {ANN: "accepted", BEN: "refused_recipient", CAT: "accepted"}
        assert peer.messages[1].recipients == (ANN, CAT)


# -- a server that cannot be asked so ----------------------------------------------------------------------------

EXTRA = "250 2.0.0 extra"
NO_SUCH = {f"rcpt {ANN}": "550 5.1.1 no such user"}
# What happens at the second message's envelope → how often the server must do it before it gets plain order.
OUT_OF_STEP: dict[str, tuple[Script, int]] = {
    "a reply too many": ({"dot": [f"250 2.0.0 ok\r\n{EXTRA}"]}, 1),
    "two replies too many": ({"dot": [f"250 2.0.0 ok\r\n{EXTRA}\r\n{EXTRA}"]}, 1),
    "a reply is missing": ({"mail": ["250 2.1.0 ok", b""]}, 1),
    "nothing is answered": ({"mail": ["250 2.1.0 ok", STALL]}, 1),
    "no such command": ({"mail": ["250 2.1.0 ok", "503 5.5.1 nested MAIL"]}, 1),
    "too early": ({"mail": ["250 2.1.0 ok", "554 5.5.0 Error: SMTP protocol synchronization"]}, 1),
    "no reply": ({"mail": ["250 2.1.0 ok", b"\x00what\r\n"]}, 1),
    "it hangs up": ({"mail": ["250 2.1.0 ok", CUT]}, 2),
    "it resets": ({"mail": ["250 2.1.0 ok", RESET]}, 2),
    "it closes, as it says": ({"dot": ["250 2.0.0 ok"], "mail": ["250 2.1.0 ok", "421 4.3.2 closing"]}, 3),
}


@pytest.mark.parametrize("case", OUT_OF_STEP)
def test_a_server_out_of_step_gets_plain_order_and_every_message_once(
    case: str, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    script, times = OUT_OF_STEP[case]
    with SmtpPeer(script) as peer, CutProxy(peer.port) as proxy:
        transport = opened(proxy.url, HASTY)
        results = send_behind(transport, bodied(1), [bodied(2, BEN)])
        assert kinds(results) == ["accepted"] * 2
        assert subjects(peer) == {"m1": 1, "m2": 1}
        assert is_pipelined(transport) is (times > 1)
        logged = [record.message for record in caplog.records if record.message == "email.plain_order"]
        assert logged == (["email.plain_order"] if times == 1 else [])
        proxy.to_server.clear()
        assert kinds(send_behind(transport, bodied(3), [])) == ["accepted"]
        at_once = [piece for piece in proxy.to_server if b"MAIL" in piece and b"RCPT" in piece]
        assert bool(at_once) is (times > 1)


@pytest.mark.parametrize("case", [case for case, (script, _) in OUT_OF_STEP.items() if "dot" in script])
def test_an_out_of_step_reply_refuses_no_recipient(case: str, opened: Opened) -> None:
    """Ann is refused, and the replies that say so are read in the wrong places: Ben must not be refused for her."""
    with SmtpPeer({**OUT_OF_STEP[case][0], **NO_SUCH}) as peer:
        results = send_behind(opened(peer.url, HASTY), bodied(1, CAT), [bodied(2, ANN, BEN)])
        assert of_each(results[1]) == {ANN: "refused_recipient", BEN: "accepted"}
        assert [message.recipients for message in peer.messages] == [(CAT,), (BEN,)]


def test_nor_does_one_whose_successor_is_late(opened: Opened) -> None:
    """The reply to DATA is still on its way: what "250 ok" answers is not known, and Ben is not refused for Ann."""
    with SmtpPeer({**OUT_OF_STEP["two replies too many"][0], **NO_SUCH, "data": ["354 go ahead", STALL]}) as peer:
        results = send_behind(opened(peer.url, HASTY), bodied(1, CAT), [bodied(2, ANN, BEN)])
        assert of_each(results[1]) == {ANN: "refused_recipient", BEN: "accepted"}
        assert [message.recipients for message in peer.messages] == [(CAT,), (BEN,)]


def test_nor_does_one_where_the_server_refuses_all_recipients(opened: Opened) -> None:
    """No 354 shows that the replies are in their places: Ben, who is to be tried again, must not be refused for Ann."""
    script = {**OUT_OF_STEP["a reply too many"][0], **NO_SUCH, f"rcpt {BEN}": "450 4.2.1 later"}
    with SmtpPeer(script) as peer:
        transport = opened(peer.url, HASTY)
        results = send_behind(transport, bodied(1, CAT), [bodied(2, ANN, BEN)])
        assert of_each(results[1]) == {ANN: "refused_recipient", BEN: "retry"}
        assert not is_pipelined(transport)


def test_a_server_that_hangs_up_twice_in_a_row_gets_plain_order(opened: Opened) -> None:
    ok = "250 2.1.0 ok"
    with SmtpPeer({"mail": [ok, CUT, ok, ok, ok, ok, CUT, ok, ok, CUT]}) as peer:
        transport = opened(peer.url, HASTY)
        for number in (1, 3):  # the second time all goes well
            assert kinds(send_behind(transport, bodied(number), [bodied(number + 1)])) == ["accepted"] * 2
        for number, pipelined in ((5, True), (7, False)):
            assert kinds(send_behind(transport, bodied(number), [bodied(number + 1)])) == ["accepted"] * 2
            assert is_pipelined(transport) is pipelined
        assert subjects(peer) == Counter({f"m{number}": 1 for number in range(1, 9)})


@pytest.mark.parametrize(("end", "pipelined"), [(CUT, True), (STALL, False), (b"\x00what\r\n", False)],
                         ids=["cut", "stall", "garbage"])  # fmt: skip
def test_when_the_first_is_in_doubt_the_second_is_sent_over_another_connection(
    end: object, opened: Opened, *, pipelined: bool
) -> None:
    with SmtpPeer({"dot": [end]}) as peer:  # type: ignore[list-item]
        transport = opened(peer.url, HASTY)
        results = send_behind(transport, bodied(1), [bodied(2)])
        assert kinds(results) == ["unknown", "accepted"]
        assert (subjects(peer), peer.connections) == ({"m1": 1, "m2": 1}, 2)
        assert is_pipelined(transport) is pipelined


def test_plain_order_ends_after_an_hour(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effects_email.transport.smtp.pool.PLAIN_SECONDS", 0.0)
    with SmtpPeer({"mail": ["250 2.1.0 ok", "503 5.5.1 nested MAIL"]}) as peer:
        transport = opened(peer.url, PATIENT)
        assert kinds(send_behind(transport, bodied(1), [bodied(2)])) == ["accepted"] * 2
        assert is_pipelined(transport)


# -- patience ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_message_waits_only_so_long_for_the_answer_to_another(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_module, "TURN_SECONDS", 0.1)
    with SmtpPeer({"dot": [STALL]}) as peer:
        transport = opened(peer.url, f"timeout=20&connect_timeout=20&answer_timeout=1&{ONE}")
        results = send_behind(transport, bodied(1), [bodied(2)])
        assert kinds(results) == ["unknown", "accepted"]
        assert subjects(peer) == {"m1": 1, "m2": 1}


def test_to_a_slow_server_no_message_is_announced(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_module, "QUICK_SECONDS", -1.0)
    with SmtpPeer() as peer, CutProxy(peer.port) as proxy:
        assert kinds(send_behind(opened(proxy.url, PATIENT), bodied(1), [bodied(2)])) == ["accepted"] * 2
        assert next(piece for piece in proxy.to_server if b"end of 1" in piece).endswith(b"\r\n.\r\n")


def test_a_message_that_does_not_fit_is_not_skipped(opened: Opened) -> None:
    """The second message is too large for the server: it has its verdict, and the third follows it."""
    large = outgoing_message(data=b"Subject: m2\r\n\r\n" + b"x" * 1000)
    with SmtpPeer(offers=("PIPELINING", "SIZE 1000")) as peer:
        results = send_behind(opened(peer.url, PATIENT), bodied(1), [large, bodied(3)])
        assert kinds(results) == ["accepted", "refused_message", "accepted"]
        assert (peer.connections, list(subjects(peer))) == (1, ["m1", "m3"])


# -- cut at every byte -------------------------------------------------------------------------------------------

CUTS, CUTS_TLS = 150, 40  # bytes after which a connection is cut, of some 1,200 and 4,000
COPIES = {"accepted": {1}, "unknown": {0, 1}, "retry": {0}, "transport_down": {0}}


def cut_and_judge(transport: Transport, peer: SmtpPeer) -> list[str]:
    """Three messages, and everything that should not be so."""
    results = send_behind(transport, bodied(1), [bodied(2, BEN), bodied(3, CAT)])
    outcomes, copies = kinds(results), subjects(peer)
    faults = [
        f"m{number} is {kind} and was taken {copies[f'm{number}']} times"
        for number, kind in enumerate(outcomes, 1)
        if copies[f"m{number}"] not in COPIES.get(kind, ())
    ]
    if outcomes.count("unknown") > 1:
        faults.append(f"one cut, and {outcomes} in doubt")
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_cut_at_any_byte_leaves_each_outcome_exactly_known(
    way: str, opened: Opened, server_tls: ssl.SSLContext, ca_file: Path, *, tls: bool
) -> None:
    def measure(cut: int | None) -> tuple[list[str], int]:
        with SmtpPeer(tls=server_tls if tls else None) as peer, CutProxy(peer.port, **{way: cut}) as proxy:
            url = f"smtp+starttls://localhost:{proxy.port}?ca_file={ca_file}" if tls else proxy.url
            transport = opened(url, PATIENT)
            faults = cut_and_judge(transport, peer)
            transport.close()
            return faults, sum(map(len, proxy.to_server if way == "up" else proxy.to_client))

    faults, total = measure(None)
    assert faults == []
    for cut in sample(range(total), CUTS_TLS if tls else CUTS):
        faults += [f"cut after {cut} bytes {way}: {fault}" for fault in measure(cut)[0]]
    assert faults == []
