"""The views for other programs: what is in each, in which columns, and nothing that is personal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Done, Effects, Refused, Retry, Unknown, enqueue
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.store.effects.requeue import resolve_unknown
from effects.store.schema.job_tables import RECENT
from tests.conftest import AppFactory
from tests.house.source import ROOT
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.scripted import Scripted

COLUMNS = {
    "effects_due": ["id", "job_type", "queue", "status", "priority", "attempts", "error_code", "due_at", "due_seconds"],
    "effects_failed": ["id", "job_type", "queue", "effect", "attempts", "error_code", "created_at", "finished_at"],
    "effects_recent": ["id", "job_type", "queue", "status", "attempts", "error_code", "created_at", "finished_at"],
}
SECRET = "rosebud"


def view(app: Effects, name: str) -> list[dict[str, Any]]:
    table = name if app.store.schema is None else f"{app.store.schema}.{name}"
    with app.store.read() as connection:
        result = connection.execute(sa.text(f"SELECT * FROM {table} ORDER BY id"))
        assert list(result.keys()) == COLUMNS[name]
        return [dict(row) for row in result.mappings()]


def statuses(app: Effects, name: str) -> dict[int, str]:
    return {row["id"]: row["status"] for row in view(app, name)}


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def ended(app: Effects, job_type: str, ending: Any, *, released: bool = False) -> int:
    worker = ManualWorker(app)
    job_id = int(enqueue(job_type, {"name": SECRET}, key=f"{SECRET}:{type(ending)}", effects=app).job_id)
    job = worker.claim_one()
    if released:
        worker.release(job)
    worker.settle((job, ending), released=released)
    return job_id


@pytest.mark.parametrize("name", COLUMNS)
def test_a_view_is_empty_without_jobs(app: Effects, name: str) -> None:
    assert view(app, name) == []


def test_a_job_is_in_the_views_of_its_state(app: Effects) -> None:
    worker = ManualWorker(app)
    dead = ended(app, "scripted", Refused(SECRET, code="gone"))
    unknown = ended(app, "held", Unknown(SECRET), released=True)
    done = ended(app, "scripted", Done())
    retrying = ended(app, "scripted", Retry(SECRET, code="busy"))
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('-5')}")
    later = int(enqueue("scripted", {}, run_at=datetime.now(UTC) + timedelta(days=1), effects=app).job_id)
    running = int(enqueue("held", {}, priority=0, effects=app).job_id)
    assert worker.claim_one().id == running
    assert statuses(app, "effects_due") == {retrying: "retrying"}
    [due] = view(app, "effects_due")
    assert (due["error_code"], due["attempts"], due["due_seconds"] >= 5) == ("busy", 1, True)
    assert {row["id"]: (row["effect"], row["error_code"]) for row in view(app, "effects_failed")} == {
        dead: ("not_done", "gone"), unknown: ("unknown", "unknown"),
    }  # fmt: skip
    assert statuses(app, "effects_recent") == {
        dead: "dead", unknown: "dead", done: "succeeded", retrying: "retrying", later: "queued", running: "running",
    }  # fmt: skip
    finished = {row["id"]: row["finished_at"] is not None for row in view(app, "effects_recent")}
    assert finished == dict.fromkeys((dead, unknown, done), True) | dict.fromkeys((retrying, later, running), False)
    assert SECRET not in str([view(app, name) for name in COLUMNS])


def test_what_is_resolved_is_no_longer_failed(app: Effects) -> None:
    unknown = ended(app, "held", Unknown("no reply"), released=True)
    assert [row["id"] for row in view(app, "effects_failed")] == [unknown]
    assert [letter.id for letter in list_dead(app.store, app.ledgers, DeadFilters())] == [unknown]
    resolve_unknown(app.store, app.job_types, app.ledgers, unknown, "mark-done", actor="ann", reason="it arrived")
    assert view(app, "effects_failed") == []


def test_times_are_those_of_the_clock(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    [due] = view(app, "effects_due")
    moment = due["due_at"] if app.store.is_postgresql else datetime.fromisoformat(f"{due['due_at']}+00:00")
    assert abs(datetime.now(UTC) - moment) < timedelta(minutes=2)


def test_recent_reads_a_bounded_number_of_finished_jobs(app: Effects) -> None:
    first, far = ended(app, "scripted", Done()), RECENT + 100
    run_sql(app, f"UPDATE effects_job_history SET id = {far} WHERE id = {first}")
    second = ended(app, "scripted", Refused("no"))
    assert second <= 100
    assert set(statuses(app, "effects_recent")) == {far}


def test_the_queries_of_the_page_answer_on_an_empty_database_too(app: Effects) -> None:
    page = (ROOT / "docs" / "plain-sql.md").read_text(encoding="utf-8")
    [queries] = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    prefix = "" if app.store.schema is None else f"{app.store.schema}."
    for query in queries.strip().splitlines():
        statement = re.sub("|".join(COLUMNS), lambda name: f"{prefix}{name[0]}", query)
        with app.store.read() as connection:
            rows = connection.execute(sa.text(statement)).all()
        assert rows == ([] if "GROUP BY" in query else [(0,)])
