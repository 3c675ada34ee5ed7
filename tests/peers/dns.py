"""A name server on loopback, over UDP: real queries, real answers, or silence."""

from __future__ import annotations

import socketserver
from collections.abc import Mapping, Sequence

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

from tests.peers.serving import Serving


class NameServer(Serving):
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

        super().__init__(socketserver.UDPServer(("127.0.0.1", 0), _Handler))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

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
