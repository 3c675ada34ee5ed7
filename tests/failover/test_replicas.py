"""Reports read from a replica: one that is behind, was promoted, or ends the statement; what the file then holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Row

from effects import Effects
from effects_reports import Replica, explain_report, report, report_status, request_report
from tests.reports.conftest import ReportWorker, content, drain
from tests.reports.shop import csv_rows, fill, orders
from tests.support import databases
from tests.support.manual_workers import row
from tests.support.server_pair import ServerPair, server_pair
from tests.support.waiting import wait_until

ROWS = 20
MakeApp = Callable[..., Effects]


class Reading:
    """What happens while a chunk is read, once."""

    def __init__(self) -> None:
        self.then: Callable[[], Any] | None = None

    def __call__(self, record: Row[Any]) -> Sequence[Any]:
        if (then := self.then) is not None:
            self.then = None
            then()
        return record


reading = Reading()
WHERE = sa.func.pg_is_in_recovery().label("replica")


@report("replicated", key=("id",), engine="replica", chunk_rows=10, dialect="rfc4180")
def replicated() -> sa.Select[Any]:
    return sa.select(orders.c.id, WHERE)


@report("frozen", key=("id",), engine="replica", chunk_rows=10, dialect="rfc4180", consistency="snapshot")
def frozen() -> sa.Select[Any]:
    return sa.select(orders.c.id, WHERE)


@report(
    "mapped", key=("id",), engine="replica", chunk_rows=2000, dialect="rfc4180", columns=("id", "replica"),
    map_row=reading,
)  # fmt: skip
def mapped() -> sa.Select[Any]:
    return sa.select(orders.c.id, WHERE)


@pytest.fixture
def pair() -> Iterator[ServerPair]:
    with server_pair(synchronous=False) as servers:
        databases.migrated(servers.primary.url)
        yield servers


@pytest.fixture
def make_app(pair: ServerPair, tmp_path: Path) -> Iterator[MakeApp]:
    with ExitStack() as stack:

        def make(replica: str | None = None, **options: Any) -> Effects:
            engines = {"replica": Replica(replica or pair.standby.url, **options)}
            app = Effects(
                pair.url, reports=[replicated, frozen, mapped], report_engines=engines, sessions="off",
                storage_url=str(tmp_path / "files"),
            )  # fmt: skip
            stack.callback(app.dispose)
            return app

        yield make


def rows_of(app: Effects, run_id: str) -> list[tuple[int, str]]:
    return [(int(number), where) for number, where in csv_rows(content(app, run_id))[1:]]


def made(app: Effects, name: str = "replicated", key: str | None = None) -> str:
    run_id = request_report(name, key=key, effects=app).run_id
    drain(app)
    return run_id


def ids(count: int) -> list[int]:
    return [3 * n for n in range(1, count + 1)]


def test_a_replica_that_is_behind(pair: ServerPair, make_app: MakeApp) -> None:
    waiting = make_app(lag_seconds_max=0.001)
    fill(waiting, ROWS)
    run_id = made(waiting, key="fresh")
    assert rows_of(waiting, run_id) == [(number, "true") for number in ids(ROWS)]
    assert "a replica at most 0.001 s behind, else: wait" in explain_report("replicated", effects=waiting).reads_from

    pair.await_replay()
    pair.standby.sql("SELECT pg_wal_replay_pause()")
    pair.primary.sql("INSERT INTO orders VALUES (100, 'new', 1)")
    lagging = make_app(lag_seconds_max=3600.0)
    assert rows_of(lagging, made(lagging, key="old")) == [(number, "true") for number in ids(ROWS)]

    refusing = make_app(lag_seconds_max=0.001, behind="refuse")
    status = report_status(made(refusing, key="refused"), effects=refusing)
    assert (status.state, status.error_code) == ("failed", "replica_behind")
    assert "behind, and at most 0.001 s are allowed" in str(status.error_text)

    falling_back = make_app(lag_seconds_max=0.001, behind="primary")
    run_id = made(falling_back, key="primary")
    assert rows_of(falling_back, run_id) == [(number, "false") for number in (*ids(ROWS), 100)]

    # Planned by the primary: whatever lag is allowed, no chunk may read what lacks a row of the plan.
    run_id = request_report("replicated", key="mixed", effects=falling_back).run_id
    assert ReportWorker(falling_back).do_next().error_code is None
    worker = ReportWorker(lagging)
    settlement = worker.do(worker.claim(1)[0])
    assert (settlement.error_code, settlement.message) == (
        "replica_behind",
        "the replica has not replayed what the report's plan has seen",
    )
    assert row(lagging, "report_chunks", f"run_id = '{run_id}' AND error_code IS NOT NULL")["state"] == "pending"
    pair.standby.sql("SELECT pg_wal_replay_resume()")
    lagging.store.shift_clock(10)
    drain(lagging)
    assert rows_of(lagging, run_id) == [(number, "true") for number in (*ids(ROWS), 100)]


def _conflicts(pair: ServerPair) -> int:
    """How many statements the standby has ended for what it had to replay."""
    [[count]] = pair.standby.sql("SELECT sum(confl_snapshot) FROM pg_stat_database_conflicts")
    return int(count)


def test_a_replica_that_ends_the_statement(pair: ServerPair, make_app: MakeApp) -> None:
    """It has to replay a VACUUM: the chunk is read again, there or on the primary, and uses up no try."""
    pair.standby.configure(max_standby_streaming_delay="0")
    app = make_app()
    fill(app, 1500)

    def strike() -> bool:
        pair.primary.sql("UPDATE orders SET cents = cents + 1", "VACUUM orders")
        pair.await_replay()
        return _conflicts(pair) > before

    def conflict() -> None:
        """A VACUUM removes nothing, and so ends nothing, while any snapshot of the primary is older: again, then."""
        wait_until(strike)

    before = _conflicts(pair)

    pair.await_replay()
    run_id = request_report("mapped", effects=app).run_id
    worker = ReportWorker(app)
    worker.do_next()
    reading.then = conflict
    settlement = worker.do_next()
    assert (settlement.error_code, settlement.status) == ("replica_conflict", "queued")
    app.store.shift_clock(10)
    drain(app)
    assert rows_of(app, run_id) == [(number, "true") for number in ids(1500)]

    falling_back = make_app(behind="primary")
    before = _conflicts(pair)
    reading.then = conflict
    run_id = made(falling_back, "mapped", key="again")
    assert rows_of(falling_back, run_id) == [(number, "false") for number in ids(1500)]


def test_a_snapshot_is_held_on_the_replica(pair: ServerPair, make_app: MakeApp) -> None:
    app = make_app()
    fill(app, ROWS)
    run_id = request_report("frozen", effects=app).run_id
    worker = ReportWorker(app)
    worker.do_next()
    pair.primary.sql("INSERT INTO orders VALUES (100, 'new', 1)", "DELETE FROM orders WHERE id = 60")
    pair.await_replay()
    for _ in range(3):  # two chunks and the assembly
        worker.do_next()
    assert rows_of(app, run_id) == [(number, "true") for number in ids(ROWS)]


def test_a_replica_that_was_promoted(pair: ServerPair, make_app: MakeApp) -> None:
    first, second = pair.primary, pair.standby
    app = make_app()
    fill(app, ROWS)
    pair.await_replay()
    run_id = request_report("replicated", effects=app).run_id
    worker = ReportWorker(app)
    worker.do_next()  # planned on the replica
    pair.fail_over()
    after = make_app(second.url)  # the replica is the primary now
    settlement = ReportWorker(after).do_next()
    assert settlement.error_code == "replica_promoted"
    pair.rejoin()
    healed = make_app(first.url)
    healed.store.shift_clock(10)
    drain(healed)
    assert report_status(run_id, effects=healed).state == "ready"
    assert rows_of(healed, run_id) == [(number, "true") for number in ids(ROWS)]
