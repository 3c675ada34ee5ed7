"""A PostgreSQL server of one test alone, to crash."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import databases, needs


class OwnServer:
    """From the wheel. Its folder has a short name, or its socket would not fit into it."""

    def __init__(self, directory: Path) -> None:
        self._server = databases.wheel_server(directory)
        self.url = str(self._server.get_uri())
        self._is_down = False

    def crash(self) -> None:
        """It goes down, recovers and answers again."""
        self._control("restart", "-m", "immediate")

    def go_down(self) -> None:
        """An immediate shutdown: every backend is gone at once, unflushed."""
        self._control("stop", "-m", "immediate")
        self._is_down = True

    def come_back(self) -> None:
        """If it is down, recover and answer again."""
        if self._is_down:
            self._control("restart")  # `start` would forget the options it was started with
            self._is_down = False

    def _control(self, *command: str) -> None:
        pg_ctl = [str(self._server.bin_path / "pg_ctl"), "-w", "-D", str(self._server.pgdata)]
        subprocess.run(
            [*pg_ctl, "-l", str(self._server.log), *command],
            user=self._server.system_user,  # PostgreSQL refuses to run as root
            check=True, stdout=subprocess.DEVNULL, timeout=60,
        )  # fmt: skip


@contextmanager
def own_server() -> Iterator[OwnServer]:
    """Without the wheel: skipped at home, failed in CI."""
    directory = databases.new_folder("own-")
    try:
        yield OwnServer(directory)
    except databases.NoServerError as error:
        needs.missing(str(error))
    finally:
        databases.remove_servers(directory)
