"""A TCP proxy in front of PostgreSQL that cuts the wire at a chosen statement, before or after it took effect.

It reads just enough of the frontend/backend protocol, version 3: the length of each message, the SQL in Query and
Parse, and the transaction status in ReadyForQuery. TLS is off between client and proxy.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

from sqlalchemy.engine import URL, make_url

When: TypeAlias = Literal["before", "after"]
_FATAL = ("57P", "08", "25P03")  # after these a server ends the connection
_ENDS_A_BATCH = b"QSXpH"  # Query, Sync, Terminate, password, Flush: what the client waits after


@dataclass(frozen=True)
class Cut:
    """Cut where SQL with `marker` becomes durable: at its COMMIT, or at the statement itself.

    `before`: the server never hears of it. `after`: the server has done it, and its answer is withheld.
    """

    marker: str
    when: When
    in_transaction: bool


class Proxy:
    """`with Proxy(url) as proxy: … proxy.url …`; `cuts` counts the cuts made."""

    def __init__(self, url: str) -> None:
        self._target = make_url(url)
        self._lock = threading.Lock()
        self._cut: Cut | None = None
        self._wires: set[_Wire] = set()
        self._listener = _listen(0)
        self.port = int(self._listener.getsockname()[1])
        self.cuts = 0
        self._thawed = threading.Event()
        self._thawed.set()

    @property
    def url(self) -> str:
        """The same database by way of the proxy."""
        plain = {"sslmode": "disable", "gssencmode": "disable"}
        return self._target.set(host="127.0.0.1", port=self.port, query=plain).render_as_string(hide_password=False)

    def arm(self, cut: Cut) -> None:
        """The next time that this becomes durable, the wire is cut; once."""
        with self._lock:
            self._cut = cut

    def refuse(self) -> None:
        """The server is gone: open connections end, new ones are refused."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or the thread that accepts would hold the port
        self._listener.close()
        self._hang_up()
        self.thaw()

    def freeze(self) -> None:
        """From now on nothing passes in either direction, and nothing is closed: a server that hangs."""
        self._thawed.clear()

    def thaw(self) -> None:
        """What waited passes."""
        self._thawed.set()

    def pass_on(self) -> None:
        """Wait while frozen."""
        self._thawed.wait()

    def accept(self) -> None:
        """The server is back, on the same port."""
        self._listener = _listen(self.port)
        self._start()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self.refuse()

    def _start(self) -> None:
        threading.Thread(target=self._serve, args=(self._listener,), daemon=True).start()

    def _serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # closed
                return
            client.settimeout(None)
            wire = _Wire(client, _connect(self._target), self)
            with self._lock:
                self._wires.add(wire)
            wire.start()

    def _hang_up(self) -> None:
        with self._lock:
            wires, self._wires = self._wires, set()
        for wire in wires:
            wire.close()

    def verdict(self, statement: str, transaction: str | None) -> str | None:
        """What to do with this statement: cut `before` or `after` it, `hang`, or answer with this SQLSTATE.

        `transaction` is what its transaction has said before, if it is in one.
        """
        with self._lock:
            cut = self._cut
            if cut is None or cut.in_transaction is (transaction is None):
                return None
            commits = transaction is None or statement.strip().upper() == "COMMIT"
            if not commits or cut.marker not in (statement if transaction is None else transaction):
                return None
            self._cut = None
            self.cuts += 1
            return cut.when


class _Wire:
    """One client's connection, and ours to the server for it."""

    def __init__(self, client: socket.socket, server: socket.socket, proxy: Proxy) -> None:
        self._client, self._server, self._proxy = client, server, proxy
        self._said: str | None = None  # in a transaction: its statements so far
        self._withhold = False
        self._closed = threading.Event()

    def start(self) -> None:
        for pump in (self._to_server, self._to_client):
            threading.Thread(target=self._run, args=(pump,), daemon=True).start()

    def _run(self, pump: object) -> None:
        with suppress(OSError):
            pump()  # type: ignore[operator]
        self.close()

    def close(self) -> None:
        self._closed.set()
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _to_server(self) -> None:
        startup = _exactly(self._client, 4)
        self._server.sendall(startup + _exactly(self._client, struct.unpack("!I", startup)[0] - 4))
        batch, statements = b"", []
        for kind, body in _messages(self._client):
            batch += _framed(kind, body)
            if kind == b"Q":
                statements.append(_text(body))
            elif kind == b"P":
                statements.append(_text(body[body.index(b"\0") + 1 :]))
            if kind in _ENDS_A_BATCH:
                if not self._forward(batch, " ".join(statements)):
                    return
                batch, statements = b"", []

    def _forward(self, batch: bytes, statement: str) -> bool:
        """Pass a batch on; False where the wire is to be cut instead."""
        verdict = self._proxy.verdict(statement, self._said) if statement else None
        if verdict == "hang":
            self._closed.wait()
        if verdict in ("before", "hang"):
            return False
        if verdict not in (None, "after"):
            return self._refuse(str(verdict))
        self._withhold = verdict == "after"
        if self._said is not None:
            self._said += f" {statement}"
        self._proxy.pass_on()
        self._server.sendall(batch)
        return True

    def _refuse(self, state: str) -> bool:
        """Answer as the server would; False where it would also hang up. The statement is not carried out."""
        status = b"I" if self._said is None else b"E"
        fatal = state.startswith(_FATAL)
        severity = b"FATAL" if fatal else b"ERROR"
        fields = b"".join((b"S", severity, b"\0V", severity, b"\0C", state.encode(), b"\0Msabotage\0\0"))
        self._client.sendall(_framed(b"E", fields) + (b"" if fatal else _framed(b"Z", status)))
        return not fatal

    def _to_client(self) -> None:
        for kind, body in _messages(self._server):
            self._proxy.pass_on()
            if not self._withhold:
                if kind == b"Z":
                    self._note_status(body)
                self._client.sendall(_framed(kind, body))
            elif kind == b"Z":
                return

    def _note_status(self, status: bytes) -> None:
        if status == b"I":
            self._said = None
        elif self._said is None:
            self._said = ""


def _listen(port: int) -> socket.socket:
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    listener.settimeout(0.1)  # so that its thread sees that it was closed
    return listener


def _connect(url: URL) -> socket.socket:
    host = url.query.get("host") or url.host or "127.0.0.1"
    host = host if isinstance(host, str) else host[0]
    port = url.port or int(str(url.query.get("port", 5432)))
    if host.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server
    return socket.create_connection((host, port))


def _messages(source: socket.socket) -> Iterator[tuple[bytes, bytes]]:
    while True:
        head = _exactly(source, 5)
        yield head[:1], _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = source.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the other end is gone")
        received += chunk
    return received


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _text(body: bytes) -> str:
    return body[: body.index(b"\0")].decode()
