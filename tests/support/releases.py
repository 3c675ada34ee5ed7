"""Later releases, made from this tree: a copy of the core with migrations and code of its own, beside this one.

This tree is release N. `NEXT` adds columns, of which its workers write one, and an index that is built beside workers,
and no longer uses a column of N's. `AFTER_NEXT` takes that one away: the next one's code works with it, N's does not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.processes import ENVIRONMENT

ROOT = Path(__file__).parents[2]
VERSIONS = Path("effects/store/migrations/versions")
_COMMAND = "from effects.cli.main import main; main()"

EXPAND = '''
"""A column that old code does not know."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "core_0002", "core_0001", None, None
oldest_code = "core_0001"


def upgrade() -> None:
    op.add_column("effects_workers", sa.Column("zone", sa.Text(), server_default="", nullable=False))
'''
INDEX = '''
"""An index on a table that may be large."""

from alembic import op

from effects.extend.rows import create_index_online

revision, down_revision, branch_labels, depends_on = "core_0003", "core_0002", None, None
oldest_code = "core_0001"
online = True


def upgrade() -> None:
    create_index_online(op, "ix_effects_job_history_queue", "effects_job_history", ["queue", "id"])
'''
HOT = '''
"""A column of the table that every worker claims from."""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "core_0004", "core_0003", None, None
oldest_code = "core_0001"


def upgrade() -> None:
    op.add_column("effects_jobs", sa.Column("channel", sa.Text(), server_default="main", nullable=False))
'''
CONTRACT = '''
"""What only the release before the last one needs."""

from alembic import op

revision, down_revision, branch_labels, depends_on = "core_0005", "core_0004", None, None
oldest_code = "core_0004"


def upgrade() -> None:
    op.drop_column("effects_workers", "oldest_unsettled_seconds")
'''
_WORKERS_ROW = "effects/store/workers.py"
_NEW_CODE = {
    _WORKERS_ROW: {
        "(id, host, pid, version, revisions,": "(id, zone, host, pid, version, revisions,",
        "VALUES (:id, :host,": "VALUES (:id, 'next', :host,",
        ",\n        oldest_unsettled_seconds = :oldest_unsettled_seconds": "",
    },
    "effects/store/enqueue/new_rows.py": {'"routed": "true"}': '"routed": "true", "channel": "\'main\'"}'},
}


@dataclass(frozen=True)
class Sources:
    """What makes a release another one. `changes`: file → text → what it becomes."""

    version: str
    revisions: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


NEXT = Sources("99.1", {"core_0002": EXPAND, "core_0003": INDEX, "core_0004": HOT}, _NEW_CODE)
AFTER_NEXT = Sources("99.2", {**NEXT.revisions, "core_0005": CONTRACT}, _NEW_CODE)


class Release:
    """Commands of another release, each in a process of its own that imports its copy of the core."""

    def __init__(self, folder: Path, sources: Sources, database_url: str) -> None:
        self._folder, self._database_url = folder, database_url
        self._workers: list[subprocess.Popen[str]] = []
        shutil.copytree(ROOT / "effects", folder / "effects", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "effects" / "version.py").write_text(f'"""Another release."""\n\nVERSION = "{sources.version}"\n')
        for name, text in sources.revisions.items():
            (folder / VERSIONS / f"{name}.py").write_text(text)
        for path, changes in sources.changes.items():
            text = (folder / path).read_text()
            for before, after in changes.items():
                assert before in text, f"{path} no longer has {before!r}"
                text = text.replace(before, after)
            (folder / path).write_text(text)

    def start(self, *arguments: str, program: str = _COMMAND, **env: str) -> subprocess.Popen[str]:
        """`effects …`, or another program; returns at once. Its output is in `output_of`."""
        log = (self._folder / f"{len(self._workers)}.log").open("w")
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments], cwd=self._folder, stdout=log, stderr=log, text=True,
            env={**os.environ, **ENVIRONMENT, "EFFECTS_DATABASE_URL": self._database_url,
                 "PYTHONPATH": os.pathsep.join(map(str, (self._folder, ROOT))), **env},
        )  # fmt: skip
        log.close()
        self._workers.append(process)
        return process

    def output_of(self, process: subprocess.Popen[str]) -> str:
        return (self._folder / f"{self._workers.index(process)}.log").read_text()

    def run(self, *arguments: str, **env: str) -> tuple[int, str]:
        """`effects …`; its exit code and what it wrote."""
        return self._end_of(self.start(*arguments, **env))

    def run_program(self, program: str, **env: str) -> tuple[int, str]:
        """The same for an application's code."""
        return self._end_of(self.start(program=program, **env))

    def _end_of(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        code = process.wait(timeout=120)
        return code, self.output_of(process)

    def close(self) -> None:
        for process in self._workers:
            if process.poll() is None:
                process.kill()
            process.wait()


@contextmanager
def release(sources: Sources, database_url: str, folder: Path) -> Iterator[Release]:
    """Its processes end with the block."""
    copied = Release(folder / sources.version, sources, database_url)
    try:
        yield copied
    finally:
        copied.close()
