"""Peers that send without end, or what grows when it is opened: the sender's resident memory stays where it was."""

from __future__ import annotations

import gzip
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.peers.http import Receiver
from tests.peers.raw import RawPeer
from tests.support.raw_answers import HEAD, Behave, goes_on, says

BYTES_MAX = 10 * 1024 * 1024
BIG = b"a" * 65_536

PROGRAM = Path(__file__).with_name("memory_app.py")


def bombs() -> dict[str, Behave]:
    bomb = gzip.compress(b"\0" * 200_000_000, 1)
    return {
        "a gzip bomb": says(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb) + bomb),
        "endless chunks": goes_on(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + BIG + b"\r\n", 0),
        "tiny chunks": goes_on(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 10_000, 0),
        "an endless body": goes_on(HEAD + b"\r\n", BIG, 0),
        "a body of a terabyte": goes_on(HEAD + b"Content-Length: 1000000000000\r\n\r\n", BIG, 0),
        "a dripping body": goes_on(HEAD + b"Content-Length: 1000000\r\n\r\n", b"."),
        "endless headers": goes_on(HEAD, b"X: " + BIG[:1000] + b"\r\n", 0),
        "many short headers": goes_on(HEAD, b"a:b\r\n" * 10_000, 0),
        "dripping headers": goes_on(HEAD + b"X-Slow: ", b"a"),
        "endless interim answers": goes_on(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, 0),
        "one endless header": goes_on(HEAD + b"X: ", BIG, 0),
        "an endless status line": goes_on(b"HTTP/1.1 200 ", BIG, 0),
    }


def peer_that(behave: Behave) -> RawPeer:
    peer = RawPeer(lambda connection: behave(peer, connection))
    return peer


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_no_peer_can_exhaust_the_senders_memory() -> None:
    """All of them in one process, so that what one leaves behind counts for the next."""
    peers = bombs()
    with ExitStack() as stack:
        ports = [stack.enter_context(Receiver()).port]
        ports += [stack.enter_context(peer_that(behave)).port for behave in peers.values()]
        command = [sys.executable, str(PROGRAM), *map(str, ports)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    grown = dict(zip(peers, map(int, done.stdout.split()), strict=True))
    assert max(grown.values()) <= BYTES_MAX, grown
