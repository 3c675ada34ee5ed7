"""The real pgbouncer in transaction mode, in front of the test server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg
from sqlalchemy.engine import URL, make_url

from tests.support import needs
from tests.support.databases import run_directory
from tests.support.waiting import wait_until

_CONFIGURATION = """
[databases]
* = {target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 30
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
"""


class PgBouncer:
    """`with PgBouncer(server_url) as bouncer: … bouncer.url("database") …`. Any database of that server."""

    def __init__(self, server_url: str) -> None:
        self._server = make_url(server_url)
        self._program = needs.program("pgbouncer")
        self._port = _free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="bouncer-", dir=run_directory())

    def url(self, database: str) -> str:
        url = URL.create("postgresql", "effects", host="127.0.0.1", port=self._port, database=database)
        return url.set(query={"sslmode": "disable", "gssencmode": "disable"}).render_as_string(hide_password=False)

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(self._configuration())
        owner = self._owner()
        if owner is not None:
            os.chown(folder, owner, -1)
            os.chown(configuration, owner, -1)
        with (folder / "log").open("w") as log:
            self._process = subprocess.Popen(
                [self._program, str(configuration)], stdout=log, stderr=subprocess.STDOUT, user=owner
            )
        wait_until(self._answers)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()

    def lead_to(self, server_url: str) -> None:
        """From now on it leads to another server, as a cluster manager's callback has it."""
        self._server = make_url(server_url)
        (Path(self._folder.name) / "pgbouncer.ini").write_text(self._configuration())
        self._process.send_signal(signal.SIGHUP)

    def _configuration(self) -> str:
        server = self._server
        target = {
            "host": server.query.get("host") or server.host or "127.0.0.1",
            "port": server.port or 5432,
            "user": server.username or "postgres",
            **({"password": server.password} if server.password else {}),
        }
        words = " ".join(f"{name}={value}" for name, value in target.items())
        return _CONFIGURATION.format(target=words, listen_port=self._port)

    def _owner(self) -> int | None:
        """It refuses to run as root; whoever owns the server's socket may open that."""
        if os.geteuid() != 0:
            return None
        host = str(self._server.query.get("host") or "")
        return Path(host).stat().st_uid or None if host.startswith("/") else 65534

    def _answers(self) -> bool:
        assert self._process.poll() is None, (Path(self._folder.name) / "log").read_text()
        try:
            psycopg.connect(self.url("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
