"""An IMAP4rev1 server on loopback, as far as the reader of a mailbox can tell."""

from __future__ import annotations

import re
import socketserver
import threading
from types import TracebackType
from typing import Self

USER, PASSWORD = "shop", "hunter2"


class ImapPeer:
    """`with ImapPeer(messages) as server: … server.url("Bounces") … server.seen`: UIDs from 1 on.

    Args:
        fault: `login` and `mailbox` are refused; `hangup` ends the connection at the first search.
    """

    def __init__(self, messages: list[bytes], *, fault: str = "") -> None:
        self.messages, self.fault, self.seen = messages, fault, set[int]()
        peer = self

        class _Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                peer.serve(self)

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def url(self, mailbox: str) -> str:
        return f"imap://{USER}:{PASSWORD}@127.0.0.1:{self._server.server_address[1]}/{mailbox}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self, client: socketserver.StreamRequestHandler) -> None:
        client.wfile.write(b"* OK ready\r\n")
        for line in client.rfile:
            tag, _, command = line.strip().partition(b" ")
            answer = self.answer(command.decode())
            if answer is None:
                return
            client.wfile.write(answer + tag + (b" NO refused\r\n" if answer == b"" else b" OK done\r\n"))

    def answer(self, command: str) -> bytes | None:
        """The untagged lines; empty for a refusal, None to hang up."""
        word = command.upper()
        if word.startswith("CAPABILITY"):
            return b"* CAPABILITY IMAP4rev1\r\n"
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
            return b"* %s FETCH (UID %s BODY[]<0> {%d}\r\n%s)\r\n" % (
                fetch[1].encode(),
                fetch[1].encode(),
                len(data),
                data,
            )
        if store := re.match(r"UID STORE (\d+) \+FLAGS \(\\SEEN\)$", word):
            self.seen.add(int(store[1]))
            return b"* OK\r\n"
        return b"* BYE\r\n" if word.startswith("LOGOUT") else b""
