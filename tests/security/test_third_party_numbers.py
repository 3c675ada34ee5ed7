"""Every number that a third party can write into a header: none is an error of ours, and each has its bound."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from effects.keys.signing import verify
from effects.kit.web_apps import Answer, content_length, wsgi_app
from effects_email.transport.http_api.transport import wait_of
from effects_reports.downloads import UnsatisfiableError, asked_range
from effects_webhooks.classify import http_date, retry_after
from effects_webhooks.commands.listen import Listener
from effects_webhooks.retry_rules import HINT_MAX_SECONDS

NUMBERS = [
    "", " ", "-1", "+5", "1.5", "1e9", "1e400", "nan", "inf", "-inf", "0x10", "1_000", "٣", "²", "5;6", "9" * 19,
    "9" * 20, "9" * 400, "9" * 5_000, "0" * 5_000 + "3", "1." + "9" * 5_000, "9" * 5_000 + "-", "-" + "9" * 5_000,
]  # fmt: skip
SECRET = "whsec_" + "A" * 32


def a_wsgi_body(text: str) -> None:
    statuses: list[str] = []
    app: Any = wsgi_app(lambda request: Answer(200, request.body), methods=("POST",))
    environ = {"REQUEST_METHOD": "POST", "CONTENT_LENGTH": text, "wsgi.input": io.BytesIO(b"abc")}
    app(environ, lambda status, headers: statuses.append(status))
    assert statuses[0][:3] in ("200", "400", "413")


def a_signed_time(text: str) -> None:
    headers = {"webhook-id": "msg_1", "webhook-timestamp": text, "webhook-signature": "v1,AAAA"}
    with pytest.raises(Exception, match=r"webhook|signature|timestamp"):
        verify([SECRET], headers, b"")


def a_range(text: str) -> None:
    for header in (f"bytes={text}", f"bytes={text}-", f"bytes=-{text}", f"bytes=0-{text}"):
        try:
            span = asked_range(header, 100)
        except UnsatisfiableError:
            continue
        assert span is None or 0 <= span[0] < span[1] <= 100


def a_wait(text: str) -> None:
    for wait in (retry_after(text, time.time()), wait_of({"retry-after": text}), wait_of({"ratelimit-reset": text})):
        assert wait is None or 0 <= wait <= HINT_MAX_SECONDS
    http_date(text)


@pytest.mark.parametrize("reader", [a_wsgi_body, a_signed_time, a_range, a_wait])
def test_numbers_from_third_parties_raise_no_error_of_ours(reader: Callable[[str], None]) -> None:
    for text in NUMBERS:
        reader(text)


def test_the_length_of_a_body() -> None:
    lengths = {text: content_length(text) for text in NUMBERS}
    assert {text: length for text, length in lengths.items() if length is not None and length < 10} == {
        "0" * 5_000 + "3": 3
    }
    assert lengths["9" * 5_000] == lengths["9" * 400] > 10**17
    assert {lengths[text] for text in ("", " ", "-1", "+5", "1.5", "1e9", "nan", "٣", "²", "1_000")} == {None}


@pytest.mark.parametrize(("length", "status"), [("9" * 5_000, b"413"), ("-1", b"400"), ("²", b"400"), ("x", b"400")])
def test_the_listener_answers_each_on_its_socket(length: str, status: bytes) -> None:
    listener = Listener(0, [SECRET], lambda received: None)
    thread = threading.Thread(target=listener.serve)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", listener.port), 10) as client:
            client.sendall(f"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
            assert client.recv(200).split()[1] == status
    finally:
        listener.stop()
        thread.join(10)
        listener.close()
