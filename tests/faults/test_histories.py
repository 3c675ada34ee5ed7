"""The fence across histories: commits are lost, the database goes on from before, and an attempt survives.

A copy of the database, taken at some point, is the history that goes on (a standby that was promoted, a backup that was
restored); what the first one did after that point is lost. Both hand out the same ids from there.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import pytest
from sqlalchemy.engine import make_url

from effects import Done, Effects, Job, Retry, Snooze, enqueue
from effects.model.settlement import AttemptEnd, Returned
from effects.operate.tables.audit import audit
from tests.conftest import AppFactory
from tests.support import databases
from tests.support.manual_workers import LEASE_SECONDS, ManualWorker, all_but_late, row
from tests.support.scripted import Scripted

Rewind: TypeAlias = Callable[[], Effects]


def hold() -> list[Scripted]:
    return [Scripted("scripted", on_unknown="hold")]


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=hold())


@pytest.fixture
def copy(app: Effects, database_url: str, app_factory: AppFactory, tmp_path: Path) -> Iterator[Rewind]:
    """Copies the database as it is now, and gives the app on the copy."""

    with ExitStack() as stack:

        def copied() -> Effects:
            app.notifier.close()  # its thread may be about to connect
            app.store.dispose()  # a template must have no other connections
            if app.store.is_postgresql:
                name = str(make_url(database_url).database)
                databases.disconnect_all(database_url.replace(name, "postgres"), name)
                url = stack.enter_context(databases.postgresql_database(database_url.replace(name, "postgres"), name))
            else:
                url = f"sqlite:///{shutil.copy(tmp_path / 'effects.db', tmp_path / 'second.db')}"
            second = app_factory(url, job_types=hold())
            stack.callback(second.dispose)
            return second

        yield copied


def nothing_passes(second: Effects, late: ManualWorker, job: Job, ending: AttemptEnd) -> None:
    """Neither the mark nor the outcome of the attempt that survived changes the second history; it is kept."""
    before = all_but_late(second)
    survivor = ManualWorker(second, late.name)
    assert survivor.release(job) == set()
    settled = survivor.settle((job, ending), released=True)
    assert (len(settled.accepted), len(settled.stale)) == (0, 1)
    assert all_but_late(second) == before


def finishes(second: Effects, manual_worker: ManualWorker, job: Job) -> None:
    assert manual_worker.settle((job, Done()), released=True).stale == []
    assert row(second, "job_history")["status"] == "succeeded"
    assert audit(second.store, second.ledgers) == []


@pytest.mark.parametrize("ending", [Done(), Retry("busy"), Returned()], ids=["done", "retry", "given back"])
def test_the_enqueue_is_lost_and_its_id_belongs_to_another_job(app: Effects, copy: Rewind, ending: AttemptEnd) -> None:
    second = copy()
    enqueue("scripted", {}, key="order:A", effects=app)
    first_worker = ManualWorker(app, "one")
    survivor = first_worker.claim_one()
    first_worker.release(survivor)

    enqueue("scripted", {}, key="order:B", effects=second)
    manual_worker = ManualWorker(second, "two")
    job = manual_worker.claim_one()
    assert job.id == survivor.id
    nothing_passes(second, first_worker, survivor, ending)
    finishes(second, manual_worker, job)


def test_a_wrong_job_recorded_by_its_owner_is_not_taken_for_ours(app: Effects, copy: Rewind) -> None:
    """The survivor speaks after the owner: an attempt row with its id and its token would make it look accepted."""
    second = copy()
    enqueue("scripted", {}, key="order:A", effects=app)
    first_worker = ManualWorker(app, "one")
    survivor = first_worker.claim_one()
    enqueue("scripted", {}, key="order:B", effects=second)
    manual_worker = ManualWorker(second, "two")
    finishes(second, manual_worker, manual_worker.claim_one())
    nothing_passes(second, first_worker, survivor, Done())


@pytest.mark.parametrize(
    "before", [None, Snooze(1.0), Retry("busy", after_seconds=1.0)], ids=["new", "snoozed", "failed"]
)
def test_the_job_survives_and_its_claim_is_lost(app: Effects, copy: Rewind, before: AttemptEnd | None) -> None:
    enqueue("scripted", {}, key="order:A", effects=app)
    first_worker = ManualWorker(app, "one")
    if before is not None:
        first_worker.settle((first_worker.claim_one(), before))
        app.store.shift_clock(10)
    second = copy()
    survivor = first_worker.claim_one()
    first_worker.release(survivor)

    second.store.shift_clock(10)
    manual_worker = ManualWorker(second, "two")
    job = manual_worker.claim_one()
    assert (job.id, job.attempts) == (survivor.id, survivor.attempts)
    nothing_passes(second, first_worker, survivor, Done())
    finishes(second, manual_worker, job)


def test_the_release_is_lost_and_the_attempt_is_still_its_owners(app: Effects, copy: Rewind) -> None:
    """The claim is in both histories, and so is its token: the word of whoever carried it out counts."""
    enqueue("scripted", {}, key="order:A", effects=app)
    first_worker = ManualWorker(app, "one")
    job = first_worker.claim_one()
    second = copy()
    first_worker.release(job)
    finishes(second, ManualWorker(second, "one"), job)


def test_the_release_is_lost_and_the_job_was_taken_back(app: Effects, copy: Rewind) -> None:
    """As many claims and returns in both histories: only drawn steps tell their attempts apart."""
    enqueue("scripted", {}, key="order:A", effects=app)
    first_worker = ManualWorker(app, "one")
    lost = first_worker.claim_one()
    second = copy()
    first_worker.settle((lost, Returned()))
    survivor = first_worker.claim_one()
    first_worker.release(survivor)

    second.store.shift_clock(LEASE_SECONDS + 1)
    manual_worker = ManualWorker(second, "two")
    assert [settlement.job.id for settlement in manual_worker.rescue().accepted] == [survivor.id]
    second.store.shift_clock(600)
    manual_worker.heartbeat()
    job = manual_worker.claim_one(queue="quarantine")
    assert job.id == survivor.id
    nothing_passes(second, first_worker, survivor, Done())
    nothing_passes(second, first_worker, lost, Done())
    finishes(second, manual_worker, job)
