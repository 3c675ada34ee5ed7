"""A PostgreSQL server of Debian's: an older version than the wheel's."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path

from tests.support import databases, needs

PG_CTL = "/usr/lib/postgresql/15/bin/pg_ctl"  # as `.ci/programs` has it
_CONFIGURATION = """
listen_addresses = ''
max_connections = 200
fsync = off
dynamic_shared_memory_type = mmap
full_page_writes = off
"""


def start_server(directory: Path) -> str:
    """Start it in this folder, or find the one that runs there; its URL, reachable by its socket alone.

    It ends with the run (`databases.begin_run`). Without the package: skipped at home, failed in CI.
    """
    pg_ctl = needs.program(PG_CTL)
    data = directory / "pgdata-15"
    with databases.locked(directory):
        if not (data / "postmaster.pid").exists():
            _start(pg_ctl, data)
    return f"postgresql://postgres@/postgres?host={data}"


def _start(pg_ctl: str, data: Path) -> None:
    data.mkdir(mode=0o700)
    owner = _owner(data)
    control = [pg_ctl, "-s", "-w", "-D", str(data)]
    _run([*control, "initdb", "-o", "-A trust -U postgres -E UTF8 --no-locale --no-sync"], owner)
    with (data / "postgresql.conf").open("a") as configuration:
        configuration.write(f"{_CONFIGURATION}unix_socket_directories = '{data}'\n")
    _run([*control, "-l", str(data / "server.log"), "start"], owner)


def _owner(data: Path) -> int | None:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return None
    owner = pwd.getpwnam("postgres")
    os.chown(data, owner.pw_uid, owner.pw_gid)
    return owner.pw_uid


def _run(command: list[str], owner: int | None) -> None:
    subprocess.run(command, user=owner, cwd="/", check=True, stdout=subprocess.DEVNULL, timeout=60)
