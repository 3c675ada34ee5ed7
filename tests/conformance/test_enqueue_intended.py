"""A job and its intent in a ledger of its own, by one statement: the same rows as by any other way, or none."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from effects import Effects, EnqueueError, NewJob
from effects.extend.jobs import insert_intended, insert_one_intended
from effects.extend.sql import Sql
from tests.support.manual_workers import row, rows, run_sql
from tests.support.scripted import EVERY_FIELD


class Intent(msgspec.Struct, frozen=True):
    """A value of each kind."""

    name: str | None
    size: int | None
    share: float | None
    sealed: bytes | None
    moment: datetime | None


def insert(sql: Sql) -> str:
    names = f"job_id, {', '.join(Intent.__struct_fields__)}"
    return f"INSERT INTO notes ({names}) SELECT {names} FROM i WHERE i.name <> :but ON CONFLICT DO NOTHING"


@pytest.fixture
def notes(app: Effects) -> Effects:
    types = ("bytea", "timestamptz") if app.store.is_postgresql else ("BLOB", "INTEGER")
    run_sql(
        app,
        "CREATE TABLE notes (job_id bigint NOT NULL, name text PRIMARY KEY, size bigint, share double precision, "
        f"sealed {types[0]}, moment {types[1]})",
    )
    return app


def note(app: Effects, name: str, **options: Any) -> int | None:
    with app.store.begin() as connection:
        return write(app, connection, Intent(name, 1, 0.5, b"s", None), **options)


def write(app: Effects, connection: Any, intent: Intent, **options: Any) -> int | None:
    job = NewJob(job_type="scripted", payload=options.pop("payload", {}), **options)
    return insert_one_intended(app, connection, job, intent, insert, {"but": "nobody"})


def stored(app: Effects) -> list[dict[str, Any]]:
    with app.store.begin() as connection:
        return [dict(row) for row in connection.exec_driver_sql("SELECT * FROM notes ORDER BY job_id").mappings()]


@pytest.mark.parametrize("options", [{}, {"run_at": EVERY_FIELD["run_at"]}, EVERY_FIELD], ids=["plain", "later", "all"])
def test_the_job_is_as_one_that_is_written_with_others(notes: Effects, options: dict[str, Any]) -> None:
    note(notes, "ann", **options)
    with notes.store.begin() as connection:
        job = NewJob(job_type="scripted", payload={}, **options)
        insert_intended(notes, connection, [job], [_Other("bob")], _insert_other)
    differ = {"id", "created_at", "updated_at"} | (set() if "run_at" in options else {"run_at", "age_from"})
    by_itself, with_others = (
        {name: value for name, value in job.items() if name not in differ} for job in rows(notes, "jobs")
    )
    assert by_itself == with_others
    assert [written["job_id"] for written in stored(notes)] == [job["id"] for job in rows(notes, "jobs")]


class _Other(msgspec.Struct, frozen=True):
    name: str


def _insert_other(sql: Sql) -> str:
    return "INSERT INTO notes (job_id, name) SELECT job_id, name FROM i"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it deletes what the one before wrote
@given(
    size=st.none() | st.integers(-(2**63), 2**63 - 1),
    share=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    sealed=st.none() | st.binary(max_size=100),
    moment=st.none() | st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_every_value_is_kept(
    notes: Effects, size: int | None, share: float | None, sealed: bytes | None, moment: datetime | None
) -> None:
    with notes.store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM notes")
        write(notes, connection, Intent("ann", size, share, sealed, moment))
    [written] = stored(notes)
    assert (written["size"], written["share"], written["sealed"]) == (size, share, sealed)
    kept = written["moment"]
    if moment is None or kept is None:
        assert moment is kept is None
    else:
        seconds = kept.timestamp() if isinstance(kept, datetime) else kept / 1000
        assert abs(seconds - moment.timestamp()) < 0.001


@pytest.mark.parametrize("name", ["ann", "nobody"], ids=["its key is taken", "its statement leaves it out"])
@pytest.mark.parametrize("options", [{}, {"group_key": "orders"}, EVERY_FIELD], ids=["plain", "grouped", "every field"])
def test_without_its_intent_there_is_no_job(notes: Effects, name: str, options: dict[str, Any]) -> None:
    first = note(notes, "ann", **options)
    assert note(notes, name, **options) is None
    assert [job["id"] for job in rows(notes, "jobs")] == [first]
    assert [written["job_id"] for written in stored(notes)] == [first]


def test_it_is_one_statement_where_each_is_a_round_trip(notes: Effects) -> None:
    statements: list[str] = []
    event.listen(notes.engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    with notes.engine.begin() as connection:
        connection.exec_driver_sql("SELECT 1")  # opens the transaction, which SQLite's files are told
        del statements[:]
        write(notes, connection, Intent("ann", None, None, None, None))
        assert len(statements) == (1 if notes.store.is_postgresql else 3), statements


def test_of_two_at_once_one_waits_and_then_leaves_it_out(notes: Effects) -> None:
    """Whichever database: the second sees what the first has committed."""
    ids: list[int | None] = []
    with notes.store.begin() as connection:
        ids.append(write(notes, connection, Intent("ann", None, None, None, None)))
        second = threading.Thread(target=lambda: ids.append(note(notes, "ann")))
        second.start()
    second.join(30)
    assert ids == [row(notes, "jobs")["id"], None]


def test_a_group_keeps_its_order(notes: Effects) -> None:
    ids = [note(notes, f"n{number}", group_key="orders") for number in range(3)]
    assert ids == sorted(job["id"] for job in rows(notes, "jobs"))
    assert row(notes, "job_groups")["group_key"] == "orders"


def test_bad_input_writes_nothing(notes: Effects) -> None:
    with pytest.raises(EnqueueError, match="priority"):
        note(notes, "ann", priority=99_999)
    assert rows(notes, "jobs") == stored(notes) == []
