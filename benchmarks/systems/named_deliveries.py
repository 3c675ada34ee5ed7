"""`deliveries`, until it is ended. Partners have names under `.test`, and the name servers of some fall silent."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from typing import Any

from benchmarks.processes import await_go
from benchmarks.systems.deliveries import app
from effects.worker import Worker

SILENT = ".silent.test"
LOOKUP_SECONDS, SILENT_SECONDS = 0.002, 10.0  # the system's resolver gives up after 5 or 10, and asks again or not
_silent = threading.Event()


def _resolve(host: str, port: int, **_: Any) -> list[Any]:
    """Every name is this machine; a line to this process silences those under `.silent.test`."""
    if host.endswith(SILENT) and _silent.is_set():
        time.sleep(SILENT_SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")
    time.sleep(LOOKUP_SECONDS)
    return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]


def _await_silence() -> None:
    if sys.stdin.readline():
        _silent.set()


def work(keys: str, database: str) -> None:
    """Warnings about the partners that fail are not printed."""
    logging.getLogger("effects").setLevel(logging.CRITICAL)
    worker = Worker(app(database, keys), grace_seconds=0.1)
    await_go()
    original = socket.getaddrinfo
    socket.getaddrinfo = lambda host, port, *rest, **named: (
        _resolve(host, port, **named) if str(host).endswith(".test") else original(host, port, *rest, **named)
    )
    threading.Thread(target=_await_silence, daemon=True).start()
    worker.run()
