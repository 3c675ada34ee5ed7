"""A peer that counts: every effect that reaches it is written down, in the test's own process."""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from types import TracebackType

from tests.peers.serving import Serving
from tests.support.waiting import wait_until


class StubServer(Serving):
    """Listens on loopback. A line `do NAME` is an effect; `ask NAME` is only a question, and may have to wait.

    `done` and `asked` have the names in the order of their coming. The answer to an effect is `ok`, or `busy` as
    often as `busy[name]` says; a busy one is no effect.
    """

    def __init__(self) -> None:
        self.done: list[str] = []
        self.asked: list[str] = []
        self.busy: Counter[str] = Counter()
        self._closed_gates: dict[str, threading.Event] = {}
        server = _Server(("127.0.0.1", 0), _Line)
        server.stub_server = self
        super().__init__(server)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for gate in self._closed_gates.values():
            gate.set()
        super().__exit__(kind, error, trace)

    def hold(self, name: str) -> None:
        """From now on a question of this name waits for `open`."""
        self._closed_gates[name] = threading.Event()

    def open(self, name: str) -> None:
        """Let those that wait go on; later ones need not wait."""
        self._closed_gates.pop(name).set()

    def wait_asked(self, name: str, times: int = 1) -> None:
        wait_until(lambda: self.asked.count(name) >= times)

    def answer(self, line: str) -> str:
        verb, _, name = line.partition(" ")
        if verb == "ask":
            self.asked.append(name)
            if (gate := self._closed_gates.get(name)) is not None:
                gate.wait(60)
            return "go"
        if self.busy[name] > 0:
            self.busy[name] -= 1
            return "busy"
        self.done.append(name)
        return "ok"


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128
    stub_server: StubServer

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed while we answered is what these tests are about."""


class _Line(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        line = self.rfile.readline().decode()
        if line.endswith("\n"):  # half a line is a client that died while it spoke
            self.wfile.write(f"{self.server.stub_server.answer(line.strip())}\n".encode())
