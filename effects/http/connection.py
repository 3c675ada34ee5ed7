"""One HTTP/1.1 connection: a request, its answer, and whether another request may follow."""

from __future__ import annotations

from collections.abc import Iterator

import httpcore

from effects.http.messages import HttpRequest, HttpResponse, ResponseParser, request_bytes
from effects.http.stream import DeadlineStream

READ_BYTES = 64 * 1024


class Connection:
    """A connection that carries one exchange after the other, and none after one that is in doubt.

    What a peer sends beyond an answer, or before a request, belongs to no request of ours. The next answer would be
    read from it, and a delivery recorded as done that no one has answered. So the connection is given up, as Go's
    net/http does.
    """

    def __init__(self, stream: DeadlineStream) -> None:
        self._stream = stream
        self._parser = ResponseParser()
        self._whole = True  # each request was written to its end

    def ask(self, request: HttpRequest) -> HttpResponse:
        """Send a request and read the head of its answer; interim answers (1xx) are passed over.

        An answer that comes before all of the request is written counts: the peer may refuse it by its head.

        Raises:
            Unasked: the peer had sent something before; nothing was written.
            httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError: there is no answer.
        """
        parser, data = self._parser, request_bytes(request)
        parser.begin()
        try:
            self._stream.write(data)
        except httpcore.WriteError:
            self._whole = False
        while parser.status is None:
            self._read()
        return HttpResponse(parser.status, parser.headers, self._body())

    def _body(self) -> Iterator[bytes]:
        while True:
            if body := self._parser.take():
                yield body
            if self._parser.over:
                return
            self._read()

    def _read(self) -> None:
        if self._parser.fault is not None:
            raise self._parser.fault
        self._parser.feed(self._stream.read(READ_BYTES))

    def finish(self) -> bool:
        """The exchange is over; whether another may follow. Not if either message is unfinished or more has come."""
        return self._whole and self._parser.is_reusable

    def is_quiet(self) -> bool:
        """Whether the peer has neither sent anything nor closed since the last exchange."""
        return self._stream.heard() is None

    def close(self) -> None:
        self._stream.close()
