"""A page played as its reader plays it: files written, console lines typed into one shell, their output compared."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.processes import Child, typed
from tests.support.waiting import wait_until

BLOCK = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


# A line without anything that a shell reads: a command of ours, or a program in the folder.
PLAIN = re.compile(r"""(?:effects|python) (?!-)[^&|<>;$`'\\*?~(){}\[\]#]+""")


class Terminal:
    """A shell in a folder. A line that ends with `&` stays in the background, and ends with the terminal.

    Args:
        forks: whether plain lines run in processes that are forked, with the shell's environment: what a start imports
            is there already. Else the shell runs them, and its PATH says what they are.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str], *, forks: bool = False) -> None:
        self._folder, self._log, self._typed, self._forks = folder, folder / ".terminal", 0, forks
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("EFFECTS_", "PYTHON"))}
        with self._log.open("ab") as log:  # as forked ones do
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
        start = self._log.stat().st_size
        if self._forks and PLAIN.fullmatch(line):
            end = ""
            with closing(Child(typed, (str(self._folder), shlex.split(line)), self._environment(), self._log)) as child:
                child.wait()
        else:
            end = self._say(line)
        pattern = re.compile(".*?".join(map(_pattern, expected)), re.DOTALL)
        try:
            wait_until(lambda: end in self._output(start) and pattern.search(self._output(start)))
        except AssertionError:
            raise AssertionError(f"{line}\nexpected: {expected}\nprinted: {self._output(start)}") from None

    def _say(self, line: str) -> str:
        """Type a line into the shell; what it prints once that has ended."""
        self._typed += 1
        end = f"<<{self._typed}>>"
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"{line}\necho '{end}'\n".encode())
        self._shell.stdin.flush()
        return end

    def _environment(self) -> dict[str, str]:
        """What the shell has exported."""
        written, start = self._folder / ".environment", self._log.stat().st_size
        end = self._say(f"env -0 > {written.name}")
        wait_until(lambda: end in self._output(start))
        return dict(entry.split("=", 1) for entry in written.read_text().split("\0") if entry)

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
def terminal(folder: Path, settings: Mapping[str, str], *, forks: bool = False) -> Iterator[Terminal]:
    opened = Terminal(folder, settings, forks=forks)
    try:
        yield opened
    finally:
        opened.close()
