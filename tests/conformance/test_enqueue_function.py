"""`effects_enqueue(…)` for a role that may do nothing else: its jobs run, its arguments and its grants are checked."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from effects import ConfigurationError, Effects, IdempotencyConflict, enqueue
from effects.operate.tables import grants
from effects.store.migrations import migrate
from effects.worker import Worker
from tests.support import databases
from tests.support.manual_workers import row, rows
from tests.support.scripted import Scripted

PASSWORD = "a-password-of-the-test"


@pytest.fixture(params=["public", "schema"])
def writer(request: pytest.FixtureRequest, postgresql_server: str) -> Iterator[tuple[Effects, psycopg.Connection]]:
    """An app, and the connection of a role that has EXECUTE on the function and USAGE of its schema."""
    schema = "effects_own" if request.param == "schema" else None
    with databases.postgresql_database(postgresql_server) as url:
        app = Effects(url, job_types=[Scripted()], schema=schema)
        migrate.init(app.store)
        with role_of(app, f"writer_{uuid.uuid4().hex}") as role:
            grant(app, role, "scripted")
            with logged_in(app, role) as connection:
                yield app, connection
        app.dispose()


@contextmanager
def role_of(app: Effects, role: str) -> Iterator[str]:
    """A role that may log in and call the function."""
    schema = app.store.schema or "public"
    with owner(app) as connection:
        connection.execute(f"CREATE ROLE \"{role}\" LOGIN PASSWORD '{PASSWORD}'")
        connection.execute(f'GRANT USAGE ON SCHEMA {schema} TO "{role}"')
        connection.execute(f'GRANT EXECUTE ON FUNCTION {schema}.effects_enqueue TO "{role}"')
    yield role
    with owner(app) as connection:
        connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"')


def owner(app: Effects) -> psycopg.Connection:
    url = app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return psycopg.connect(url, autocommit=True)


def logged_in(app: Effects, role: str) -> psycopg.Connection:
    url = app.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    path = f"-c search_path={app.store.schema or 'public'}"
    return psycopg.connect(url, autocommit=True, user=role, password=PASSWORD, options=path)


def grant(app: Effects, role: str, job_type: str) -> bool:
    with app.store.begin() as connection:
        return grants.add(
            app.store, connection, role, app.job_types.get(job_type), actor="cli:ann", reason="the importer"
        )


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
    app, _ = writer
    schema = app.store.schema or "public"
    with role_of(app, f"third_party_{uuid.uuid4().hex}") as role:
        with owner(app) as connection:
            connection.execute(f'REVOKE EXECUTE ON FUNCTION {schema}.effects_enqueue FROM "{role}"')
        with logged_in(app, role) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            call(connection, "'scripted'")


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
    connection.execute(
        """
        CREATE TEMP TABLE effects_jobs (LIKE pg_class); CREATE TEMP TABLE effects_grants (role text, job_type text);
        INSERT INTO effects_grants VALUES (session_user, 'webhook.compose');
        CREATE TEMP TABLE pg_roles (LIKE pg_catalog.pg_roles);
        CREATE FUNCTION pg_temp.pg_has_role(name, oid, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
        SET search_path = pg_temp, pg_catalog, public, effects_own
        """
    )
    schema = app.store.schema or "public"
    connection.execute(f"SELECT {schema}.effects_enqueue('scripted')")
    assert len(rows(app, "jobs")) == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="has no grant"):
        connection.execute(f"SELECT {schema}.effects_enqueue('webhook.compose')")


NOTICE = '{"report": "orders", "notify": [{"job_type": "%s", "payload": {"to": "ann@example.com"}}]}'
NESTED = (
    '{"report": "orders", "notify": [{"job_type": "report.request", "payload": {"report": "r", "notify": '
    '{"job_type": "webhook.compose", "payload": {}}}}]}'
)
UNGRANTED = [
    ("webhook.deliver", "{}"), ("effects.prune", "{}"), ("no.such_type", "{}"), ("webhook.compose", '{"type": "a.b"}'),
    ("report.request", NOTICE % "webhook.compose"), ("report.request", NOTICE % "report.deliver"),
    ("report.request", NOTICE % "Email.compose"),
    ("report.request", NESTED), ("report.request", NESTED.replace('"notify"', '"\\u006eotify"')),
    ("report.request", '{"report": "r", "notify": [{"job_type": ["report.deliver"]}]}'),
    ("report.request", '{"report": "r", "notify": [{"job_type": null}]}'),
]  # fmt: skip


@pytest.mark.slow
def test_only_granted_types_are_enqueued_wherever_a_payload_names_them(writer: Writer) -> None:
    app, connection = writer
    role = connection.info.user
    for job_type in ("report.request", "email.compose"):
        assert grant(app, role, job_type)
    for job_type, payload in UNGRANTED:
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="has no grant for a job type that is asked"):
            connection.execute("SELECT effects_enqueue(%s, %s)", (job_type, payload))
    attached = '"attachments": [{"name": "reports/of-another/file.csv"}]'
    for job_type, payload in (
        ("email.compose", f'{{"template": "welcome", "to": "ann@example.com", {attached}}}'),
        ("report.request", NOTICE.replace('"to"', f'{attached}, "to"') % "email.compose"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="a field that only trusted code may fill"):
            connection.execute("SELECT effects_enqueue(%s, %s)", (job_type, payload))
    assert rows(app, "jobs") == []
    for payload in ('{"report": "orders"}', NOTICE % "email.compose", '{"report": "r", "notify": []}'):
        connection.execute("SELECT effects_enqueue('report.request', %s)", (payload,))
    assert len(rows(app, "jobs")) == 3


@pytest.mark.slow
def test_a_grant_ends_when_it_is_removed(writer: Writer) -> None:
    app, connection = writer
    role = connection.info.user
    assert not grant(app, role, "scripted")  # it is there
    for was_there in (True, False):
        with app.store.begin() as own:
            assert grants.remove(app.store, own, role, "scripted", actor="cli:ann", reason=None) is was_there
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=f"role {role} has no grant"):
        call(connection, "'scripted'")
    assert [(entry["action"], entry["subject"]) for entry in rows(app, "audit_log")] == [
        ("add", f"{role} scripted"), ("remove", f"{role} scripted"),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_grant_is_for_who_has_logged_in_and_who_inherits(writer: Writer) -> None:
    """SET ROLE neither gives a right nor takes one; a group's grant reaches its members, as PostgreSQL's own do."""
    app, _ = writer
    with ExitStack() as stack:
        names = ("group", "We'ird Röle; --", "distant", "granted", "poor")
        group, member, distant, granted, poor = (
            stack.enter_context(role_of(app, f"{name}_{uuid.uuid4().hex[:12]}")) for name in names
        )
        with owner(app) as connection:
            connection.execute(f'GRANT "{group}" TO "{member}"; ALTER ROLE "{distant}" NOINHERIT')
            connection.execute(f'GRANT "{group}", "{granted}" TO "{distant}"; GRANT "{poor}" TO "{granted}"')
        for role in (group, granted):
            grant(app, role, "scripted")
        with logged_in(app, member) as connection:
            call(connection, "'scripted'")
        with logged_in(app, distant) as connection:  # a member that does not inherit
            for statement in ("SELECT", f'SET ROLE "{granted}"'):
                connection.execute(statement)
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="has no grant"):
                    call(connection, "'scripted'")
        with logged_in(app, granted) as connection:
            connection.execute(f'SET ROLE "{poor}"')
            call(connection, "'scripted'")


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["public"], indirect=True)
def test_internal_types_and_unknown_roles_are_not_granted(writer: Writer) -> None:
    app, connection = writer
    for job_type in app.job_types:
        if job_type.internal:
            with pytest.raises(ConfigurationError, match="is a step that only effects enqueues"):
                grant(app, connection.info.user, job_type.name)
    with pytest.raises(ConfigurationError, match="no role 'nobody'"):
        grant(app, "nobody", "scripted")
    asked_for = {job_type.name for job_type in app.job_types if not job_type.internal}
    assert asked_for == {"scripted", "email.compose", "webhook.compose", "report.request"}


def test_sqlite_has_no_roles(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'effects.db'}", job_types=[Scripted()])
    app.create_tables()
    with pytest.raises(ConfigurationError, match="SQLite has no roles"):
        grant(app, "ann", "scripted")
    app.dispose()
