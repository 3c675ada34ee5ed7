"""The schema of the tables is found once: whatever search path a session sets later, jobs go to the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from effects import Effects, NewJob, enqueue, enqueue_async, enqueue_many
from effects.operate.doctor import examine
from effects.store.enqueue.copy import ROWS_MIN
from effects.worker import Worker
from tests.peers.pgbouncer import PgBouncer
from tests.support import databases
from tests.support.driver_statements import driver_statements
from tests.support.sampling import sample
from tests.support.scripted import Scripted

TENANT = "tenant"
AWKWARD = ("my-app", "Order", "user", "two words", "größe", 'a"b', "a:b", "a%b", "a\\b")


@pytest.fixture
def url(postgresql_server: str, postgresql_template: str) -> Iterator[str]:
    """A database that has our tables twice: in `public`, and in the schema of a tenant."""
    with databases.postgresql_database(postgresql_server, postgresql_template) as url:
        with connected(url, schema=TENANT) as tenant:
            tenant.create_tables()
        yield url


@contextmanager
def connected(url: str | None = None, **options: Any) -> Iterator[Effects]:
    app = Effects(url, job_types=[Scripted()], **options)
    try:
        yield app
    finally:
        app.dispose()


def engine_of(url: str, driver: str = "psycopg", **options: Any) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(drivername=f"postgresql+{driver}"), **options)


def jobs(url: str) -> dict[str, int]:
    """Schema → how many jobs it has had."""
    with psycopg.connect(url) as connection:
        return {
            schema: sum(
                connection.execute(f"SELECT count(*) FROM {schema}.{table}".encode()).fetchone()[0]  # type: ignore[index]
                for table in ("effects_jobs", "effects_job_history")
            )
            for schema in ("public", TENANT)
        }


def by_engine(url: str, app: Effects, moved: str) -> None:
    with app.engine.begin() as connection:
        connection.exec_driver_sql(moved)
        enqueue("scripted", {}, session=connection, effects=app)


def by_orm(url: str, app: Effects, moved: str) -> None:
    with Session(app.engine) as session, session.begin():
        session.execute(sa.text(moved))
        enqueue("scripted", {}, key="k", session=session, effects=app)


def by_copy(url: str, app: Effects, moved: str) -> None:
    with app.engine.begin() as connection:
        connection.exec_driver_sql(moved)
        many = [NewJob(job_type="scripted", payload={}) for _ in range(ROWS_MIN)]
        enqueue_many(many, session=connection, effects=app)


def by_psycopg(url: str, app: Effects, moved: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(moved.encode())
        enqueue("scripted", {}, session=connection, effects=app)


def by_asyncpg(url: str, app: Effects, moved: str) -> None:
    async def write() -> None:
        engine = create_async_engine(sa.make_url(url).set(drivername="postgresql+asyncpg"))
        async with engine.begin() as connection:
            await connection.exec_driver_sql(moved)
            await enqueue_async("scripted", {}, session=connection, effects=app)
        await engine.dispose()

    asyncio.run(write())


DOORS = (by_engine, by_orm, by_copy, by_psycopg, by_asyncpg)
MOVED = (
    f"SET search_path TO {TENANT}", f"SET LOCAL search_path TO {TENANT}, public", "SET search_path TO pg_catalog",
    "CREATE TEMPORARY TABLE IF NOT EXISTS effects_jobs (id int)", "SELECT set_config('search_path', '', false)",
)  # fmt: skip


@pytest.mark.parametrize(
    ("whose", "enqueues", "moved"), sample(product(("ours", "the app's"), DOORS, MOVED), 5),
    ids=lambda case: case if isinstance(case, str) else case.__name__,
)  # fmt: skip
def test_a_session_that_moves_its_search_path_moves_no_job(
    url: str, whose: str, enqueues: Callable[[str, Effects, str], None], moved: str
) -> None:
    """From the first call of the process on, and in one that comes after others."""
    engine = engine_of(url)
    with connected(*([url] if whose == "ours" else []), **({} if whose == "ours" else {"engine": engine})) as app:
        for _ in range(2):
            enqueues(url, app, moved)
        assert Worker(app).drain(60).counts.keys() == {"succeeded"}
    engine.dispose()
    assert jobs(url)[TENANT] == 0
    assert jobs(url)["public"] >= 1


def test_a_pool_whose_connections_were_moved_leads_to_the_same_tables(url: str) -> None:
    """Those that an app has moved and not moved back, which its engine then gives to us."""
    engine = engine_of(url, pool_size=3, max_overflow=0)
    with engine.connect() as first, engine.connect() as second, engine.connect() as third:
        for connection in (first, second, third):
            connection.exec_driver_sql(f"SET search_path TO {TENANT}")
            connection.commit()
    with connected(engine=engine) as app:
        enqueue("scripted", {}, effects=app)
        assert Worker(app).drain(60).counts == {"succeeded": 1}
        assert app.create_tables() == []
    engine.dispose()
    assert jobs(url) == {"public": 1, TENANT: 0}


def test_what_a_role_a_url_or_a_listener_sets_leads_to_its_tables(url: str) -> None:
    databases.plain_role(url)
    for statement in (
        f'ALTER ROLE {databases.PLAIN_ROLE} IN DATABASE "{sa.make_url(url).database}" SET search_path = {TENANT}',
        f"GRANT ALL ON SCHEMA {TENANT} TO {databases.PLAIN_ROLE}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA {TENANT} TO {databases.PLAIN_ROLE}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {TENANT} TO {databases.PLAIN_ROLE}",
    ):
        databases.execute(url, statement)
    with connected(databases.as_plain_role(url)) as app:
        enqueue("scripted", {}, effects=app)
    with connected(
        sa.make_url(url).update_query_dict({"options": f"-csearch_path={TENANT}"}).render_as_string(False)
    ) as app:
        enqueue("scripted", {}, effects=app)
    engine = engine_of(url)

    @sa.event.listens_for(engine, "connect")
    def move(driver: Any, record: object) -> None:
        driver.execute(f"SET search_path TO {TENANT}")
        driver.commit()

    with connected(engine=engine) as app, engine.begin() as connection:
        connection.exec_driver_sql("SET search_path TO public")
        enqueue("scripted", {}, session=connection, effects=app)
    engine.dispose()
    assert jobs(url) == {"public": 0, TENANT: 3}


def test_behind_a_pooler_the_search_path_of_other_clients_counts_nothing(url: str, postgresql_server: str) -> None:
    """A pooler in transaction mode hands on the server's session as the last client left it."""
    with PgBouncer(postgresql_server) as bouncer:
        behind = bouncer.url(str(sa.make_url(url).database))
        with psycopg.connect(behind) as stranger:
            stranger.execute(f"SET search_path TO {TENANT}".encode())
        with connected(behind) as app:
            with psycopg.connect(behind) as session:
                assert session.execute("SELECT current_schema()").fetchone() == (TENANT,)
                enqueue("scripted", {}, session=session, effects=app)
            assert Worker(app).drain(60).counts == {"succeeded": 1}
    assert jobs(url) == {"public": 1, TENANT: 0}


def test_it_is_looked_for_once_in_a_process(url: str) -> None:
    with driver_statements() as statements, connected(url) as app:
        for _ in range(3):
            with app.engine.begin() as session:
                enqueue("scripted", {}, session=session, effects=app)
        Worker(app).drain(60)
    assert len([statement for statement in statements if "reset_val" in statement]) == 1


def test_tables_that_are_made_later_are_found(postgresql_server: str) -> None:
    with databases.postgresql_database(postgresql_server) as url, connected(url) as app:
        assert "schema" in {finding.check for finding in examine(app) if finding.level == "error"}
        app.create_tables()
        with app.engine.begin() as session:
            session.exec_driver_sql("SET search_path TO pg_catalog")
            enqueue("scripted", {}, session=session, effects=app)
        assert app.store.located == "public"


@pytest.mark.parametrize("name", AWKWARD)
def test_a_schema_of_any_name_works(postgresql_server: str, name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    with databases.postgresql_database(postgresql_server) as url:
        databases.execute(url, f"CREATE SCHEMA {quoted}")
        moved = f'ALTER DATABASE "{sa.make_url(url).database}" SET search_path = nowhere, {quoted}, public'
        databases.execute(url, moved)
        with connected(url) as app:
            app.create_tables()
            enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(ROWS_MIN)], effects=app)
            assert Worker(app).drain(60).counts == {"succeeded": ROWS_MIN}
            assert [finding for finding in examine(app) if finding.level == "error"] == []
            assert app.store.located in (name, None)
