"""Anything that a role with INSERT may write: behind each row a good job ends done, and no command fails at it.

Once as the constraints let it through, and once with the constraints off, as in a file that another program wrote.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import pytest
from sqlalchemy import Connection, create_engine, inspect
from sqlalchemy.exc import DBAPIError

from effects import Attempt, Done, Effects, JobType, Outcome, Sensitive, enqueue
from effects.cli.main import cli
from effects.store.claim.invalid_rows import rescue_valid
from effects.worker import Worker
from tests.cli.conftest import Answer, effects
from tests.conftest import AppFactory
from tests.support.log_lines import LogLines, log_lines
from tests.support.odd_rows import SECRET, OddRow, odd_rows
from tests.support.sampling import sample

ACTING = {"work", "init", "prune", "retry", "cancel"}
SAMPLED = 24
SHOWN = 4  # rows whose own commands are run
ABOUT_ONE = (
    ("jobs", "show"), ("jobs", "show", "--json"), ("why",), ("why", "--json"), ("cancel",), ("retry",),
)  # fmt: skip
KEYS = "k=" + "A" * 43 + "="


class Code(msgspec.Struct):
    code: Annotated[str, Sensitive] = ""


class Odd(JobType[Code]):
    """What the odd rows are for."""

    name = "odd"
    payload = Code

    def perform(self, payload: Code, attempt: Attempt) -> Outcome:
        return Done()


class Good(JobType[dict]):  # type: ignore[type-arg]
    """Neighbours; each must be done."""

    name = "good"

    def __init__(self) -> None:
        self.done: set[int] = set()

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Outcome:
        self.done.add(payload["number"])
        return Done()


@pytest.fixture
def log() -> Iterator[LogLines]:
    with log_lines("effects") as collected:
        yield collected


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "unchecked"])
def test_no_row_stops_a_worker_or_a_command(
    checked: bool,
    app_factory: AppFactory,
    database_url: str,
    log: LogLines,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EFFECTS_EMAIL_TEMPLATES", str(tmp_path))
    good = Good()
    app = app_factory(job_types=[Odd(), good], threads=4, keys=KEYS)
    written = sample(odd_rows(app.store.tables["jobs"], postgresql=app.store.is_postgresql), SAMPLED)
    accepted = insert(app, database_url, written, checked=checked)
    while rescue_valid(app.store, app.job_types, app.ledgers, lease_seconds=30).accepted:
        pass
    result = Worker(app).drain(max_seconds=max(60, len(written) / 10))
    assert result.exit_code in (0, 1), f"the worker ended with {result.exit_code} behind {accepted}"
    assert len(good.done) == len(written), f"not done: {set(range(len(written))) - good.done} of {written}"
    said = "".join(log.lines) + "".join(capfd.readouterr())
    for answer in run_commands(app, database_url):
        said += answer.out + answer.err
    assert SECRET not in said + "".join(capfd.readouterr())


def insert(app: Effects, url: str, written: Sequence[OddRow], *, checked: bool) -> list[str]:
    """Each odd row by plain SQL, and behind it a good job; those rows that the database took."""
    table, accepted = app.store.sql.jobs, []
    past = "now() - interval '1 hour'" if app.store.is_postgresql else "0"
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if not checked:
            turn_checks_off(app, connection)
        role = become_writer(app, connection)
        for number, row in enumerate(written):
            try:
                connection.exec_driver_sql(row.insert(table, past).replace("%", "%%"))
                accepted.append(str(row))
            except (DBAPIError, OverflowError):
                pass
            enqueue("good", {"number": number}, effects=app)
        if role:
            connection.exec_driver_sql(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    engine.dispose()
    return accepted


def turn_checks_off(app: Effects, connection: Connection) -> None:
    if not app.store.is_postgresql:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        return
    for check in inspect(connection).get_check_constraints("effects_jobs"):
        connection.exec_driver_sql(f"ALTER TABLE effects_jobs DROP CONSTRAINT {check['name']}")


def become_writer(app: Effects, connection: Connection) -> str | None:
    """PostgreSQL: a role that may insert, with every column but the id."""
    if not app.store.is_postgresql:
        return None
    role = f"writer_{uuid.uuid4().hex}"
    columns = ", ".join(column.name for column in app.store.tables["jobs"].columns if column.name != "id")
    connection.exec_driver_sql(
        f"CREATE ROLE {role}; GRANT INSERT ({columns}) ON effects_jobs TO {role}; "
        f"GRANT USAGE ON SEQUENCE effects_jobs_id_seq TO {role}; SET ROLE {role}"
    )
    return role


def run_commands(app: Effects, url: str) -> Iterator[Answer]:
    """Every command that lists or shows, on the database as it is; those about one job for some of the odd ones."""
    for path in looking(cli, ()):
        for form in ((), ("--json",)):
            answer = effects("--database-url", url, *path, *form)
            assert "error:" not in answer.err, f"{path} ended with {answer.exit_code}: {answer.err}"
            yield answer
    for job_id in sample(odd_ids(app), SHOWN):
        for command in ABOUT_ONE:
            answer = effects("--database-url", url, *command, "--", job_id)
            assert "its text may hold values" not in answer.err, (
                f"{command} {job_id} ended with {answer.exit_code}: {answer.err}"
            )
            yield answer
    answer = effects("--database-url", url, "prune")
    assert answer.exit_code == 0, answer.err
    yield answer


def odd_ids(app: Effects) -> list[int]:
    """Read without what the rows hold."""
    odd = "WHERE job_type <> 'good' AND id > 0"
    jobs, history = app.store.sql.jobs, app.store.sql.job_history
    with app.store.read() as connection:
        result = connection.exec_driver_sql(f"SELECT id FROM {jobs} {odd} UNION ALL SELECT id FROM {history} {odd}")
        return sorted(row.id for row in result)


def looking(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The commands that only look and need to be told nothing, found by walking the tree."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from looking(inner, (*path, name))
        return
    options = {option for parameter in command.params for option in parameter.opts}
    required = any(parameter.required for parameter in command.params)
    if not required and "--json" in options and (path[-1] == "list" or len(path) == 1) and path[-1] not in ACTING:
        yield path
