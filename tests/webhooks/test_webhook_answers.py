"""Odd answers by a real socket: once the status line is whole, it is the answer (RFC 9112 §4, RFC 9110 §15).

Each row has what we make of it; curl is compared for the same bytes, and reads the same status wherever it reads one.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from effects import Done, Unknown
from tests.peers.raw import RawPeer, read_request
from tests.support.blocking_posts import BlockingTransports
from tests.support.needs import program
from tests.webhooks.conftest import outcome_of

BODY = b'{"type":"t","data":{"n":1}}'
OK = b"HTTP/1.1 200 OK\r\n"
TWO = b"Content-Length: 2\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


class Odd(NamedTuple):
    sent: bytes
    status: int | None
    unread: tuple[str, ...] = ()  # what of the head was dropped
    body: bytes = b"ok"
    end: str = "whole"
    kept: bytes = b""  # a header that is there all the same
    curl: bool = True  # curl reads the same status; some it refuses, and it reads some that are no HTTP


FOLDED, NO_COLON, NO_TOKEN, CONTROL = (
    "a folded line", "a line without a colon", "a name that is not a token", "a control character",
)  # fmt: skip
DOUBT, CODING, CUT = "a length in doubt", "an unknown transfer encoding", "the head does not end"

ANSWERS = {
    # header lines
    "no colon": Odd(OK + b"nonsense\r\n" + TWO + b"\r\nok", 200, (NO_COLON,), kept=b"content-length"),
    "no colon, first of two": Odd(OK + b"x\r\ny z\r\nA: b\r\n" + TWO + b"\r\nok", 200, (NO_COLON,), kept=b"a"),
    "an error's, no colon": Odd(b"HTTP/1.1 503 X\r\nbad\r\nRetry-After: 7\r\n\r\n", 503, (NO_COLON,), b"", "broken",
                                b"retry-after"),
    "a folded value": Odd(OK + b"X-A: a\r\n b\r\nA: b\r\n" + TWO + b"\r\nok", 200, (FOLDED,), kept=b"a"),
    "folded by a tab": Odd(OK + TWO + b"X-A: a\r\n\tb\r\n\r\nok", 200, (FOLDED,)),
    "folded twice": Odd(OK + TWO + b"X-A: a\r\n b\r\n c\r\nA: b\r\n\r\nok", 200, (FOLDED,), kept=b"a"),
    "folded, nothing before": Odd(OK + b" X-A: a\r\n" + TWO + b"\r\nok", 200, (FOLDED,), curl=False),
    "a folded length": Odd(OK + b"Content-Length:\r\n 2\r\nConnection: close\r\n\r\nok", 200, (FOLDED,)),
    "NUL in a value": Odd(OK + b"X-A: a\0b\r\n" + TWO + b"\r\nok", 200, (CONTROL,)),
    "a bare CR in a value": Odd(OK + b"X-A: a\rb\r\n" + TWO + b"\r\nok", 200, (CONTROL,)),
    "escape codes in a value": Odd(OK + b"X-A: \x1b[31mred\r\n" + TWO + b"\r\nok", 200, (CONTROL,)),
    "DEL in a value": Odd(OK + b"X-A: a\x7fb\r\n" + TWO + b"\r\nok", 200, (CONTROL,)),
    "NUL in a name": Odd(OK + b"X\0A: a\r\n" + TWO + b"\r\nok", 200, (NO_TOKEN,)),
    "a space in a name": Odd(OK + b"X A: a\r\n" + TWO + b"\r\nok", 200, (NO_TOKEN,)),
    "a space before the colon": Odd(OK + b"X-A : a\r\n" + TWO + b"\r\nok", 200, (NO_TOKEN,)),
    "an empty name": Odd(OK + b": a\r\n" + TWO + b"\r\nok", 200, (NO_TOKEN,)),
    "a name in Latin-1": Odd(OK + b"X-\xe4: a\r\n" + TWO + b"\r\nok", 200, (NO_TOKEN,)),
    "a value in Latin-1": Odd(OK + b"X-A: \xe4\r\n" + TWO + b"\r\nok", 200, kept=b"x-a"),
    "an empty value": Odd(OK + b"X-A:\r\n" + TWO + b"\r\nok", 200, kept=b"x-a"),
    "three thousand headers": Odd(OK + b"X-Many: a\r\n" * 3000 + TWO + b"\r\nok", 200, kept=b"x-many"),
    "a head of 300 KB": Odd(OK + b"X-Many: aaaaaaaa\r\n" * 17_000 + b"\r\n", 200, (CUT,), b"", "broken", b"x-many",
                            curl=False),
    "a header of 100 KB": Odd(OK + b"A: b\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n", 200, (CUT,), b"", "broken",
                              b"a"),
    "all of it wrong": Odd(OK + b"bad\r\n folded\r\n\x80: x\r\nX: \1\r\n\r\n", 200,
                           (NO_COLON, FOLDED, NO_TOKEN, CONTROL), b"", "broken"),
    # the end of the head
    "a status line alone": Odd(OK, 200, (CUT,), b"", "broken"),
    "an error's status line alone": Odd(b"HTTP/1.1 500 X\r\n", 500, (CUT,), b"", "broken"),
    "cut within a header": Odd(OK + b"A: b\r\nContent-", 200, (CUT,), b"", "broken", b"a"),
    "cut after a header": Odd(OK + b"A: b\r\n", 200, (CUT,), b"", "broken", b"a"),
    "LF alone": Odd(b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", 200),
    "LF alone, no colon": Odd(b"HTTP/1.1 200 OK\nbad\nContent-Length: 2\n\nok", 200, (NO_COLON,)),
    "blank lines before": Odd(b"\r\n\r\n" + OK + b"bad\r\n" + TWO + b"\r\nok", 200, (NO_COLON,), curl=False),
    # the length of the body
    "two lengths that differ": Odd(OK + TWO + b"Content-Length: 3\r\n\r\nok", 200, (DOUBT,), end="broken"),
    "two lengths, the same": Odd(OK + TWO + TWO + b"\r\nok", 200),
    "a list of lengths, the same": Odd(OK + b"Content-Length: 2, 2\r\n\r\nok", 200),
    "a negative length": Odd(OK + b"Content-Length: -1\r\n\r\nok", 200, (DOUBT,), end="broken"),
    "a length of letters": Odd(OK + b"Content-Length: two\r\n\r\nok", 200, (DOUBT,), end="broken"),
    "a length with a sign": Odd(OK + b"Content-Length: +2\r\n\r\nok", 200, (DOUBT,), end="broken"),
    "a length of 30 digits": Odd(OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nok", 200, (DOUBT,), end="broken"),
    "an unknown coding": Odd(OK + b"Transfer-Encoding: foo\r\n\r\nok", 200, (CODING,), end="broken"),
    "a coding before chunks": Odd(OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
    "chunks and a length": Odd(OK + TWO + CHUNKED + b"\r\n2\r\nok\r\n0\r\n\r\n", 200),
    "no colon, and chunks": Odd(OK + b"bad\r\n" + CHUNKED + b"\r\n2\r\nok\r\n0\r\n\r\n", 200, (NO_COLON,)),
    "no colon, until the close": Odd(OK + b"bad\r\nConnection: close\r\n\r\nok", 200, (NO_COLON,)),
    "HTTP/1.0, no colon": Odd(b"HTTP/1.0 200 OK\r\nbad\r\n\r\nok", 200, (NO_COLON,)),
    # the body
    "a body cut short": Odd(OK + b"Content-Length: 9\r\n\r\nok", 200, end="broken"),
    "a chunk's length of letters": Odd(OK + CHUNKED + b"\r\n2\r\nok\r\nzz\r\n", 200, end="broken"),
    "chunks cut short": Odd(OK + CHUNKED + b"\r\n2\r\nok\r\n", 200, end="broken"),
    "a chunk longer than it says": Odd(OK + CHUNKED + b"\r\n2\r\nokay\r\n0\r\n\r\n", 200, end="broken"),
    # status lines
    "no reason": Odd(b"HTTP/1.1 200\r\n" + TWO + b"\r\nok", 200),
    "two spaces": Odd(b"HTTP/1.1  200 OK\r\n" + TWO + b"\r\nok", 200),
    "a reason in bytes": Odd(b"HTTP/1.1 200 \xff\xfe\0\r\n" + TWO + b"\r\nok", 200),
    "HTTP/1.7": Odd(b"HTTP/1.7 200 OK\r\n" + TWO + b"\r\nok", 200, curl=False),
    "an odd interim answer": Odd(b"HTTP/1.1 103 Early\r\nbad\r\n\r\n" + OK + TWO + b"\r\nok", 200, curl=False),
    "an odd one behind an interim": Odd(b"HTTP/1.1 103 Early\r\n\r\n" + OK + b"bad\r\n" + TWO + b"\r\nok", 200,
                                        (NO_COLON,)),
    "not found, in lower case names": Odd(b"HTTP/1.1 404 Not Found\r\nbad\r\ncontent-length: 2\r\n\r\nok", 404,
                                          (NO_COLON,)),
    # none of these is an answer
    "a status line cut": Odd(b"HTTP/1.1 200 OK", None, curl=False),
    "a status of letters": Odd(b"HTTP/1.1 abc OK\r\n\r\n", None),
    "a status of two digits": Odd(b"HTTP/1.1 20 OK\r\n\r\n", None, curl=False),
    "a status of four digits": Odd(b"HTTP/1.1 2000 OK\r\n\r\n", None, curl=False),
    "a status below 100": Odd(b"HTTP/1.1 099 OK\r\n\r\n", None, curl=False),
    "another protocol": Odd(b"ICY 200 OK\r\n\r\n", None),
    "an interim answer alone": Odd(b"HTTP/1.1 103 Early\r\nbad\r\n\r\n", None, curl=False),
    "protocols switched": Odd(b"HTTP/1.1 101 Switch\r\nbad\r\n\r\n" + OK + b"\r\n", None, curl=False),
}  # fmt: skip
NAMES = list(ANSWERS)


@contextmanager
def peer_of_all() -> Iterator[Callable[[str], str]]:
    """A peer with a path for each answer."""

    def behave(connection: socket.socket) -> None:
        number = int(read_request(connection).split(b" ")[1].strip(b"/"))
        connection.sendall(ANSWERS[NAMES[number]].sent)

    with RawPeer(behave) as peer:
        yield lambda name: f"http://127.0.0.1:{peer.port}/{NAMES.index(name)}"


def test_the_status_line_is_the_answer(transports: BlockingTransports) -> None:
    """And an odd answer is the last on its connection."""
    wrong = {}
    for name, odd in ANSWERS.items():
        with peer_of_all() as url:  # a port for each: the peer closes connections that might be used again
            exchange = transports.post(url(name), {}, BODY, seconds=20)
        outcome = outcome_of(exchange)
        said = {header.lower() for header, _ in exchange.head}
        seen = (exchange.status, exchange.unread.keys(), exchange.body, exchange.body_end)
        expected = (odd.status, set(odd.unread), odd.body, odd.end) if odd.status else (None, set(), b"", "whole")
        if seen != expected or not (odd.kept == b"" or odd.kept in said) or not exchange.connected:
            wrong[name] = seen
        elif odd.status is None:
            assert isinstance(outcome, Unknown), name
        else:
            assert isinstance(outcome, Done) == (odd.status == 200), name
            assert (outcome.detail or {}).get("unread", {}).keys() == set(odd.unread), name  # type: ignore[union-attr]
    assert wrong == {}


def test_curl_reads_the_same_statuses() -> None:
    curl = program("curl")
    with peer_of_all() as url:
        compared = [name for name, odd in ANSWERS.items() if odd.curl]
        words = [word for name in compared for word in ("--output", "/dev/null", url(name))]
        options = ["--silent", "--max-time", "20", "--data", "{}", "--write-out", "%{http_code}\n"]
        answer = subprocess.run([curl, *options, *words], capture_output=True, text=True, timeout=60, check=False)
    read = dict(zip(compared, map(int, answer.stdout.split()), strict=True))
    assert read == {name: ANSWERS[name].status or 0 for name in compared}


def test_there_are_enough_answers() -> None:
    assert len(ANSWERS) >= 50
