"""Sessions are reused, replaced when dead, asked when idle, left when old, and never carried over a fork."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from effects.errors import LeaseLost
from effects_email.transport.smtp import pool as pool_module
from effects_email.transport.smtp.server import SendProgress, Timeouts
from effects_email.transport.smtp.transport import SmtpTransport
from tests.email.wire.conftest import PATIENCE, Opened, Released, outgoing_message
from tests.peers.smtp import CUT, OFFERS, STALL, SmtpPeer
from tests.support.waiting import wait_until


@pytest.fixture
def opened(opened_with_login: Opened) -> Opened:
    return opened_with_login


def send(transport: object, times: int = 1, **options: object) -> list[str]:
    """The verdicts' kinds."""
    return [
        transport.send(outgoing_message(), release=Released(), seconds=20).verdict.kind  # type: ignore[attr-defined]
        for _ in range(times)
    ]


def test_one_connection_serves_many_messages(opened: Opened) -> None:
    with SmtpPeer() as peer:
        assert send(opened(peer.url), 50) == ["accepted"] * 50
        assert (peer.connections, len(peer.messages)) == (1, 50)
        assert peer.commands_of("RSET") == peer.commands_of("NOOP") == []


def test_a_connection_is_closed_after_its_messages(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url, f"{PATIENCE}&messages_per_connection=3")
        assert send(transport, 7) == ["accepted"] * 7
        assert peer.connections == 3
        wait_until(lambda: peer.commands.count("QUIT") == 2)


def test_an_old_connection_is_closed(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url, f"{PATIENCE}&connection_seconds=100")
        send(transport)
        _age(transport, "opened_at", 101)
        send(transport)
        assert peer.connections == 2


def test_threads_have_connections_of_their_own_and_no_more_than_allowed(opened: Opened) -> None:
    with SmtpPeer() as peer, ThreadPoolExecutor(8) as threads:
        transport = opened(peer.url, f"{PATIENCE}&connections=3")
        kinds = list(threads.map(lambda _: send(transport)[0], range(60)))
        assert kinds == ["accepted"] * 60
        assert len(peer.messages) == 60
        assert 1 <= peer.connections <= 3


def test_when_all_connections_are_in_use_the_wait_ends_in_time(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url, f"{PATIENCE}&connections=1")
        entered, leave = threading.Event(), threading.Event()

        def hold() -> None:
            entered.set()
            leave.wait(20)

        thread = threading.Thread(target=lambda: transport.send(outgoing_message(), release=hold, seconds=20))
        thread.start()
        entered.wait(20)
        send_result = transport.send(outgoing_message(), release=Released(), seconds=0.4)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("throttle", "no_free_connection")
        leave.set()
        thread.join(20)
        assert len(peer.messages) == 1


@pytest.mark.parametrize("usable", [True, False], ids=["the session is kept", "the session is lost"])
def test_who_waited_until_little_time_is_left_tries_no_connection(usable: bool, opened: Opened) -> None:
    with SmtpPeer({"banner": ["220 peer ready", STALL]}) as peer, ThreadPoolExecutor(1) as threads:
        pool = pool_of(opened(peer.url, f"{PATIENCE}&connections=1"))
        first = pool.take(SendProgress(20, Timeouts()))
        assert first is not None
        progress = SendProgress(2, Timeouts())
        second = threads.submit(pool.take, progress)
        wait_until(lambda: len(pool._waiting) == 1 or second.done())
        wait_until(lambda: progress.is_late)
        first.end(usable=usable)
        assert second.result() is None
        assert (peer.connections, pool._free, len(pool)) == (1, 1, int(usable))


def test_who_waited_behind_another_until_little_time_is_left_tries_no_connection(opened: Opened) -> None:
    with SmtpPeer({"banner": STALL}) as peer:
        pool, progress = pool_of(opened(peer.url)), SendProgress(0.2, Timeouts())
        wait_until(lambda: progress.is_late)
        assert pool.take(progress, fresh=True) is None
        assert peer.connections == 0


def test_who_waited_for_a_moment_has_a_connection(opened: Opened) -> None:
    with SmtpPeer() as peer, ThreadPoolExecutor(1) as threads:
        pool = pool_of(opened(peer.url, f"{PATIENCE}&connections=1"))
        first = pool.take(SendProgress(20, Timeouts()))
        assert first is not None
        second = threads.submit(pool.take, SendProgress(20, Timeouts()))
        wait_until(lambda: len(pool._waiting) == 1)
        first.end(usable=False)
        turn = second.result()
        assert turn is not None
        turn.end(usable=True)
        assert peer.connections == 2


@pytest.mark.parametrize("offers", [OFFERS, OFFERS[1:]], ids=["pipelining", "one by one"])
def test_a_connection_that_the_server_closed_is_replaced_without_harm(offers: tuple[str, ...], opened: Opened) -> None:
    with SmtpPeer(offers=offers) as peer:
        transport = opened(peer.url)
        send(transport)
        peer.hang_up()
        released = Released()
        send_result = transport.send(outgoing_message(), release=released, seconds=20)
        assert send_result.verdict.kind == "accepted"
        assert (len(peer.messages), peer.connections, released.calls) == (2, 2, 1)


@pytest.mark.parametrize("answer", ["421 4.4.2 idle for too long", "503 5.5.1 out of step", CUT])
def test_a_kept_connection_that_is_refused_at_mail_is_replaced_once(answer: object, opened: Opened) -> None:
    with SmtpPeer({"mail": ["250 2.1.0 ok", answer]}) as peer:  # type: ignore[list-item]
        transport = opened(peer.url)
        assert send(transport, 2) == ["accepted"] * 2
        assert peer.connections == 2


def test_a_fresh_connection_that_is_refused_at_mail_is_not_tried_again_at_once(opened: Opened) -> None:
    with SmtpPeer({"mail": "421 4.3.2 closing"}) as peer:
        assert send(opened(peer.url)) == ["retry"]
        assert peer.connections == 1


def test_an_idle_connection_is_probed_before_it_is_used(opened: Opened) -> None:
    with SmtpPeer({"noop": ["250 2.0.0 ok", "421 4.4.2 bye"]}) as peer:
        transport = opened(peer.url, f"{PATIENCE}&idle_seconds=100")
        send(transport)
        _age(transport, "idle_since", 3)
        send(transport)
        assert (peer.commands.count("NOOP"), peer.connections) == (1, 1)
        _age(transport, "idle_since", 3)
        send(transport)
        assert (peer.commands.count("NOOP"), peer.connections) == (2, 2)


def test_a_connection_that_does_not_reset_is_closed(opened: Opened) -> None:
    with SmtpPeer({"rcpt": ["550 5.1.1 no such user"], "rset": "500 5.5.2 what"}) as peer:
        transport = opened(peer.url)
        assert send(transport, 2) == ["refused_recipient", "accepted"]
        assert peer.connections == 2


def test_idle_connections_are_closed_by_themselves(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url, f"{PATIENCE}&idle_seconds=0.1")
        send(transport)
        wait_until(lambda: "QUIT" in peer.commands)
        assert isinstance(transport, SmtpTransport)
        assert len(transport._pool) == 0
        assert send(transport) == ["accepted"]


def test_close_sends_quit_and_the_transport_opens_again(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url)
        send(transport)
        transport.close()
        wait_until(lambda: "QUIT" in peer.commands)
        assert send(transport) == ["accepted"]
        assert peer.connections == 2


def test_a_lost_lease_frees_its_connection_slot(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url, f"{PATIENCE}&connections=1")
        for _ in range(3):
            with pytest.raises(LeaseLost):
                transport.send(outgoing_message(), release=Released(LeaseLost()), seconds=20)
        assert send(transport) == ["accepted"]


def test_an_unreachable_server_frees_its_connection_slot(opened: Opened) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    transport = opened(f"smtp://127.0.0.1:{port}", f"{PATIENCE}&connections=1")
    for _ in range(3):
        send_result = transport.send(outgoing_message(), release=Released(), seconds=20)
        assert (send_result.verdict.kind, send_result.verdict.code) == ("transport_down", "connect_failed")


def test_an_unresolvable_name_is_a_fault_of_the_transport(opened: Opened) -> None:
    send_result = opened("smtp://nowhere.invalid?tls=none").send(outgoing_message(), release=Released(), seconds=20)
    assert send_result.verdict.kind == "transport_down"
    assert send_result.verdict.code in ("dns_failed", "connect_failed")


def test_a_forked_child_has_connections_of_its_own(opened: Opened) -> None:
    with SmtpPeer() as peer:
        transport = opened(peer.url)
        send(transport)
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if send(transport) == ["accepted"] else 1)
            finally:
                os._exit(2)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert (peer.connections, peer.commands.count("QUIT")) == (2, 0)
        assert send(transport) == ["accepted"]  # the parent's own is untouched
        assert (peer.connections, len(peer.messages)) == (2, 3)


def test_the_limits_are_those_of_the_page() -> None:
    assert pool_module.ASK_AFTER_SECONDS == 2.0


def pool_of(transport: object) -> pool_module.SessionPool:
    assert isinstance(transport, SmtpTransport)
    return transport._pool


def _age(transport: object, what: str, seconds: float) -> None:
    """Let the idle sessions be older by so much."""
    assert isinstance(transport, SmtpTransport)
    for client in transport._pool._idle:
        setattr(client, what, getattr(client, what) - seconds)
