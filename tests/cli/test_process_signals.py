"""The signals of `effects work`, heard whatever the process was started with and the app has set up."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from effects.cli.process import signals
from tests.support.waiting import wait_until

HUP, TERM, USR1 = signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1


@contextmanager
def heard() -> Iterator[list[str]]:
    """What was called for a signal."""
    calls: list[str] = []
    with signals(lambda: calls.append("stop"), lambda: calls.append("tell")):
        yield calls


def send(number: signal.Signals, calls: list[str], expected: list[str]) -> None:
    os.kill(os.getpid(), number)
    wait_until(lambda: calls == expected)


def test_one_hangup_stops_and_a_second_does_not_force() -> None:
    with heard() as calls:
        send(USR1, calls, ["tell"])
        send(HUP, calls, ["tell", "stop"])
        os.kill(os.getpid(), HUP)
        send(USR1, calls, ["tell", "stop", "tell"])
        send(TERM, calls, ["tell", "stop", "tell", "stop"])


def test_a_socket_timeout_of_the_app_ends_no_hearing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(0.001)
    try:
        with heard() as calls:
            signal.sigtimedwait([], 0.05)  # longer than that
            send(TERM, calls, ["stop"])
    finally:
        socket.setdefaulttimeout(before)


def test_a_blocked_signal_is_heard_and_blocked_again_afterwards() -> None:
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [TERM])
    try:
        with heard() as calls:
            send(TERM, calls, ["stop"])
        assert TERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def test_nohup_and_the_apps_own_handler_stay() -> None:
    own: list[int] = []
    before = {number: signal.getsignal(number) for number in (HUP, USR1, signal.SIGWINCH)}
    signal.signal(HUP, signal.SIG_IGN)
    for number in (USR1, signal.SIGWINCH):
        signal.signal(number, lambda number, _: own.append(number))
    try:
        with heard() as calls:
            os.kill(os.getpid(), HUP)
            os.kill(os.getpid(), USR1)
            os.kill(os.getpid(), signal.SIGWINCH)
            wait_until(lambda: own == [USR1, signal.SIGWINCH])
            send(signal.SIGUSR2, calls, ["tell"])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
