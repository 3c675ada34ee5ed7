"""One HTTP/1.1 connection: a request, its answer, and whether another request may follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import h11
import httpcore

from effects.http.stream import DeadlineStream

EVENT_BYTES_MAX = 100 * 1024  # of a head that has not ended; an exchange has bounds of its own
READ_BYTES = 64 * 1024


class HttpRequest(NamedTuple):
    """What is sent. `headers` has all of them, Host and Content-Length too."""

    method: str
    target: bytes
    headers: Sequence[tuple[str, str]]
    body: bytes


class HttpResponse(NamedTuple):
    """The head of an answer, and its body as it comes: decoded from chunks, not decompressed."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: Iterator[bytes]


class Connection:
    """A connection that carries one exchange after the other, and none after one that is in doubt.

    What a peer sends beyond an answer, or before a request, belongs to no request of ours. The next answer would be
    read from it, and a delivery recorded as done that no one has answered. So the connection is given up, as Go's
    net/http does.
    """

    def __init__(self, stream: DeadlineStream) -> None:
        self._stream = stream
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=EVENT_BYTES_MAX)
        self._whole = True  # each request was written to its end

    def ask(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read the head of its answer; interim answers (1xx) are passed over.

        An answer that comes before all of the request is written counts: the peer may refuse it by its head.

        Raises:
            Unasked: the peer had sent something before; nothing was written.
            httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError: there is no answer.
        """
        with _protocol_errors():
            head = h11.Request(method=request.method, target=request.target, headers=list(request.headers))
            events = (head, h11.Data(data=request.body), h11.EndOfMessage())
            data = b"".join(self._h11.send(event) or b"" for event in events)
        try:
            self._stream.write(data)
        except httpcore.WriteError:
            self._whole = False
        while not isinstance(event := self._next(), h11.Response):
            pass
        return HttpResponse(event.status_code, event.headers.raw_items(), self._body())

    def _body(self) -> Iterator[bytes]:
        while isinstance(event := self._next(), h11.Data):
            yield bytes(event.data)

    def _next(self) -> object:
        """The next event of the answer."""
        while True:
            with _protocol_errors():
                event = self._h11.next_event()
            if event is not h11.NEED_DATA:
                return event
            data = self._stream.read(READ_BYTES)
            if not data and self._h11.their_state is h11.SEND_RESPONSE:
                raise httpcore.RemoteProtocolError("the connection ended without an answer")
            self._h11.receive_data(data)

    def finish(self) -> bool:
        """The exchange is over; whether another may follow. Not if either message is unfinished or more has come."""
        over = self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE
        if not self._whole or not over or self._h11.trailing_data[0]:
            return False
        self._h11.start_next_cycle()
        return True

    def is_quiet(self) -> bool:
        """Whether the peer has neither sent anything nor closed since the last exchange."""
        return self._stream.heard() is None

    def close(self) -> None:
        self._stream.close()


@contextmanager
def _protocol_errors() -> Iterator[None]:
    """h11's errors under httpcore's names, so that an exchange fails by one family of errors."""
    try:
        yield
    except h11.LocalProtocolError as error:
        raise httpcore.LocalProtocolError(str(error)) from error
    except h11.RemoteProtocolError as error:
        raise httpcore.RemoteProtocolError(str(error)) from error
