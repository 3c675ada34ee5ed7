"""SQLite: leased rows are read as one value, and one by one where a value is none that JSON can hold."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from effects import Effects, Job, NewJob, enqueue_many
from effects.store.claim import lease
from effects.store.claim.claim import PROBES_PER_ROUND
from effects.store.db.store import as_json
from effects.store.limits import key_limits as limit_rows
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.query_plans import recorded

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

TEXTS = ["", "é", 'a "quoted" \\ text', "\x01\x1f\x7f", "\u2028\ufeff", "𝄞", "x" * 60_000]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": -32_000, "max_attempts": 1000},
    {"limit_key": 'l "\\', "trace_context": '{"baggage": "a"}', "on_unknown": "hold"},
]
# Values that a plain UPDATE may write, where it passes by the checks, and no JSON holds.
UNFIT = [
    "payload = 5", "payload = 1e300", "payload = x'7b7d'", "payload = x'7b22ff227d'",
    "payload = CAST(x'7b2261223a22ff227d' AS TEXT)", "trace_context = x'00ff'", "limit_key = CAST(x'ff' AS TEXT)",
]  # fmt: skip


def leased(app: Effects, count: int) -> str:
    """The ids of all jobs, leased by a claim."""
    jobs = ManualWorker(app).claim(1024)
    assert len(jobs) == count
    return as_json([job.id for job in jobs])


def read(app: Effects, ids: str, *, one_by_one: bool) -> list[Job]:
    """The jobs as a claim reads them, or row by row; without their age, which is another at each look."""
    with app.store.read() as connection:
        if one_by_one:
            rows: Any = app.store.tuples(connection, lease._leased, ids=ids)
        else:
            rows = lease._read(app.store, connection, ids)
    return [replace(job, age_seconds=0.0, due_seconds=0.0) for job in lease.jobs_of(rows)]


def test_rows_read_as_one_value_are_those_read_one_by_one(app: Effects) -> None:
    new_jobs = [
        NewJob(job_type="scripted", payload={"moves": [text]}, key=f'"{place}"', **options)
        for place, (text, options) in enumerate(product(TEXTS, OPTIONS))
    ]
    enqueue_many(new_jobs, effects=app)
    run_sql(app, "UPDATE effects_jobs SET cancel_requested = 1, has_attempts = 1 WHERE id % 5 = 0")
    ids = leased(app, len(new_jobs))
    jobs = read(app, ids, one_by_one=False)
    assert jobs == read(app, ids, one_by_one=True)
    assert {type(flag) for job in jobs for flag in (job.routed, job.cancel_requested, job.has_attempts)} == {bool}


@pytest.mark.parametrize("unfit", UNFIT)
def test_a_value_that_no_json_holds_takes_no_other_row_along(app: Effects, unfit: str) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(3)], effects=app)
    ids = leased(app, 3)
    with app.store.begin() as connection:
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = on")
        connection.exec_driver_sql(f"UPDATE effects_jobs SET {unfit} WHERE id = 2")
        connection.exec_driver_sql("PRAGMA ignore_check_constraints = off")
    jobs = read(app, ids, one_by_one=False)
    assert jobs == read(app, ids, one_by_one=True)
    assert [job.id for job in jobs] == [1, 2, 3]
    assert type(jobs[1].payload) is str
    assert "\ufffd" not in jobs[1].payload, "a payload that is no UTF-8 must not become one that decodes"


def test_a_claim_of_nothing_reads_nothing(app: Effects) -> None:
    worker = ManualWorker(app)
    worker.request.looked = True  # at jobs that another worker took before us
    with recorded(app) as statements:
        assert worker.claim() == []
    assert not any("UPDATE" in statement or "json_array(" in statement for statement, _ in statements)


def test_a_round_that_finds_all_keys_closed_takes_no_write_lock(app: Effects) -> None:
    """More keys than one round looks at: that others remain says nothing of a job that is due."""
    keys = [f"k{number}" for number in range(2 * PROBES_PER_ROUND)]
    with app.store.begin() as connection:
        for key in keys:
            limit_rows.pause(app.store, connection, key, actor="test", create=True)
    enqueue_many([NewJob(job_type="scripted", payload={}, limit_key=key) for key in keys], effects=app)
    worker = ManualWorker(app)
    with recorded(app) as statements:
        assert [worker.claim() for _ in range(4)] == [[]] * 4
    assert not any("UPDATE" in statement or "json_group_array(id)" in statement for statement, _ in statements)
