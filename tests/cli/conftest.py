"""The command as a user runs it: in this process for speed, in one of its own where that matters."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner

from effects.cli.main import cli
from effects.logs import QUIET, StderrHandler

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it printed."""

    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run: TypeAlias = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """A command sets up logging for its process; a test must not leave that to the next."""
    loggers = [logging.getLogger(name) for name in (None, "effects.worker", *QUIET)]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    for handler in [handler for handler in loggers[0].handlers if isinstance(handler, StderrHandler)]:
        loggers[0].removeHandler(handler)


@pytest.fixture
def run(database_url: str) -> Run:
    """`effects …` on the test's database, or on another `url`, or on none."""

    def invoke(*arguments: object, url: str | None = database_url) -> Answer:
        return effects(*(["--database-url", url] if url else []), *arguments)

    return invoke


def effects(*arguments: object) -> Answer:
    """`effects …` in this process."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="effects")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def environment(database_url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "EFFECTS_DATABASE_URL": database_url, "EFFECTS_POLL_SECONDS": "0.1", **more}


@pytest.fixture
def process(database_url: str) -> Run:
    """`effects …` in a process of its own, run to its end."""

    def invoke(*arguments: object, cwd: Path = ROOT, **env: str) -> Answer:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            cwd=cwd,
            env=environment(database_url, **env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return invoke


COMMAND = [sys.executable, "-c", "from effects.cli.main import main; main()"]
