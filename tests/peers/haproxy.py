"""The real HAProxy before a pair of servers, as docs/failover.md configures it; their health is asked by HTTP."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from tests.peers.serving import Serving
from tests.support import needs
from tests.support.databases import run_directory
from tests.support.server_pair import PLAIN, Member

_CONFIGURATION = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h

listen primary
    bind 127.0.0.1:{port}
    option httpchk OPTIONS /primary
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions
"""


class MemberHealth(Serving):
    """Answers `/primary` with 200 while the member takes writes, else 503, as Patroni does."""

    def __init__(self, member: Member) -> None:
        def answer(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200 if _takes_writes(member) else 503)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        handler = type("_Handler", (BaseHTTPRequestHandler,), {"do_OPTIONS": answer, "log_message": lambda *_: None})
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), handler))


def _takes_writes(member: Member) -> bool:
    try:
        return member.sql("SELECT pg_is_in_recovery()") == [(False,)]
    except psycopg.OperationalError:
        return False


class HAProxy:
    """`with HAProxy(members) as haproxy: … haproxy.url …`: one address, which leads to the primary."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._program = needs.program("haproxy")
        self._stack = ExitStack()
        self._health = [MemberHealth(member) for member in members]
        self._folder = tempfile.TemporaryDirectory(prefix="haproxy-", dir=run_directory())
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        lines = [
            f"    server {member.name} {member.address} check port {health.port}\n"
            for member, health in zip(members, self._health, strict=True)
        ]
        self._file = Path(self._folder.name) / "haproxy.cfg"
        self._file.write_text(_CONFIGURATION.format(port=self._port) + "".join(lines))

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._port}/postgres?{PLAIN}"

    def __enter__(self) -> Self:
        for health in self._health:
            self._stack.enter_context(health)
        with (Path(self._folder.name) / "log").open("w") as log:
            self._process = subprocess.Popen(
                [self._program, "-db", "-f", str(self._file)], stdout=log, stderr=subprocess.STDOUT
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._stack.close()
        self._folder.cleanup()
