"""Statements that commit by themselves are prepared, where no pooler is between; what that must not change.

A plan that is kept may be older than the table's contents, a prepared statement older than a column's type. Such a
session also keeps each statement to one process of the server.
"""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection, text

from effects import Effects, StoreConflict, enqueue, enqueue_many
from effects.store.claim.claim import claim, quiet_queues
from effects.store.claim.lease import ClaimRequest
from effects.store.db.engine import PREPARE_AFTER
from effects.store.db.store import Store
from effects.store.numbers.samples import take_sample
from effects.store.queue.job_rows import find_unknown
from tests.conftest import AppFactory
from tests.support.limited_jobs import limited
from tests.support.query_plans import recorded, rows_touched_as_prepared

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
SCHEDULED, DUE, WANT = 20_000, 200, 128
ROWS_MAX = 1_000
_SIZES = ("min_parallel_table_scan_size", "min_parallel_index_scan_size")  # of what is read by several processes


@pytest.mark.parametrize("database_url", ["postgresql", "pgbouncer"], indirect=True)
def test_statements_are_prepared_unless_a_pooler_is_between(app: Effects, request: pytest.FixtureRequest) -> None:
    through_pooler = "pgbouncer" in request.node.callspec.id
    with app.store.read() as connection:
        for _ in range(PREPARE_AFTER + 1):
            connection.exec_driver_sql("SELECT 1 AS effects_probe")
        names = connection.exec_driver_sql("SELECT count(*) FROM pg_prepared_statements").scalar_one()
        seqscan = connection.exec_driver_sql("SHOW enable_seqscan").scalar_one()
    assert (names > 0, seqscan) == ((False, "on") if through_pooler else (True, "off"))


@on_postgresql
def test_a_plan_that_was_kept_from_an_empty_table_reads_a_bounded_number_of_rows_of_a_full_one(app: Effects) -> None:
    """Without statistics, so that nothing tells PostgreSQL to plan again."""
    _commit(app.store, "ALTER TABLE effects_jobs SET (autovacuum_enabled = false)")
    with app.store.read() as connection:
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
    with recorded(app) as statements:
        for _ in range(PREPARE_AFTER + 1):
            _look_and_claim(app)
    _commit(
        app.store,
        f"INSERT INTO effects_jobs (job_type, routed, run_at) SELECT 'scripted', true, now() + interval '1 day' "
        f"FROM generate_series(1, {SCHEDULED})",
    )
    _commit(
        app.store,
        f"INSERT INTO effects_jobs (job_type, routed, priority) SELECT 'scripted', true, 7 "
        f"FROM generate_series(1, {DUE})",
    )
    with app.store.read() as connection:
        touched = rows_touched_as_prepared(connection, statements)
    assert WANT <= touched <= ROWS_MAX


@on_postgresql
def test_so_does_a_plan_for_jobs_with_limit_keys(app: Effects, app_factory: AppFactory) -> None:
    producer = app_factory()  # whose notifier takes no connection of this one's pool
    _commit(app.store, "ALTER TABLE effects_jobs SET (autovacuum_enabled = false)")
    with app.store.read() as connection:
        connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
    request = ClaimRequest("default", {"scripted": 60.0}, keyed=True)
    with recorded(app) as statements:
        for number in range(PREPARE_AFTER + 2):
            enqueue("scripted", {}, limit_key=f"k{number}", effects=producer)
            assert len(claim(app.store, request, "w", WANT).jobs) == 1
        _commit(
            app.store,
            f"INSERT INTO effects_jobs (job_type, routed, run_at, limit_key) SELECT 'scripted', true, "
            f"now() + interval '1 day', 'k' || mod(i, 10) FROM generate_series(1, {SCHEDULED}) AS i",
        )
        enqueue_many(limited("due", 200), effects=producer)
        claim(app.store, request, "w", WANT)
    with app.store.read() as connection:
        assert 0 < rows_touched_as_prepared(connection, statements) <= ROWS_MAX


def _look_and_claim(app: Effects) -> None:
    request = ClaimRequest("default", {"scripted": 60.0})
    quiet_queues(app.store, [request])
    assert claim(app.store, request, "w", WANT).jobs == []


@on_postgresql
def test_a_statement_whose_result_has_another_type_since_a_migration_is_a_conflict_once(app: Effects) -> None:
    _commit(app.store, "CREATE TABLE effects_probe (value integer)")
    for _ in range(PREPARE_AFTER + 1):
        _probe(app.store)
    _commit(app.store, "ALTER TABLE effects_probe ALTER value TYPE bigint")
    with pytest.raises(StoreConflict):
        _probe(app.store)
    assert _probe(app.store) == []


@on_postgresql
def test_statements_that_someone_deallocated_are_a_conflict_once(app: Effects) -> None:
    _commit(app.store, "CREATE TABLE effects_probe (value integer)")
    for _ in range(PREPARE_AFTER + 1):
        _probe(app.store)
    with app.store.read() as connection:
        connection.exec_driver_sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    with pytest.raises(StoreConflict):
        _probe(app.store)
    assert _probe(app.store) == []


@on_postgresql
def test_what_counts_all_live_jobs_keeps_to_one_process_of_the_server(app: Effects) -> None:
    with recorded(app) as statements:
        take_sample(app.store, 60.0)
        with app.store.read() as connection:
            find_unknown(app.store, connection, [], [])
    counts = [entry for entry in statements if f"FROM {app.store.sql.jobs}" in entry[0]]
    assert len(counts) == 2
    with app.store.read() as connection:
        for setting in (*_SIZES, "parallel_setup_cost", "parallel_tuple_cost"):
            connection.exec_driver_sql(f"SET {setting} = 0")
        assert [_is_parallel(connection, *entry) for entry in counts] == [False, False]
        connection.exec_driver_sql("SET max_parallel_workers_per_gather = 2")
        assert [_is_parallel(connection, *entry) for entry in counts] == [True, True]


def _is_parallel(connection: Connection, statement: str, parameters: Any) -> bool:
    return "Gather" in str(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).all())


def _probe(store: Store) -> list[Any]:
    with store.read() as connection:
        return list(connection.execute(text("SELECT value FROM effects_probe")))


def _commit(store: Store, statement: str) -> None:
    with store.begin() as connection:
        connection.exec_driver_sql(statement)
