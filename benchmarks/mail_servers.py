"""Where benchmark mail goes: Postfix's smtp-sink, by itself or behind a wire with a delay."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.processes import child

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin"
_START_SECONDS = 10


@contextmanager
def sink() -> Iterator[int]:
    """The port of a smtp-sink, which takes everything and keeps nothing.

    Raises:
        RuntimeError: there is no smtp-sink; it comes with Postfix.
    """
    program = shutil.which("smtp-sink", path=_PATH)
    if program is None:
        raise RuntimeError("smtp-sink is not installed; it comes with Postfix (Debian: apt-get install postfix)")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    process = subprocess.Popen([program, *_as_nobody(), f"127.0.0.1:{port}", "128"])
    try:
        _await(port)
        yield port
    finally:
        process.kill()
        process.wait()


@contextmanager
def slow_wire(milliseconds: int, port: int) -> Iterator[int]:
    """The port of a proxy to this one whose round trip takes so long."""
    with child("slow_wire", str(milliseconds), str(port)) as process:
        process.go()
        yield int(process.line())


def _as_nobody() -> list[str]:
    return ["-u", "nobody"] if os.geteuid() == 0 else []


def _await(port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > deadline:
            raise RuntimeError("smtp-sink does not answer")
        time.sleep(0.02)
