"""What announces a message to a server: MAIL and RCPT, and with PIPELINING the DATA that ends their group."""

from __future__ import annotations

from dataclasses import dataclass

from effects_email.transport.base import OutgoingMessage
from effects_email.transport.smtp.client import Client
from effects_email.transport.smtp.fit import misfit

DATA = b"DATA\r\n"


@dataclass(frozen=True)
class Envelope:
    """A message for some of its recipients, 100 at most."""

    outgoing: OutgoingMessage
    recipients: tuple[str, ...]

    def mail(self, client: Client) -> bytes:
        """MAIL, with what the server offers."""
        outgoing = self.outgoing
        command = f"MAIL FROM:<{outgoing.sender}>"
        if client.offers_size:
            command += f" SIZE={len(outgoing.data)}"
        if client.offers_8bit and not outgoing.data.isascii():
            command += " BODY=8BITMIME"
        if outgoing.utf8:
            command += " SMTPUTF8"
        return command.encode() + b"\r\n"

    @staticmethod
    def rcpt(recipient: str) -> bytes:
        return f"RCPT TO:<{recipient}>\r\n".encode()

    def group(self, client: Client) -> bytes:
        """All of it in one write (RFC 2920)."""
        return b"".join([self.mail(client), *map(self.rcpt, self.recipients), DATA])

    def fits(self, client: Client) -> bool:
        """Whether this server may be given the message."""
        return not misfit(client, self.outgoing)
