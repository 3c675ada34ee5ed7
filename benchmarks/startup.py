"""What a start costs, in CPU time of the process: cron starts `effects` each minute, mostly for nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg

from benchmarks.options import Options
from benchmarks.rounds import Contender, Goal, Report, interleave
from benchmarks.servers import effects_url, sqlite_file
from benchmarks.statements import counted, logging_server
from benchmarks.systems import ours

STARTS = 5  # a round, of which the median counts
COLUMN = "CPU s"
BASELINE = "import sqlalchemy"
IMPORT_MAX, VERSION_SECONDS_MAX, DRAIN_SECONDS_MAX, STATEMENTS_MAX = 1.2, 0.15, 0.6, 12
_LEFT_OUT = ("EFFECTS_", "PYTHONDONTWRITEBYTECODE")  # an installed package is compiled once, not at each start
_COMMAND = "from effects_toolkit.command import main; main()"
_NAMES = "from effects import Done, Effects, JobType, enqueue"


def run(options: Options) -> Report:
    with _databases(options) as (sqlite, postgresql):
        drain = [_COMMAND, "work", "--drain"]
        contenders = [
            Contender(BASELINE, "", partial(_cpu_seconds, [BASELINE])),
            Contender("import effects", "", partial(_cpu_seconds, ["import effects"])),
            Contender("from effects import", "what an app begins with", partial(_cpu_seconds, [_NAMES])),
            Contender("effects --version", "", partial(_cpu_seconds, [_COMMAND, "--version"])),
            Contender("effects work --drain", "SQLite, no job", partial(_cpu_seconds, drain, sqlite)),
            Contender("effects work --drain on PostgreSQL", "no job", partial(_cpu_seconds, drain, postgresql)),
        ]
        rows = interleave(contenders, options.rounds, COLUMN, options.say)
    report = Report(
        "startup", f"CPU time of a start, median of {STARTS}", [COLUMN], rows, baseline=BASELINE, decimals=3
    )
    of = {row.name: row.median(COLUMN) for row in rows}
    report.goals = [
        Goal("import effects / import sqlalchemy", of["import effects"] / of[BASELINE], IMPORT_MAX, at_least=False),
        Goal("effects --version, s", of["effects --version"], VERSION_SECONDS_MAX, at_least=False),
        Goal("an empty drain, s", of["effects work --drain"], DRAIN_SECONDS_MAX, at_least=False),
        Goal("an empty drain, statements", _statements(options), STATEMENTS_MAX, at_least=False),
    ]
    report.notes = ["Statements: on PostgreSQL, those at the connect too, without BEGIN and COMMIT."]
    return report


@contextmanager
def _databases(options: Options) -> Iterator[tuple[str, str]]:
    """The URLs of two databases with our tables, after a first drain: schedules have run."""
    with sqlite_file() as file, options.server.database() as database:
        for url in (str(file), database):
            ours.install(url).dispose()
            _start([_COMMAND, "work", "--drain"], effects_url(url))
        yield effects_url(str(file)), effects_url(database)


def _cpu_seconds(code: Sequence[str], database: str | None = None) -> float:
    """The median of a few starts, user and system together."""
    return sorted(_start(code, database) for _ in range(STARTS))[STARTS // 2]


def _start(code: Sequence[str], database: str | None = None) -> float:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    if database is not None:
        environment |= {"EFFECTS_DATABASE_URL": database, "EFFECTS_LOG_LEVEL": "WARNING"}
    process = subprocess.Popen([sys.executable, "-c", *code], env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, code
    return usage.ru_utime + usage.ru_stime


def _statements(options: Options) -> float:
    """Of an empty drain, after one that had the schedules run."""
    with logging_server(options) as server, server.database() as database:
        log: Path | None = server.log
        assert log is not None
        ours.install(database).dispose()
        drain = partial(_start, [_COMMAND, "work", "--drain"], effects_url(database))
        drain()
        with psycopg.connect(database, autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {admin.info.dbname} SET log_statement = 'all'")
        return float(counted(log, drain).work)
