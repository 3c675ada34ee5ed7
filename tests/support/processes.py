"""Real processes to kill, freeze and stop: forked from a warm parent, so that one costs milliseconds.

The parent is multiprocessing's fork server: it has imported everything and started no thread. A child sets its
environment, points stdout and stderr at its log, and runs the `effects` command or a function of a test.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from effects.cli.main import main as effects_command
from effects.kit import crashpoints, importing
from tests.support.waiting import PATIENCE_SECONDS, wait_until

APP = "tests.support.step_jobs_app:app"
# Nothing here is as patient as the defaults: a lost worker is noticed after three seconds.
ENVIRONMENT = {
    "EFFECTS_LEASE_SECONDS": "3",
    "EFFECTS_HEARTBEAT_SECONDS": "0.3",
    "EFFECTS_POLL_SECONDS": "0.2",
    "EFFECTS_GRACE_SECONDS": "10",
    "EFFECTS_THREADS": "4",
    "EFFECTS_LOG_FORMAT": "json",
}

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "pytest",
        "tests.support.processes",
        "tests.support.step_jobs",
        "effects.cli.work",
        "effects_webhooks.wiring",
        "effects_email.wiring",
        "effects_email.oauth.service",
        "effects_email.transport.smtp.transport",
        "effects.app.late_jobs",
        "effects.app.retention",
        "effects_reports.wiring",
        "tests.support.warm",
    ]
)


class Child:
    """A process of a test, and what it wrote."""

    def __init__(self, run: Callable[..., object], arguments: Sequence[Any], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._process = _context.Process(target=_child, args=(run, tuple(arguments), dict(env), str(log)), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """None while it lives; the negative signal's number if one ended it."""
        return self._process.exitcode

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def freeze(self) -> None:
        """SIGSTOP; returns when it stands still."""
        self.send(signal.SIGSTOP)
        self.wait_frozen()

    def wait_frozen(self) -> None:
        wait_until(lambda: self.frozen or self.exit_code is not None)
        assert self.frozen, f"it ended with {self.exit_code}:\n{self.output}"

    @property
    def frozen(self) -> bool:
        """Whether it is stopped by a signal (Linux)."""
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in ("T", "t")
        except FileNotFoundError:
            return False

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its exit code.

        Raises:
            AssertionError: it is still there after `seconds`; what it wrote is in the message.
        """
        self._process.join(seconds)
        code = self.exit_code
        assert code is not None, f"still running after {seconds:g} s:\n{self.output}"
        return code

    def wait_logged(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        try:
            wait_until(lambda: text in self.output or self.exit_code is not None, seconds=seconds)
        finally:
            assert text in self.output, f"{text!r} is not in:\n{self.output}"

    def close(self) -> None:
        self.kill()
        self._process.close()


def _child(run: Callable[..., object], arguments: tuple[Any, ...], env: dict[str, str], log: str) -> None:
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    for name in [name for name in os.environ if name.startswith("EFFECTS_")]:
        del os.environ[name]
    os.environ.update(env)
    run(*arguments)


def effects(*arguments: str) -> None:
    """The console script."""
    sys.argv = ["effects", *arguments]
    effects_command()


def typed(folder: str, words: Sequence[str]) -> None:
    """What a console line runs, in its folder: `effects …`, `pytest …`, `python -c CODE …` or `python FILE …`."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    importing._by_group.cache_clear()  # which the parent has filled: a document may install a package in its folder
    program, *arguments = words
    if program == "pytest":
        sys.exit(pytest.main([*arguments, "-p", "no:cacheprovider"]))
    elif program == "effects":
        effects(*arguments)
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


@dataclass(frozen=True)
class Ended:
    """How a process ended, and what it wrote."""

    exit_code: int
    out: str
    err: str


def run_typed(folder: Path, env: Mapping[str, str], *words: object, cwd: Path, stdin: bytes = b"") -> Ended:
    """Run a console line to its end, in a process that is forked: what a start imports is there already.

    Args:
        folder: an existing one, for what goes in and comes out.
        cwd: where it runs.
    """
    streams = [folder / f"typed-{name}" for name in ("in", "out", "err")]
    streams[0].write_bytes(stdin)
    with closing(Child(_on_streams, (streams, str(cwd), list(map(str, words))), env, streams[2])) as child:
        code = child.wait()
    out, err = (stream.read_text() if stream.exists() else "" for stream in streams[1:])
    for stream in streams:
        stream.unlink(missing_ok=True)
    return Ended(code, out, err)


def _on_streams(streams: Sequence[Path], cwd: str, words: Sequence[str]) -> None:
    os.dup2(os.open(streams[0], os.O_RDONLY), 0)
    os.dup2(os.open(streams[1], os.O_WRONLY | os.O_CREAT, 0o600), 1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - multiprocessing has closed it
    typed(cwd, words)


def with_crash_point(run: Callable[..., object], *arguments: Any) -> None:
    """A function of a test, under the plan in EFFECTS_CRASHPOINT."""
    crashpoints.install_from_environment()
    run(*arguments)


class Fleet:
    """The processes of one test."""

    def __init__(self, database_url: str, folder: Path) -> None:
        self.database_url = database_url
        self._folder = folder
        self._children: list[Child] = []

    def start(self, run: Callable[..., object], *arguments: Any, **env: str) -> Child:
        log = self._folder / f"process-{len(self._children)}.log"
        settings = {**ENVIRONMENT, "EFFECTS_DATABASE_URL": self.database_url, **env}
        self._children.append(Child(run, arguments, settings, log))
        return self._children[-1]

    def worker(self, *options: str, app: str = APP, **env: str) -> Child:
        """`effects work`; returns at once."""
        return self.start(effects, "--app", app, "work", *options, **env)

    def close(self) -> None:
        for child in self._children:
            child.close()


@contextmanager
def fleet(database_url: str, folder: Path) -> Iterator[Fleet]:
    workers = Fleet(database_url, folder)
    try:
        yield workers
    finally:
        workers.close()
