"""Worker processes with a wrong wall clock and a right monotonic one, as on a host without time synchronization."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from tests.support import needs
from tests.support.processes import APP, ENVIRONMENT

# The loader puts in the machine's own library folder for $LIB.
_LIBRARY = "/usr/$LIB/faketime/libfaketime.so.1"


class WrongClock:
    """`effects` with these arguments, under libfaketime.

    Args:
        by: how wrong, in the library's words: `-1h`, `+5m`.
        log: where its standard error goes.
    """

    def __init__(self, by: str, database_url: str, log: Path, *arguments: str, **env: str) -> None:
        needs.program("faketime")
        self._log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [str(Path(sys.executable).with_name("effects")), "--app", APP, *arguments],
                stdout=subprocess.PIPE, stderr=file, text=True, env=_environment(by, database_url, env),
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def first_log_time(self) -> float | None:
        """What it took for the time when it wrote its first line, in seconds since 1970."""
        lines = self.log.splitlines()
        return datetime.fromisoformat(json.loads(lines[0])["time"]).timestamp() if lines else None

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def _environment(by: str, database_url: str, env: Mapping[str, str]) -> dict[str, str]:
    return {
        **os.environ,
        **ENVIRONMENT,
        "EFFECTS_DATABASE_URL": database_url,
        "LD_PRELOAD": _LIBRARY,
        "FAKETIME": by,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        **env,
    }
