"""A primary and its standby on loopback ports, of one test alone: kill, freeze, promote, rejoin.

From the wheel, as the other tests' server. Replication is synchronous, or asynchronous and cut off at will.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from tests.support import databases, needs
from tests.support.waiting import wait_until

# A standby ends no statement that reads what it is to remove, or after half a minute on a busy machine it would.
_CONFIGURATION = """
max_connections = 100
fsync = off
dynamic_shared_memory_type = mmap
wal_log_hints = on
wal_keep_size = 512MB
max_wal_size = 512MB
hot_standby = on
max_standby_streaming_delay = -1
listen_addresses = '127.0.0.1'
"""
PLAIN = "sslmode=disable&gssencmode=disable"


class Member:
    """One server of a pair. `name` is its application_name as a standby."""

    def __init__(self, tools: Path, owner: str | None, folder: Path) -> None:
        self._tools, self._owner = tools, owner
        self.data, self.name = folder, folder.name
        self.port = _free_port()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of this server alone."""
        return f"postgresql://postgres@{self.address}/postgres?{PLAIN}"

    def run(self, tool: str, *arguments: str) -> None:
        """Run one of PostgreSQL's programs as the server's user, and expect it to succeed."""
        done = subprocess.run(
            [str(self._tools / tool), *arguments], user=self._owner, cwd="/", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{tool} failed:\n{done.stdout}"

    def start(self) -> None:
        options = f"-p {self.port} -c unix_socket_directories='' -c cluster_name={self.name}"
        self._control("-w", "-o", options, "start")

    def _control(self, *arguments: str) -> None:
        with (self.data.parent / f"{self.name}.log").open("a") as log:
            subprocess.run(
                [str(self._tools / "pg_ctl"), "-s", "-D", str(self.data), *arguments],
                user=self._owner, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=120, check=True,
            )  # fmt: skip

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run each by itself, whatever the server's defaults; the rows of the last."""
        with psycopg.connect(self.url.replace("?", "?connect_timeout=10&"), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def configure(self, **settings: str) -> None:
        """Set these, here, and wait until they hold."""
        for name, value in settings.items():
            self.sql(f"ALTER SYSTEM SET {name} = '{value}'")
        self.sql("SELECT pg_reload_conf()")
        for name, value in settings.items():
            wait_until(lambda name=name, value=value: self.sql(f"SHOW {name}") == [(value,)])

    def promote(self) -> None:
        """Make it the primary; returns once it takes writes."""
        self._control("-w", "promote")

    def signal(self, number: signal.Signals) -> None:
        """To the postmaster and all its children."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL, all of it; returns when it is gone."""
        pids = self._pids()
        self.signal(signal.SIGKILL)
        wait_until(lambda: not any(_runs(pid) for pid in pids))
        (self.data / "postmaster.pid").unlink(missing_ok=True)  # without a reaper of orphans its process seems to live

    def freeze(self) -> None:
        """SIGSTOP: its kernel still takes connections and acknowledges bytes, and nothing answers."""
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def _pids(self) -> list[int]:
        """The postmaster first, so that it cannot start others."""
        file = self.data / "postmaster.pid"
        if not file.exists():
            return []
        postmaster = int(file.read_text().splitlines()[0])
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children")
        return [postmaster, *(int(pid) for pid in (children.read_text().split() if children.exists() else ()))]


class ServerPair:
    """A primary and a standby. After `fail_over` they have changed places.

    Args:
        folder: of both; its name is short.
        synchronous: whether a commit is acknowledged only when the standby has it.
    """

    def __init__(self, folder: Path, *, synchronous: bool) -> None:
        tools, owner = databases.server_tools(folder)
        self.synchronous = synchronous
        self.primary, self.standby = (Member(tools, owner, folder / name) for name in ("one", "two"))
        self.primary.run("initdb", "-A", "trust", "-U", "postgres", "-E", "UTF8", "-N", "-D", str(self.primary.data))
        with (self.primary.data / "postgresql.conf").open("a") as configuration:
            configuration.write(_CONFIGURATION)
        self.primary.start()
        self.standby.run(
            "pg_basebackup", "-d", self._conninfo(self.primary, self.standby), "-D", str(self.standby.data),
            "-R", "-X", "stream", "-c", "fast", "--no-sync",
        )  # fmt: skip
        self.standby.start()
        self.await_standby()

    @property
    def url(self) -> str:
        """Both servers, in libpq's form."""
        return f"postgresql://postgres@{self._first},{self._second}/postgres?{PLAIN}"

    @property
    def options_url(self) -> str:
        """Both servers, in SQLAlchemy's form."""
        return f"postgresql://postgres@/postgres?host={self._first}&host={self._second}&{PLAIN}"

    @property
    def _first(self) -> str:
        return min(self.primary, self.standby, key=lambda member: member.name).address

    @property
    def _second(self) -> str:
        return max(self.primary, self.standby, key=lambda member: member.name).address

    def await_standby(self) -> None:
        """Returns when the standby streams, and commits wait for it if they are to."""
        wait_until(lambda: self._states("streaming"))
        if self.synchronous:
            self.primary.configure(synchronous_standby_names="*")
            wait_until(lambda: self._states("streaming", "sync"))

    def _states(self, *states: str) -> bool:
        rows = self.primary.sql("SELECT state, sync_state FROM pg_stat_replication")
        return any(row[: len(states)] == states for row in rows)

    def await_replay(self) -> None:
        """Returns when the standby has all that is committed by now."""
        [[position]] = self.primary.sql("SELECT pg_current_wal_insert_lsn()")
        wait_until(lambda: self.standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{position}'") == [(True,)])

    def cut_off(self) -> None:
        """From now on the standby gets nothing: what the primary commits will be lost."""
        self.standby.configure(primary_conninfo="")
        wait_until(lambda: not self.standby.sql("SELECT 1 FROM pg_stat_wal_receiver"))

    def promote(self) -> None:
        """Promote the standby; the roles change. It waits for no standby until one has rejoined."""
        if self.synchronous:
            self.standby.configure(synchronous_standby_names="")
        self.standby.promote()
        self.primary, self.standby = self.standby, self.primary

    def fail_over(self) -> None:
        """SIGKILL the primary and promote the standby."""
        self.primary.kill()
        self.promote()

    def rejoin(self) -> None:
        """The former primary, which is down, becomes the standby of the new one."""
        self.primary.sql("CHECKPOINT")
        self.standby.run(
            "pg_rewind", "-D", str(self.standby.data), "-R", "--no-sync",
            "--source-server", self._conninfo(self.primary, self.standby),
        )  # fmt: skip
        self.standby.start()
        self.await_standby()

    def close(self) -> None:
        for member in (self.primary, self.standby):
            member.kill()

    @staticmethod
    def _conninfo(source: Member, standby: Member) -> str:
        return (
            f"host=127.0.0.1 port={source.port} user=postgres dbname=postgres application_name={standby.name} "
            "sslmode=disable gssencmode=disable"
        )


@contextmanager
def server_pair(*, synchronous: bool = True) -> Iterator[ServerPair]:
    """Without the wheel: skipped at home, failed in CI."""
    folder = databases.new_folder("pair-")
    pair: ServerPair | None = None
    try:
        pair = ServerPair(folder, synchronous=synchronous)
        yield pair
    except databases.NoServerError as error:
        needs.missing(str(error))
    finally:
        if pair is not None:
            pair.close()
        databases.remove_servers(folder)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
