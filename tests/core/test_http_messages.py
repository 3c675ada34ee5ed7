"""HTTP messages without a connection: which bytes are an answer, where it ends, and which requests are written."""

from __future__ import annotations

import httpcore
import pytest

from effects.kit.http.messages import HttpRequest, ResponseParser, request_bytes

OK = b"HTTP/1.1 200 OK\r\n"
LENGTH = OK + b"Content-Length: 2\r\n\r\nok"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\no\r\n1;a=b\r\nk\r\n0\r\nX-Trailer: t\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"


def parsed(*pieces: bytes) -> ResponseParser:
    parser = ResponseParser()
    for piece in pieces:
        parser.feed(piece)
    return parser


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (LENGTH, b"ok"),
        (CHUNKED, b"ok"),
        (EARLY + LENGTH, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok"),
    ],
)
def test_a_response_ends_at_its_declared_length_however_it_is_split(answer: bytes, body: bytes) -> None:
    for pieces in ([answer], [bytes([byte]) for byte in answer]):
        parser = parsed(*pieces)
        assert (parser.status, parser.over, parser.fault) == (int(answer.rpartition(b"HTTP/1.1 ")[2][:3]), True, None)
        assert not any(name == b"Link" or name == b"X-Trailer" for name, _ in parser.headers)
        assert parser.take() == body
        assert parser.is_reusable
    for length in range(len(answer)):
        assert not parsed(answer[:length]).over


def test_a_parser_reads_one_answer_after_the_other() -> None:
    parser = parsed(LENGTH)
    for answer in (CHUNKED, EARLY + LENGTH):
        assert (parser.take(), parser.is_reusable) == (b"ok", True)
        parser.begin()
        assert (parser.status, parser.over, parser.is_reusable) == (None, False, False)
        parser.feed(answer)


@pytest.mark.parametrize("more", [b"\r\n", b"\n", b"H", OK, LENGTH, EARLY, b"\0", b"okay"])
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, b"HTTP/1.1 204 No Content\r\n\r\n"])
def test_a_byte_after_a_response_ends_the_connection(answer: bytes, more: bytes) -> None:
    for pieces in ([answer + more], [answer, more]):
        parser = parsed(*pieces)
        assert (parser.over, parser.fault, parser.is_reusable) == (True, None, False)
        assert parser.take() == (b"" if b"204" in answer else b"ok")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
        OK + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
def test_a_response_of_doubtful_length_ends_the_connection(answer: bytes) -> None:
    parser = parsed(answer)
    assert (parser.take(), parser.over, parser.is_reusable) == (b"ok", True, False)


def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    parser = parsed(OK + b"\r\n", b"o", b"k")
    assert (parser.over, parser.take()) == (False, b"ok")
    parser.feed(b"")
    assert (parser.over, parser.fault, parser.is_reusable) == (True, None, False)


@pytest.mark.parametrize("answer", [b"", EARLY, OK[:-1], LENGTH[:-1], CHUNKED[:-3]])
def test_a_connection_that_ends_within_an_answer_is_a_fault(answer: bytes) -> None:
    parser = parsed(answer, b"") if answer else parsed(b"")
    assert (parser.over, parser.is_reusable) == (False, False)
    assert isinstance(parser.fault, httpcore.RemoteProtocolError)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n" + LENGTH,
        b"HTTP/1.1 099 Low\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
    ],
)
def test_garbage_has_no_status(head: bytes) -> None:
    for pieces in ([head], [bytes([byte]) for byte in head]):
        parser = ResponseParser()
        for piece in pieces:
            if parser.fault is None:
                parser.feed(piece)
        assert parser.status is None
        assert parser.fault is not None
        assert not parser.is_reusable


@pytest.mark.parametrize(
    ("head", "is_over"),
    [
        (OK + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\nok", True),
        (OK + b"X-Folded: a\r\n b\r\nContent-Length: 0\r\n\r\n", True),
        (OK + b"X-Spaced : a\r\nContent-Length: 0\r\n\r\n", True),
        (OK + b"X-Nul: a\0\r\nContent-Length: 0\r\n\r\n", True),
        (OK + b"Content-Length: +2\r\n\r\nok", False),
        (OK + b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nok", False),
    ],
)
def test_a_field_that_cannot_be_read_takes_no_status_away(head: bytes, is_over: bool) -> None:
    """Where it leaves in doubt where the answer ends, that is a fault beside the status."""
    for pieces in ([head], [bytes([byte]) for byte in head]):
        parser = parsed(*pieces, b"")
        assert (parser.status, parser.over, parser.fault is None, parser.is_reusable) == (200, is_over, is_over, False)


def test_a_broken_chunk_leaves_the_status_and_what_came_before() -> None:
    parser = parsed(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n")
    assert (parser.status, parser.take(), parser.over) == (200, b"ok", False)
    assert parser.fault is not None


# -- requests ------------------------------------------------------------------------------------------------------


def test_a_request_is_written_as_it_is() -> None:
    headers = [("Host", "peer.test"), ("X-Empty", ""), ("X-Spaced", "a  b\tc")]
    head = b"POST /a?b=%20 HTTP/1.1\r\nHost: peer.test\r\nX-Empty: \r\nX-Spaced: a  b\tc\r\n\r\n"
    assert request_bytes(HttpRequest("POST", b"/a?b=%20", headers, b"\0\r\n")) == head + b"\0\r\n"


@pytest.mark.parametrize(
    ("method", "target", "name", "value"),
    [
        ("PO ST", b"/", "X", "a"),
        ("POST", b"/ HTTP/1.1\r\nX: y", "X", "a"),
        ("POST", b"/a b", "X", "a"),
        ("POST", b"", "X", "a"),
        ("POST", b"/\xff", "X", "a"),
        ("POST", b"/", "", "a"),
        ("POST", b"/", "X:", "a"),
        ("POST", b"/", "X\r\nY", "a"),
        ("POST", b"/", "X\nY", "a"),
        ("POST", b"/", "X: a\r\nY", "a"),
        ("POST", b"/", "X: a", "b"),
        ("POST", b"/", "X", "a\r\nY: b"),
        ("POST", b"/", "X", "a\nb"),
        ("POST", b"/", "X", "a\n"),
        ("POST", b"/", "X", "a\0b"),
        ("POST", b"/", "X", " a"),
        ("POST", b"/", "X", "a "),
        ("POST", b"/", "X", "ä"),
    ],
)
def test_a_smuggled_request_is_not_written(method: str, target: bytes, name: str, value: str) -> None:
    with pytest.raises(httpcore.LocalProtocolError):
        request_bytes(HttpRequest(method, target, [(name, value)], b""))
