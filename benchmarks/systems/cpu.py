"""CPU seconds of processes and of the database server, user and system (Linux)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import psycopg

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT, _OWN, _REAPED, _ALL = 1, slice(11, 13), slice(13, 15), slice(11, 15)  # of a process's line, after its name


class CpuClock:
    """Counts from its making on: these processes with the children that have ended, and the server where it is here."""

    def __init__(self, database: str, processes: Sequence[int]) -> None:
        with psycopg.connect(database) as connection:
            fields = _fields(connection.info.backend_pid)
        self._server = None if fields is None else int(fields[_PARENT])
        self._processes = processes
        self._began = self._now()

    def seconds(self) -> float:
        return self._now() - self._began

    def _now(self) -> float:
        ticks = [tick for process in self._processes for tick in (_fields(process) or [])[_ALL]]
        return sum(map(int, [*ticks, *self._of_server()])) / _TICKS

    def _of_server(self) -> list[str]:
        if self._server is None:
            return []
        processes = [_fields(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()]
        backends = [fields for fields in processes if fields is not None and int(fields[_PARENT]) == self._server]
        return [*(_fields(self._server) or [])[_REAPED], *(tick for fields in backends for tick in fields[_OWN])]


def _fields(process: int) -> list[str] | None:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
