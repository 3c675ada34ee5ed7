"""pgbouncer in transaction mode, in front of a server of the benchmarks; none where the program is not installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import URL, make_url

PROGRAM = "pgbouncer"
TRIES, PAUSE_SECONDS = 100, 0.05
_NOBODY = 65534
_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
"""


def available() -> bool:
    return shutil.which(PROGRAM) is not None


@contextmanager
def pooled(database: str) -> Iterator[str]:
    """The URL of the same database through a pooler, which ends with the block."""
    target = make_url(database)
    with tempfile.TemporaryDirectory(prefix="effects-bench-pooler-", ignore_cleanup_errors=True) as folder:
        port, configuration = _free_port(), Path(folder) / "pgbouncer.ini"
        host = str(target.query.get("host") or target.host or "127.0.0.1")
        configuration.write_text(
            _CONFIGURATION.format(
                host=host, port=target.port or 5432, user=target.username or "postgres", listen_port=port
            ),
            encoding="utf-8",
        )
        process = _start(configuration, host)
        url = URL.create("postgresql", target.username, host="127.0.0.1", port=port, database=target.database)
        pooled_url = url.set(query={"sslmode": "disable", "gssencmode": "disable"}).render_as_string()
        try:
            _await_answer(pooled_url, process)
            yield pooled_url
        finally:
            process.terminate()
            process.wait()


def _start(configuration: Path, host: str) -> subprocess.Popen[bytes]:
    """It refuses to run as root; whoever owns the server's socket may open that."""
    owner = None
    if os.geteuid() == 0:
        owner = (Path(host).stat().st_uid if host.startswith("/") else 0) or _NOBODY
        for path in (configuration.parent, configuration):
            os.chown(path, owner, -1)
    command = [shutil.which(PROGRAM) or PROGRAM, "--quiet", str(configuration)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=owner)


def _await_answer(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(TRIES):
        if process.poll() is not None:
            raise RuntimeError(f"{PROGRAM} ended with code {process.returncode}")
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            threading.Event().wait(PAUSE_SECONDS)
        else:
            return
    raise TimeoutError(f"{PROGRAM} does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
