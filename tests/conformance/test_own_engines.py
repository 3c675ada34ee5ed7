"""An app's own engine, set to any isolation: what effects writes without a session is one transaction all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.pool import NullPool

from effects import Effects, NewJob, enqueue, enqueue_many
from effects.kit import crashpoints
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted

ENGINES: dict[str, dict[str, Any]] = {
    "autocommit": {"isolation_level": "AUTOCOMMIT"},
    "autocommit without rollback": {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True},
    "option": {"execution_options": {"isolation_level": "AUTOCOMMIT"}},
    "driver": {},
    "defaults": {},
}


@pytest.fixture(params=ENGINES)
def own(app: Effects, request: pytest.FixtureRequest) -> Iterator[Effects]:
    options: dict[str, Any] = {"poolclass": NullPool, **ENGINES[request.param]}
    if request.param == "driver":
        options["connect_args"] = {"autocommit": True} if app.store.is_postgresql else {"isolation_level": None}
    engine = create_engine(app.engine.url, **options)
    own = Effects(engine=engine, job_types=[Scripted()], schema=app.settings.schema)
    yield own
    own.dispose()


@pytest.mark.parametrize("keys", [["k"], ["k", "l"]], ids=["one", "many"])
def test_an_enqueue_that_fails_at_any_statement_leaves_neither_job_nor_key(
    app: Effects, own: Effects, keys: list[str]
) -> None:
    jobs = [NewJob(job_type="scripted", payload={}, key=key) for key in keys]
    left = 0

    def fail(*_: Any) -> None:
        nonlocal left
        if threading.current_thread() is threading.main_thread():
            left -= 1
            if left < 0:
                raise OSError

    event.listen(own.engine, "before_cursor_execute", fail)
    crashpoints.install(lambda name: fail() if name == "enqueue.before_commit" else None)
    receipts = []
    for statements in range(20):
        left = statements
        with suppress(OSError):
            receipts = enqueue_many(jobs, effects=own)
            break
        assert rows(app, "effect_ledger") == []
        assert rows(app, "jobs") == []
    assert left < 2, "each statement was tried"
    assert [receipt.existing for receipt in receipts] == [False for _ in jobs]
    assert len(rows(app, "jobs")) == len(rows(app, "effect_ledger")) == len(jobs)


def test_a_snapshot_is_one_state(app: Effects, own: Effects) -> None:
    count = text(f"SELECT count(*) FROM {own.store.sql.jobs}")
    with own.store.snapshot() as connection:
        assert connection.execute(count).scalar() == 0
        enqueue("scripted", {}, effects=app)
        assert connection.execute(count).scalar() == 0
    assert len(rows(app, "jobs")) == 1
