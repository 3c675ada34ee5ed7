"""A system's worker in a process of its own: started, held at the line until all is imported, let go, ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

READY, GO = "ready", "go"
EXIT_SECONDS = 20
WORK_SECONDS = 300  # no measurement takes longer: a million rows of 2 KB to xlsx take the longest


class Child:
    """A running worker process that waits for `go`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def go(self) -> None:
        self._tell(GO)

    def silence(self) -> None:
        """Have a process that answers fall silent."""
        self._tell("silence")

    def _tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def line(self) -> str:
        """The next line that the process prints.

        Raises:
            RuntimeError: it ended without one.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended early with code {self._process.wait()}")
        return line.strip()

    def wait(self) -> None:
        """Until the process has ended by itself, in order."""
        self._process.wait(timeout=WORK_SECONDS)
        self.check()

    def check(self) -> None:
        """Raise if the process has failed, instead of waiting for work that will not be done."""
        if self._process.poll() not in (None, 0):
            raise RuntimeError(f"{self._process.args!r} failed with code {self._process.returncode}")


@contextmanager
def child(module: str, *arguments: str) -> Iterator[Child]:
    """Run `python -m benchmarks.systems <module>` until it is ready; end it when the block is left."""
    command = [sys.executable, "-m", "benchmarks.systems", module, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        started = Child(process)
        assert started.line() == READY
        yield started
    finally:
        process.terminate()
        try:
            process.communicate(timeout=EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def await_go() -> None:
    """In the child: say that all is imported and wait for the start."""
    print(READY, flush=True)
    if sys.stdin.readline().strip() != GO:
        raise SystemExit("the benchmark ended before it began")
