"""An open transaction of the app holds up only its own jobs, however long it lasts."""

from __future__ import annotations

import pytest
from sqlalchemy.orm import Session

from effects import NewJob, enqueue, enqueue_many
from effects.store.operator.audit import audit
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import rows, run_sql
from tests.support.running import running
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

OTHERS = 20
HELD = {
    "a key": ({"key": "held"}, "idempotency_key", 1),
    "keys": ({"key": "held"}, "idempotency_key", 8),  # more than one batch waits for
    "a group": ({"group_key": "held"}, "group_key", 1),
    "a group without jobs": ({"group_key": "held"}, "limit_key", 1),
}


@pytest.mark.parametrize("held", HELD)
def test_jobs_run_beside_what_an_open_transaction_holds(app_factory: AppFactory, held: str) -> None:
    """Plain INSERTs name what is held; they wait or not, and the others are done meanwhile."""
    options, column, count = HELD[held]
    # The jobs of others are enqueued by the thread that holds the transaction: on purpose, so without a warning.
    app = app_factory(job_types=[Scripted()], poll_seconds=0.1, sessions="off")
    with Session(app.engine) as session, session.begin():
        for number in range(count):
            named = {name: f"{value}{number}" for name, value in options.items()}
            enqueue("scripted", {}, session=session, effects=app, **named)  # type: ignore[arg-type]
            run_sql(app, f"INSERT INTO effects_jobs (job_type, {column}) VALUES ('scripted', 'held{number}')")
        others = {
            receipt.job_id for receipt in enqueue_many([NewJob(job_type="scripted", payload={})] * OTHERS, effects=app)
        }
        with running(Worker(app)):
            wait_until(lambda: others <= {job["id"] for job in rows(app, "job_history", "status = 'succeeded'")})
            session.commit()
            wait_until(lambda: not rows(app, "jobs"))
    ended = [job["status"] for job in rows(app, "job_history")]
    assert ended.count("cancelled") == (count if column == "idempotency_key" else 0)  # the key is another job's
    assert ended.count("succeeded") + ended.count("cancelled") == OTHERS + 2 * count
    assert audit(app.store, app.ledgers) == []


def test_the_longer_a_key_is_held_the_longer_its_job_waits_for_the_next_try(app_factory: AppFactory) -> None:
    """Each try holds up the dispatcher for a moment."""
    app = app_factory(job_types=[Scripted()], poll_seconds=0.1)
    waits = "run_at - updated_at >= interval '8 seconds' AND status = 'queued'"
    with Session(app.engine) as session, session.begin():
        enqueue("scripted", {}, key="held", session=session, effects=app)
        run_sql(
            app,
            "INSERT INTO effects_jobs (job_type, idempotency_key, age_from) "
            "VALUES ('scripted', 'held', now() - interval '8 seconds')",
        )
        with running(Worker(app)):
            wait_until(lambda: rows(app, "jobs", waits))
