"""An IMAP4rev1 server on loopback, as far as the reader of a mailbox can tell."""

from __future__ import annotations

import base64
import re
import socketserver
import ssl
from collections.abc import Callable
from contextlib import suppress

from tests.peers.serving import Serving

USER, PASSWORD = "shop", "hunter2"


class ImapPeer(Serving):
    """`with ImapPeer(messages) as server: … server.url("Bounces") … server.seen`: UIDs from 1 on.

    Args:
        fault: `login` and `mailbox` are refused; `hangup` ends the connection at the first search;
            `no passwords` disables LOGIN; at a token, `challenges` never end, `garbage` is no base64, and `cut` hangs
            up.
        messages: None for one that the server cannot give.
        accepts: whether an access token is good; AUTHENTICATE by the `mechanism` is then offered.
        scheme: `imaps` and `imap+starttls` speak TLS with `context`; without one STARTTLS is not offered.

    Attributes:
        commands: what was said, in order.
    """

    def __init__(
        self,
        messages: list[bytes | None],
        *,
        fault: str = "",
        scheme: str = "imap",
        context: ssl.SSLContext | None = None,
        accepts: Callable[[str], bool] | None = None,
        mechanism: str = "XOAUTH2",
    ) -> None:
        self.messages, self.fault, self.seen, self.flagged = messages, fault, set[int](), set[int]()
        self.commands: list[str] = []
        self._scheme, self._context, self._accepts, self._mechanism = scheme, context, accepts, mechanism
        peer = self

        class _Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with suppress(ssl.SSLError, ConnectionError):  # the client does not trust us, say
                    peer.serve(self)
                self.request.close()

        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
        server.daemon_threads = True
        super().__init__(server)

    def url(self, mailbox: str) -> str:
        return f"{self._scheme}://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{mailbox}"

    def serve(self, client: socketserver.StreamRequestHandler) -> None:
        if self._scheme == "imaps":
            self._start_tls(client)
        client.wfile.write(b"* OK ready\r\n")
        while line := client.rfile.readline():
            tag, _, command = line.strip().partition(b" ")
            self.commands.append(command.decode())
            answer = self._token(client) if command.startswith(b"AUTHENTICATE") else self.answer(command.decode())
            if answer is None:
                return
            client.wfile.write(answer + tag + (b" NO refused\r\n" if answer == b"" else b" OK done\r\n"))
            if command == b"STARTTLS" and answer:
                self._start_tls(client)

    def _start_tls(self, client: socketserver.StreamRequestHandler) -> None:
        assert self._context is not None
        client.request = self._context.wrap_socket(client.request, server_side=True)
        client.setup()

    def _token(self, client: socketserver.StreamRequestHandler) -> bytes:
        """A refusal is a challenge first."""
        client.wfile.write(b"+ not base64\r\n" if self.fault == "garbage" else b"+ \r\n")
        if self.fault in ("cut", "garbage"):
            client.rfile.read(1 if self.fault == "garbage" else 0)
            raise ConnectionError
        while self.fault == "challenges":
            if client.rfile.readline() in (b"*\r\n", b""):
                return b""
            client.wfile.write(b"+ \r\n")
        response = base64.b64decode(client.rfile.readline()).decode()
        self.commands.append(response.split("\1")[0])
        assert response.startswith("user=" if self._mechanism == "XOAUTH2" else "n,a="), response
        token = response.split("\1")[1].removeprefix("auth=Bearer ")
        if self._accepts is not None and self._accepts(token):
            return b"* OK\r\n"
        client.wfile.write(b"+ " + base64.b64encode(b'{"status":"400"}') + b"\r\n")
        assert client.rfile.readline() == (b"\r\n" if self._mechanism == "XOAUTH2" else b"AQ==\r\n")  # RFC 7628, 3.2.3
        return b""

    def answer(self, command: str) -> bytes | None:
        """The untagged lines; empty for a refusal, None to hang up."""
        word = command.upper()
        offers_tls = self._scheme == "imap+starttls" and self._context is not None
        if word.startswith("CAPABILITY"):
            more = b" STARTTLS" if offers_tls else b""
            more += f" AUTH={self._mechanism}".encode() if self._accepts is not None else b""
            more += b" LOGINDISABLED" if self.fault == "no passwords" else b""
            return b"* CAPABILITY IMAP4rev1" + more + b"\r\n"
        if word == "STARTTLS":
            return b"* OK\r\n" if offers_tls else b""
        if word.startswith("LOGIN"):
            right = command == f'LOGIN {USER} "{PASSWORD}"' and self.fault != "login"
            return b"* OK\r\n" if right else b""
        if word.startswith("SELECT"):
            return b"" if self.fault == "mailbox" else b"* %d EXISTS\r\n" % len(self.messages)
        if word.startswith("UID SEARCH"):
            unseen = (str(uid) for uid in range(1, len(self.messages) + 1) if uid not in self.seen)
            return None if self.fault == "hangup" else f"* SEARCH {' '.join(unseen)}\r\n".encode()
        if fetch := re.match(r"UID FETCH (\d+) \(BODY\.PEEK\[\]<0\.\d+>\)$", word):
            data = self.messages[int(fetch[1]) - 1]
            if data is None:
                return b""
            return b"* %s FETCH (UID %s BODY[]<0> {%d}\r\n%s)\r\n" % (
                fetch[1].encode(),
                fetch[1].encode(),
                len(data),
                data,
            )
        if store := re.match(r"UID STORE (\d+) \+FLAGS \(\\SEEN( \\FLAGGED)?\)$", word):
            self.seen.add(int(store[1]))
            if store[2]:
                self.flagged.add(int(store[1]))
            return b"* OK\r\n"
        return b"* BYE\r\n" if word.startswith("LOGOUT") else b""
