"""A page played as its reader plays it: files written, console lines typed into one shell, their output compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import wait_until

BLOCK = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Terminal:
    """A shell in a folder. A line that ends with `&` stays in the background, and ends with the terminal."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._folder, self._log, self._typed = folder, folder / ".terminal", 0
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EFFECTS_", "PYTHON"))}
        with self._log.open("wb") as log:
            self._shell = subprocess.Popen(
                ["bash"], cwd=folder, env={**kept, **settings}, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def play(self, page: str) -> None:
        """Write each named file, and type each console block; what is shown below a line comes, in this order."""
        for kind, text in BLOCK.findall(page):
            if kind == "console":
                for line, expected in _lines(text):
                    self.type(line, expected)
            else:
                _, name = kind.split()
                (self._folder / name).write_text(text)

    def type(self, line: str, expected: list[str]) -> None:
        start, self._typed = self._log.stat().st_size, self._typed + 1
        end = f"<<{self._typed}>>"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\necho '{end}'\n".encode())
        self._shell.stdin.flush()
        pattern = re.compile(".*?".join(map(_pattern, expected)), re.DOTALL)
        try:
            wait_until(lambda: end in self._output(start) and pattern.search(self._output(start)))
        except AssertionError:
            raise AssertionError(f"{line}\nexpected: {expected}\nprinted: {self._output(start)}") from None

    def _output(self, start: int) -> str:
        return self._log.read_bytes()[start:].decode()

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait()


def _lines(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each line that is typed, with the lines that are shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, *expected = part.splitlines()
        yield line, expected


def _pattern(line: str) -> str:
    """Of a line that is shown: `…` stands for anything, spaces for more spaces."""
    return r"\s+".join(r"\S*".join(map(re.escape, word.split("…"))) for word in line.split()).replace(r"\S*\s+", ".*?")


@contextmanager
def terminal(folder: Path, settings: Mapping[str, str]) -> Iterator[Terminal]:
    opened = Terminal(folder, settings)
    try:
        yield opened
    finally:
        opened.close()
