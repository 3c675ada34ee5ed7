"""A name server on loopback, over UDP: real queries, real answers, or silence."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset


class NameServer:
    """`with NameServer({"shop.example": {"MX": ["10 mail.shop.example."]}}) as server: … server.address`.

    Args:
        zone: name → type → records in their presentation form. A name that is not there does not exist.
        rcode: of every answer instead, such as SERVFAIL. silent: no answer comes.
    """

    def __init__(
        self, zone: Mapping[str, Mapping[str, Sequence[str]]], *, rcode: str = "", silent: bool = False
    ) -> None:
        self.zone, self.rcode, self.silent = zone, rcode, silent
        self.asked: list[str] = []
        peer = self

        class _Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                data, socket = self.request
                answer = peer.answer(data)
                if answer is not None:
                    socket.sendto(answer, self.client_address)

        self._server = socketserver.UDPServer(("127.0.0.1", 0), _Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, data: bytes) -> bytes | None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = str(question.name).rstrip(".").lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked.append(f"{kind} {name}")
        if self.silent:
            return None
        response = dns.message.make_response(query)
        response.flags |= dns.flags.RA
        records = self.zone.get(name, {}).get(kind, [])
        if self.rcode:
            response.set_rcode(dns.rcode.from_text(self.rcode))
        elif records:
            response.answer.append(dns.rrset.from_text_list(question.name, 60, "IN", kind, list(records)))
        elif name not in self.zone:
            response.set_rcode(dns.rcode.NXDOMAIN)
        return response.to_wire()
