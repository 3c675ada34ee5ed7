"""The command as a user runs it: in this process for speed, in one of its own where that matters."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from click.testing import CliRunner

from effects.cli.main import cli
from effects.kit.logs import QUIET, StderrHandler
from tests.support.log_lines import unconfigured_logging
from tests.support.processes import run_typed

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
    loggers = [logging.getLogger(name) for name in (None, "effects", "effects.worker", *QUIET)]
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
        return effects(*arguments, database_url=url)

    return invoke


def effects(*arguments: object, database_url: str | None = None) -> Answer:
    """`effects …` in this process."""
    env = {"EFFECTS_DATABASE_URL": database_url} if database_url else {}
    with unconfigured_logging():
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], env=env, prog_name="effects")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def environment(database_url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "EFFECTS_DATABASE_URL": database_url, "EFFECTS_POLL_SECONDS": "0.1", **more}


@pytest.fixture
def process(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`effects …` in a process of its own, run to its end."""
    streams = tmp_path_factory.mktemp("streams")

    def invoke(*arguments: object, cwd: Path = ROOT, **env: str) -> Answer:
        done = run_typed(streams, environment(database_url, **env), "effects", *arguments, cwd=cwd)
        return Answer(done.exit_code, done.out, done.err)

    return invoke


COMMAND = [sys.executable, "-c", "from effects.cli.main import main; main()"]
