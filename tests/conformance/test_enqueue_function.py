"""`effects_enqueue(…)` for a role that may do nothing else: its jobs run, and its arguments are checked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy.engine import make_url

from effects import Effects, IdempotencyConflict, enqueue
from effects.store.migrations import migrate
from effects.worker import Worker
from tests.support import databases
from tests.support.manual_workers import row, rows
from tests.support.scripted import Scripted


@pytest.fixture(params=["public", "schema"])
def writer(request: pytest.FixtureRequest, postgresql_server: str) -> Iterator[tuple[Effects, psycopg.Connection]]:
    """An app, and the connection of a role that has EXECUTE on the function and USAGE of its schema."""
    schema = "effects_own" if request.param == "schema" else None
    role = f"writer_{uuid.uuid4().hex}"
    with databases.postgresql_database(postgresql_server) as url:
        app = Effects(url, job_types=[Scripted()], schema=schema)
        migrate.init(app.store)
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(plain, autocommit=True) as connection:
            function = f"{schema or 'public'}.effects_enqueue"
            connection.execute(f"CREATE ROLE {role}")
            connection.execute(f"GRANT USAGE ON SCHEMA {schema or 'public'} TO {role}")
            connection.execute(f"GRANT EXECUTE ON FUNCTION {function} TO {role}")
            connection.execute(f"SET ROLE {role}; SET search_path = {schema or 'public'}")
            yield app, connection
            connection.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
        app.dispose()


Writer = tuple[Effects, psycopg.Connection]


def call(connection: psycopg.Connection, arguments: str) -> int:
    answer = connection.execute(f"SELECT effects_enqueue({arguments})").fetchone()
    assert answer is not None
    return int(answer[0])


@pytest.mark.slow
def test_a_role_with_nothing_else_enqueues(writer: Writer) -> None:
    app, connection = writer
    job_id = call(connection, """'scripted', '{"name": "x"}', group_key => 'g', limit_key => 'l', max_attempts => 2""")
    assert Worker(app).drain().counts == {"succeeded": 1}
    ended = row(app, "job_history")
    assert (ended["id"], ended["group_key"], ended["limit_key"], ended["max_attempts"]) == (job_id, "g", "l", 2)


@pytest.mark.slow
def test_it_may_do_nothing_else(writer: Writer) -> None:
    for statement in (
        "INSERT INTO effects_jobs (job_type) VALUES ('scripted')",
        "SELECT * FROM effects_jobs",
        "DELETE FROM effects_effect_ledger",
        "SELECT nextval('effects_jobs_id_seq')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer[1].execute(statement)


@pytest.mark.slow
def test_calling_it_needs_a_grant(writer: Writer) -> None:
    app, connection = writer
    third_party = f"third_party_{uuid.uuid4().hex}"
    schema = app.store.schema or "public"
    connection.execute(f"RESET ROLE; CREATE ROLE {third_party}; GRANT USAGE ON SCHEMA {schema} TO {third_party}")
    connection.execute(f"SET ROLE {third_party}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        call(connection, "'scripted'")
    connection.execute(f"RESET ROLE; DROP OWNED BY {third_party}; DROP ROLE {third_party}")


@pytest.mark.slow
def test_a_key_is_one_effect(writer: Writer) -> None:
    app, connection = writer
    first = call(connection, """'scripted', '{"name": "x"}', key => 'k'""")
    assert call(connection, """'scripted', '{"name":"x"}', 'k'""") == first
    with pytest.raises(psycopg.errors.UniqueViolation, match="another payload"):
        call(connection, """'scripted', '{"name": "y"}', 'k'""")
    assert enqueue("scripted", {"name": "x"}, key="k", effects=app).job_id == first
    Worker(app).drain()
    assert call(connection, """'scripted', '{"name": "x"}', 'k'""") == first  # and after it has ended
    assert enqueue("scripted", {"name": "x"}, key="k", effects=app).existing
    with pytest.raises(IdempotencyConflict):
        enqueue("scripted", {"name": "y"}, key="k", effects=app)
    assert row(app, "effect_ledger")["state"] == "done"
    assert len(rows(app, "job_history")) == 1


REFUSED = [
    ("NULL", "job_type"), ("''", "job_type"), ("'Not A Type'", "job_type"), ("'a', NULL", "payload"),
    ("'a', '[1]'", "payload"), ("""'a', '{"$sealed": 5}'""", "payload"),
    ("'a', jsonb_build_object('x', repeat('rosebud', 10000))", "payload"), ("'a', key => ''", "key"),
    ("'a', key => repeat('k', 256)", "key"), ("'a', queue => E'a\\nb'", "queue"),
    ("'a', group_key => ''", "group_key"),
    ("'a', limit_key => ''", "limit_key"), ("'a', priority => 32001", "priority"),
    ("'a', max_attempts => 0", "max_attempts"), ("'a', run_at => 'infinity'", "run_at"),
    ("'a', expires_at => '-infinity'", "expires_at"),
]  # fmt: skip


@pytest.mark.slow
def test_arguments_are_checked(writer: Writer) -> None:
    app, connection = writer
    for arguments, named in REFUSED:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"effects_enqueue: {named} must") as refused:
            call(connection, arguments)
        assert "rosebud" not in str(refused.value)
    assert rows(app, "jobs") == []


@pytest.mark.slow
def test_a_table_of_the_callers_own_is_not_written(writer: Writer) -> None:
    app, connection = writer
    connection.execute("CREATE TEMP TABLE effects_jobs (LIKE pg_class); SET search_path = pg_temp, public, effects_own")
    call(connection, "'scripted'")
    assert len(rows(app, "jobs")) == 1
