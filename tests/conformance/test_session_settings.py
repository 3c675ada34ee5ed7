"""What a role or a database sets for its sessions changes no effect, no time, no value of a report and no sentence."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from effects import (
    ConfigurationError,
    Effects,
    Exponential,
    NewJob,
    RetryPolicy,
    enqueue,
    enqueue_many,
    enqueue_many_async,
)
from effects.errors import StoreRejected
from effects.model.limits import Rate
from effects.store.db.faults import Fault, fault_of, state_of
from effects.store.enqueue.copy import ROWS_MIN
from effects.store.limits.key_limits import set_limit
from effects.worker import Worker
from effects_reports import open_result, report, request_report, request_report_async
from tests.support import databases
from tests.support.commands import command, error_line
from tests.support.sampling import sample
from tests.support.scripted import Scripted

# Each may be that of a role or of a database: ALTER ROLE … SET, ALTER DATABASE … SET.
SETTINGS = {
    "client_encoding": "LATIN1", "DateStyle": "German", "IntervalStyle": "iso_8601", "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape", "extra_float_digits": "-15", "standard_conforming_strings": "off",
    "backslash_quote": "off", "transform_null_equals": "on", "array_nulls": "off", "quote_all_identifiers": "on",
    "lock_timeout": "5s", "statement_timeout": "60s", "idle_in_transaction_session_timeout": "60s",
    "idle_session_timeout": "60s", "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on", "row_security": "off", "jit_above_cost": "0", "exit_on_error": "on",
    "enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "off", "enable_seqscan": "off",
    "enable_sort": "off", "enable_hashagg": "off", "enable_hashjoin": "off", "enable_nestloop": "off",
    "plan_cache_mode": "force_generic_plan", "geqo_threshold": "2", "from_collapse_limit": "1",
    "join_collapse_limit": "1", "work_mem": "64kB", "client_min_messages": "debug1", "synchronous_commit": "off",
    "check_function_bodies": "off", "xmlbinary": "hex", "application_name": "a \\ b",
}  # fmt: skip
# An app's transactions: of our engine, of its own, of an asynchronous one. Each setting by each of them, pairs in turn.
DOORS = ("ours", "psycopg", "asyncpg")
CASES = [
    *(((name,), door) for name in SETTINGS for door in DOORS),
    *zip(combinations(SETTINGS, 2), cycle(DOORS), strict=False),
]  # fmt: skip
RETRY = RetryPolicy(backoff=Exponential(seconds=3600.0), jitter=0.0)
AT = datetime(2001, 2, 3, 4, 5, 6, 123457, tzinfo=UTC)
LATER = datetime(2051, 2, 3, 4, 5, 6, 765431, tzinfo=UTC)
_AWAITABLE: dict[Any, Any] = {enqueue_many: enqueue_many_async, request_report: request_report_async}
TEXT = "€ Łódź naïve"
# What differs from one run to the next: times of now, durations, names of workers and of runs.
_CHANGING = re.compile(
    r"202\d-\d\d-\d\d[T ][\d:.]+(?:Z|\+00:00)?|\b\d+(?:\.\d+)?(?:e[-+]?\d+)? ?(?:ms|s|min|h|d)\b"
    r"|rep_[0-9a-f]{32}|effects_test_\w+|\w+:\d+:[0-9a-f]{8}| +"
)
_MEASURED = f"""
CREATE TABLE measured AS SELECT n, 1 / (n + 2)::float8 AS real, to_timestamp(1e9 + n / 7.0) AS moment,
    date '2001-02-03' + n AS day, interval '1 day' * n AS span, decode('00ff5c', 'hex') AS bytes,
    '{TEXT}' || chr(92) AS word
FROM generate_series(1, 3) AS n"""
_TIMES = """
SELECT md5(string_agg(CAST(extract(epoch FROM run_at) * 1000000 AS text), ' ' ORDER BY id)) FROM effects_jobs
WHERE run_at > '2050-01-01'"""

Account: TypeAlias = Mapping[str, Any]
Call: TypeAlias = Callable[..., Any]


@report("values", key=("n",), dialect="rfc4180", formats=("csv", "ndjson", "parquet"))
def values_report(params: dict[str, Any]) -> sa.Select[Any]:
    columns = {
        "n": sa.Integer, "real": sa.Double, "moment": sa.DateTime(timezone=True), "day": sa.Date, "span": sa.Interval,
        "bytes": sa.LargeBinary, "word": sa.Text,
    }  # fmt: skip
    return sa.select(*(sa.column(name, kind) for name, kind in columns.items())).select_from(sa.text("measured"))


def new(name: str, *moves: str, **options: Any) -> NewJob:
    return NewJob(job_type="scripted", payload={"name": name, "moves": list(moves)}, **options)


def engine_of(url: str, **options: Any) -> sa.Engine:
    return sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"), poolclass=sa.NullPool, **options)


def alter(url: str, settings: Mapping[str, str]) -> None:
    """As of the database, which is this test's alone."""
    with engine_of(url, isolation_level="AUTOCOMMIT").connect() as connection:
        for name, value in settings.items():
            connection.exec_driver_sql(f"ALTER DATABASE \"{sa.make_url(url).database}\" SET {name} = '{value}'")


@contextmanager
def connected(url: str, folder: Path, engine: sa.Engine | AsyncEngine | None) -> Iterator[Effects]:
    job_types, reports = [Scripted(retry=RETRY)], [values_report]
    options: dict[str, Any] = {"job_types": job_types, "reports": reports, "storage_url": str(folder)}
    app = Effects(url, **options) if engine is None else Effects(engine=engine, **options)
    try:
        yield app
    finally:
        app.dispose()


def account(app: Effects, call: Call) -> Account:
    """Enqueue in every way, work, and read it all again."""
    with app.store.begin() as connection:
        connection.execute(sa.text(_MEASURED))
        set_limit(app.store, connection, "slow", rate=Rate(1000, 60, 1000), max_in_flight=2, actor="ann")
    jobs = [
        new(TEXT, key=TEXT, run_at=AT, expires_at=LATER), new("grouped", group_key="g", limit_key="slow", run_at=AT),
        new("refused", "refuse", key="no"), new("unknown", "unknown", key="perhaps", on_unknown="hold"),
        new("waits", delay=timedelta(days=9)), new("retried", "retry", "done"),
    ]  # fmt: skip
    ids = [call(enqueue_many, [job])[0].job_id for job in jobs]
    many = [
        new(str(number), limit_key="slow", run_at=LATER + timedelta(microseconds=number)) for number in range(ROWS_MIN)
    ]
    call(enqueue_many, many)  # by COPY, where the driver can
    runs = [call(request_report, "values", format=name).run_id for name in ("csv", "ndjson", "parquet")]
    drained = Worker(app).drain(60)
    lines = [
        ("jobs", "list", "--json", "--limit", 700, "--type", "scripted"), ("jobs", "show", ids[0]), ("status",),
        ("limits", "list"), *(("why", job_id) for job_id in ids),
    ]  # fmt: skip
    answers = [command(app, *words) for words in lines]
    with app.store.read() as connection:
        times = connection.scalar(sa.text(_TIMES))
    return {
        "counts": drained.counts,
        "answers": {
            words: re.sub(" +", " ", _CHANGING.sub(" ", answer.out + answer.err))
            for words, answer in zip(lines, answers, strict=True)
        },
        "checks": re.findall(r"(?m)^(\w+) +([\w ]+?)  ", command(app, "doctor").out),
        "times": times,
        "files": [b"".join(open_result(run, effects=app)) for run in runs],
    }


@pytest.fixture
def database(postgresql_server: str, postgresql_template: str) -> Iterator[Callable[[], Any]]:
    """Makes databases with our tables."""
    return lambda: databases.postgresql_database(postgresql_server, postgresql_template)


@pytest.fixture(scope="module")
def measure(
    postgresql_server: str, postgresql_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mapping[str, str], str], Account]:
    """Settings of a database, and the door → what an app sees there."""
    folder = tmp_path_factory.mktemp("files")

    def measured(settings: Mapping[str, str], door: str) -> Account:
        with databases.postgresql_database(postgresql_server, postgresql_template) as url:
            alter(url, settings)
            if door == "ours":
                with connected(url, folder, None) as app:
                    return account(app, partial(_call, app))
            if door == "psycopg":
                engine = engine_of(url)
                with connected(url, folder, engine) as app:
                    # A session that cannot carry a text is at fault itself: see below.
                    sessions = None if "client_encoding" in settings else engine
                    return account(app, partial(_call, app, engine=sessions))
            asynchronous = create_async_engine(
                sa.make_url(url).set(drivername="postgresql+asyncpg"), poolclass=sa.NullPool
            )
            with connected(url, folder, asynchronous) as app:
                return account(app, lambda *words, **options: asyncio.run(_await(app, asynchronous, *words, **options)))

    return measured


def _call(app: Effects, function: Any, *words: Any, engine: sa.Engine | None = None, **options: Any) -> Any:
    with nullcontext() if engine is None else engine.begin() as session:
        return function(*words, session=session, effects=app, **options)


async def _await(app: Effects, engine: AsyncEngine, function: Any, *words: Any, **options: Any) -> Any:
    async with engine.begin() as session:
        return await _AWAITABLE[function](*words, session=session, effects=app, **options)


@pytest.fixture(scope="module")
def usual(measure: Callable[[Mapping[str, str], str], Account]) -> Mapping[str, Account]:
    """Without any setting."""
    return {door: measure({}, door) for door in DOORS}


@pytest.mark.parametrize(
    ("names", "door"), sample(CASES, 3), ids=lambda case: case if isinstance(case, str) else " + ".join(case)
)
def test_settings_of_roles_and_databases_change_nothing(
    names: tuple[str, ...], door: str, measure: Callable[..., Account], usual: Mapping[str, Account]
) -> None:
    assert usual[door]["counts"] == {"succeeded": 14, "dead": 2, "failed": 1}
    assert measure({name: SETTINGS[name] for name in names}, door) == usual[door]


def test_a_session_that_cannot_carry_a_text_is_at_fault_and_no_job(database: Callable[[], Any], tmp_path: Path) -> None:
    """What it can carry is enqueued; a worker whose engine is the app's reads all texts."""
    with database() as url:
        alter(url, {"client_encoding": "LATIN1"})
        engine = engine_of(url)
        with connected(url, tmp_path, engine) as app:
            with engine.begin() as session:
                enqueue("scripted", {"name": "naïve"}, key="naïve", session=session, effects=app)
            for keyed in ({}, {"key": "k"}):
                with engine.begin() as session, pytest.raises(StoreRejected, match=r"client_encoding.*utf8"):
                    enqueue("scripted", {"name": TEXT}, session=session, effects=app, **keyed)
            enqueue("scripted", {"name": TEXT}, key=TEXT, effects=app)
            assert Worker(app).drain(60).counts == {"succeeded": 2}
            with engine.connect() as session, pytest.raises(DBAPIError) as caught:
                session.exec_driver_sql("SELECT idempotency_key FROM effects_job_history").all()
    assert state_of(caught.value) == "22P05"
    assert fault_of(caught.value) is Fault.DENIED


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_of_another_encoding_is_refused(postgresql_server: str, encoding: str, tmp_path: Path) -> None:
    """By `init`, by `doctor`, and by whatever else would write there."""
    name = f"of_{encoding.lower()}_{uuid4().hex}"
    databases.execute(postgresql_server, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    url = sa.make_url(postgresql_server).set(drivername="postgresql", database=name).render_as_string(False)
    try:
        with connected(url, tmp_path, None) as app:
            for words in (("init",), ("doctor",), ("work", "--drain"), ("status",)):
                line = error_line(command(app, *words))
                assert f"database '{name}' has the encoding {encoding}" in line
                assert "ENCODING 'UTF8'" in line
            with pytest.raises(ConfigurationError, match=encoding):
                enqueue("scripted", {}, effects=app)
    finally:
        databases.execute(postgresql_server, f"DROP DATABASE {name} WITH (FORCE)")


def test_a_schema_that_cannot_be_used_is_refused_with_what_to_type(postgresql_server: str, tmp_path: Path) -> None:
    """By `init`, and by `doctor`."""
    with databases.postgresql_database(postgresql_server) as url:
        databases.plain_role(url)
        databases.execute(url, "CREATE SCHEMA theirs")
        databases.execute(url, f"GRANT USAGE ON SCHEMA theirs TO {databases.PLAIN_ROLE}")
        plain = databases.as_plain_role(url)
        for address, schema, path, words in (
            (url, None, "nope", "the search path (nope) names no schema that exists"),
            (plain, "nope", "public", f"CREATE SCHEMA nope AUTHORIZATION {databases.PLAIN_ROLE}"),
            (plain, "theirs", "public", f"GRANT USAGE, CREATE ON SCHEMA theirs TO {databases.PLAIN_ROLE}"),
            (plain, None, "theirs", f"GRANT USAGE, CREATE ON SCHEMA theirs TO {databases.PLAIN_ROLE}"),
        ):
            alter(url, {"search_path": path})
            app = Effects(address, schema=schema)
            assert words in error_line(command(app, "init"))
            assert words.split(":")[0] in command(app, "doctor").out
            app.dispose()
    with pytest.raises(ConfigurationError, match="EFFECTS_SCHEMA is 'pg_mine'"):
        Effects("postgresql://localhost/shop", schema="pg_mine")
