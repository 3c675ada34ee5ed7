"""One row that no statement can work with: it ends alone, dead as `row_invalid`; and what no INSERT gets past."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

import msgspec
import pytest
from sqlalchemy.exc import IntegrityError

from effects import Attempt, Done, Effects, JobType, Outcome, Sensitive, enqueue
from effects.errors import StoreRejected
from effects.kit.moments import LAST
from effects.operate.evidence import job_evidence
from effects.operate.tables.audit import audit
from effects.operate.tables.job_list import Filters, list_jobs
from effects.store.claim.invalid_rows import claim_valid, find_faulty, rescue_valid
from effects.store.db.faults import Fault
from effects.worker import Worker
from tests.cli.conftest import effects as command
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, run_sql

KEYS = "k=" + "A" * 43 + "="
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def break_row(app: Effects, job_id: int) -> None:
    """Make an attempt impossible to count, past the checks."""
    if app.store.is_postgresql:
        run_sql(app, "ALTER TABLE effects_jobs DROP CONSTRAINT ck_effects_jobs_counts")
        run_sql(app, f"UPDATE effects_jobs SET attempts = 2147483647, lost_count = 2147483647 WHERE id = {job_id}")
        return
    with app.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
        connection.exec_driver_sql(f"UPDATE effects_jobs SET attempts = x'ff', lost_count = 'many' WHERE id = {job_id}")
        connection.commit()
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = OFF")


def test_a_claim_that_fails_is_narrowed_down(app: Effects) -> None:
    jobs = [enqueue("scripted", {}, effects=app).job_id for _ in range(3)]
    break_row(app, jobs[1])
    manual_worker = ManualWorker(app)
    first = claim_valid(app.store, app.ledgers, manual_worker.request, manual_worker.name, 512)
    assert (first.jobs, first.more) == ([], True)
    assert [job.id for job in manual_worker.claim()] == [jobs[0], jobs[2]]
    assert job_evidence(app, jobs[1]).facts.jobs[0].error_code == "row_invalid"


def test_one_row_among_many_ends_alone(app: Effects) -> None:
    jobs = [enqueue("scripted", {"name": str(number)}, key=f"k{number}", effects=app).job_id for number in range(40)]
    break_row(app, jobs[7])
    assert Worker(app).drain(max_seconds=60).counts == {"succeeded": 39}
    facts = job_evidence(app, jobs[7]).facts
    assert (facts.jobs[0].status, facts.jobs[0].error_code, facts.ledger_state) == ("dead", "row_invalid", "refused")
    assert [attempt.verdict for attempt in facts.attempts] == ["not_done"]
    assert {finding.check for finding in audit(app.store, app.ledgers)} <= {
        "attempts_logged",
        "attempts_fenced",
    }  # its own count is what is wrong


def test_an_invalid_running_row_ends_alone_and_its_effect_is_unknown(app: Effects) -> None:
    jobs = [enqueue("scripted", {"name": str(number)}, key=f"k{number}", effects=app).job_id for number in range(5)]
    run_sql(app, "UPDATE effects_jobs SET status = 'running', locked_by = 'gone', attempts = 1, lease_token = 1")
    break_row(app, jobs[2])
    accepted = rescue_valid(app.store, app.job_types, app.ledgers, lease_seconds=30).accepted
    assert {settlement.job.id for settlement in accepted} == set(jobs) - {jobs[2]}
    facts = job_evidence(app, jobs[2]).facts
    assert (facts.jobs[0].status, facts.jobs[0].error_code, facts.ledger_state) == ("dead", "row_invalid", "unknown")


def test_the_search_bisects() -> None:
    sizes: list[int] = []

    def trial(ids: list[int]) -> Exception | None:
        sizes.append(len(ids))
        return ValueError() if {17, 300} & set(ids) else None

    assert [job_id for job_id, _ in find_faulty(list(range(512)), trial)] == [17, 300]  # type: ignore[arg-type]
    assert len(sizes) < 40


@pytest.mark.parametrize(("losses", "ended"), [(2, []), (1000, [17])], ids=["a network that comes and goes", "the row"])
def test_a_row_is_to_blame_for_a_lost_connection_only_each_time(losses: int, ended: list[int]) -> None:
    left = iter(range(losses))

    def trial(ids: Sequence[int]) -> Exception | None:
        lost = ids == [17] and next(left, None) is not None
        return StoreRejected("lost", fault=Fault.LOST) if lost or (17 in ids and len(ids) > 1) else None

    assert [job_id for job_id, _ in find_faulty(list(range(64)), trial)] == ended


def test_a_conflict_between_rows_ends_no_job(app: Effects) -> None:
    """Of two jobs of a group neither is at fault where both cannot run."""
    jobs = [enqueue("scripted", {}, group_key="g", effects=app).job_id for _ in range(2)]
    break_row(app, enqueue("scripted", {}, effects=app).job_id)
    assert Worker(app).drain().counts == {"succeeded": 2}
    assert {job_evidence(app, job_id).facts.jobs[0].status for job_id in jobs} == {"succeeded"}


class Login(msgspec.Struct):
    user: str
    code: Annotated[str, Sensitive]


class Odd(msgspec.Struct):
    user: str = ""

    def __post_init__(self) -> None:
        raise KeyError(self.user)


class Plain(JobType[Login]):
    name = "login.send"
    payload = Login

    def perform(self, payload: Login, attempt: Attempt) -> Outcome:
        return Done()


class Raising(JobType[Odd]):
    name = "odd.decode"
    payload = Odd

    def perform(self, payload: Odd, attempt: Attempt) -> Outcome:
        return Done()


@on_sqlite
def test_a_payload_in_another_encoding_ends_alone_and_is_printed_nowhere(
    app_factory: AppFactory, database_url: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    app = app_factory(job_types=[Plain()], keys=KEYS)
    latin = '{"user":"José","code":"TOP-SECRET-42"}'.encode("latin-1").hex()
    run_sql(app, f"INSERT INTO effects_jobs (job_type, payload) VALUES ('login.send', CAST(x'{latin}' AS TEXT))")
    run_sql(app, """INSERT INTO effects_jobs (job_type, payload) VALUES ('login.send', '{"user":"a","code":"b"}')""")
    assert Worker(app).drain().counts == {"dead": 1, "succeeded": 1}
    answer = command("--database-url", database_url, "jobs", "show", "1")
    assert "payload_invalid" in answer.out
    printed = capfd.readouterr()
    assert "TOP-SECRET" not in printed.out + printed.err + caplog.text + answer.out + answer.err


@on_sqlite
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("priority", "'high'"), ("run_at", "'tomorrow'"), ("attempts", "1.5"), ("payload", "'{broken'"),
        ("payload", "x'7b7d'"), ("queue", "x'ff'"), ("routed", "2"), ("lease_token", "9223372036854775807"),
        ("id", "9223372036854775807"), ("id", "-1"), ("last_error", "x'00'"), ("group_key", "CAST(x'610062' AS TEXT)"),
    ],
)  # fmt: skip
def test_sqlite_refuses_a_value_of_another_kind(app: Effects, column: str, value: str) -> None:
    with pytest.raises(IntegrityError, match=r"CHECK constraint failed|far behind the newest"):
        run_sql(app, f"INSERT INTO effects_jobs (job_type, {column}) VALUES ('scripted', {value})")


@pytest.mark.parametrize("column", ["queue", "group_key", "limit_key", "idempotency_key", "quarantined_from"])
def test_an_empty_or_endless_key_is_refused(app: Effects, column: str) -> None:
    for value in ("", "k" * 256):
        with pytest.raises(IntegrityError):
            run_sql(app, f"INSERT INTO effects_jobs (job_type, {column}) VALUES ('scripted', :value)", value=value)


@on_postgresql
@pytest.mark.parametrize("column", ["run_at", "age_from", "expires_at", "started_at"])
def test_an_infinite_time_is_refused(app: Effects, column: str) -> None:
    for value in ("infinity", "-infinity", "10000-01-01", "4713-01-01 BC"):
        with pytest.raises(IntegrityError):
            run_sql(app, f"INSERT INTO effects_jobs (job_type, {column}) VALUES ('scripted', '{value}')")


@on_postgresql
def test_times_that_python_lacks_are_shown_as_unreadable(app: Effects, database_url: str) -> None:
    enqueue("scripted", {}, key="k", effects=app)
    run_sql(app, "UPDATE effects_jobs SET created_at = 'infinity', slot = '-infinity', updated_at = '294276-01-01'")
    assert [job.created_at for job in list_jobs(app.store, app.ledgers, Filters()).jobs] == [LAST]
    for arguments in (("jobs", "list"), ("jobs", "show", "1"), ("jobs", "list", "--json"), ("why", "k"), ("status",)):
        assert command("--database-url", database_url, *arguments).exit_code == 0


@pytest.mark.parametrize(
    "value",
    [
        {"rate_tokens": 5, "rate_period_seconds": 0, "rate_burst": 1}, {"rate_tokens": 5}, {"breaker_after": 3},
        {"rate_tokens": 5, "rate_period_seconds": 1e300, "rate_burst": 1}, {"max_in_flight": 0},
        {"breaker_after": 3, "breaker_seconds": -1.0}, {"tokens": 1e300}, {"paused_seconds": -1.0}, {"limit_key": ""},
    ],
    ids="-".join,
)  # fmt: skip
def test_a_limit_that_cannot_be_calculated_with_is_refused(app: Effects, value: dict[str, object]) -> None:
    row = {"limit_key": "k", **value}
    names = ", ".join(row)
    with pytest.raises(IntegrityError):
        run_sql(app, f"INSERT INTO effects_limits ({names}) VALUES ({', '.join(f':{name}' for name in row)})", **row)


SEALS = [
    '{"$sealed": 5}', '{"$sealed": null}', '{"$sealed": []}', '{"$sealed": {"key": "k"}}',
    '{"$sealed": {"key": "k", "value": 7}}', '{"$sealed": {"key": "k", "value": "no base64"}}',
    '{"$sealed": {"key": "k", "value": "AAAA"}}', '{"$sealed": {"key": "k", "value": "\\u00e9"}}',
]  # fmt: skip
DEEP = "[" * 5000 + "]" * 5000


def test_payloads_that_can_never_work_end_at_once(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Plain(), Raising()], keys=KEYS)
    planted = [("login.send", text) for text in (*SEALS, "[]")] + [("odd.decode", "{}")]
    if app.store.is_postgresql:  # SQLite's own parser takes no such depth, and its checks no number
        planted += [("login.send", "5"), ("login.send", DEEP)]
    for job_type, text in planted:
        value = "CAST(:payload AS jsonb)" if app.store.is_postgresql else ":payload"
        statement = f"INSERT INTO effects_jobs (job_type, payload) VALUES (:job_type, {value})"
        run_sql(app, statement, job_type=job_type, payload=text)
    result = Worker(app).drain()
    codes = {job.error_code for job in list_jobs(app.store, app.ledgers, Filters()).jobs}
    assert (result.counts.keys(), codes) == ({"dead"}, {"payload_invalid"})


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_job_type_in_bytes_keeps_no_worker_from_starting(app_factory: AppFactory) -> None:
    app = app_factory()
    with closing(sqlite3.connect(str(app.engine.url.database))) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("INSERT INTO effects_jobs (job_type) VALUES (x'7061636b')")
    assert Worker(app).drain(10).counts == {}
