"""The fence across histories, by a real promotion: an attempt that survives changes nothing that is not its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effects import Done, Effects, enqueue
from effects.operate.tables.audit import audit
from tests.support import databases
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Scripted
from tests.support.server_pair import ServerPair, server_pair


@pytest.fixture
def pair() -> Iterator[ServerPair]:
    with server_pair(synchronous=False) as servers:
        databases.migrated(servers.url)
        yield servers


class _Histories:
    """The app before the failover and after it."""

    def __init__(self, pair: ServerPair) -> None:
        self._pair = pair
        self.first = self._app()
        self.survivor = ManualWorker(self.first, "survivor")

    def _app(self) -> Effects:
        return Effects(self._pair.url, job_types=[Scripted(on_unknown="hold")], sessions="off")

    def lose_from_here(self) -> None:
        self._pair.await_replay()
        self._pair.cut_off()

    def go_on(self) -> Effects:
        self.first.dispose()
        self._pair.fail_over()
        return self._app()


def _finish(second: Effects, job_id: int) -> None:
    """The attempt of the present history is recorded, and nothing is wrong."""
    assert row(second, "job_history", "id = :id", id=job_id)["status"] == "succeeded"
    assert audit(second.store, second.ledgers) == []
    second.dispose()


def test_the_enqueue_is_lost_and_its_id_belongs_to_another_job(pair: ServerPair) -> None:
    histories = _Histories(pair)
    histories.lose_from_here()
    enqueue("scripted", {}, key="order:A", effects=histories.first)
    survivor = histories.survivor.claim_one()
    histories.survivor.release(survivor)
    second = histories.go_on()
    enqueue("scripted", {}, key="order:B", effects=second)
    rival, late = ManualWorker(second, "rival"), ManualWorker(second, "survivor")
    # A promoted server skips up to 32 ids; without a checkpoint in between it hands out the same again.
    jobs = [rival.claim_one()]
    while jobs[-1].id < survivor.id:
        enqueue("scripted", {}, effects=second)
        jobs.append(rival.claim_one())
    assert late.release(survivor) == set()
    assert late.settle((survivor, Done()), released=True).accepted == []
    assert rival.settle(*((job, Done()) for job in jobs), released=True).stale == []
    _finish(second, jobs[0].id)


def test_the_job_survives_and_its_claim_is_lost(pair: ServerPair) -> None:
    histories = _Histories(pair)
    enqueue("scripted", {}, key="order:A", effects=histories.first)
    histories.lose_from_here()
    survivor = histories.survivor.claim_one()
    histories.survivor.release(survivor)
    second = histories.go_on()
    rival, late = ManualWorker(second, "rival"), ManualWorker(second, "survivor")
    job = rival.claim_one()
    assert (job.id, job.attempts) == (survivor.id, survivor.attempts)
    assert late.release(survivor) == set()
    assert late.settle((survivor, Done()), released=True).accepted == []
    assert rival.settle((job, Done()), released=True).stale == []
    _finish(second, job.id)


def test_the_release_is_lost_and_the_attempt_is_still_its_owners(pair: ServerPair) -> None:
    histories = _Histories(pair)
    enqueue("scripted", {}, key="order:A", effects=histories.first)
    job = histories.survivor.claim_one()
    histories.lose_from_here()
    histories.survivor.release(job)
    second = histories.go_on()
    [running] = rows(second, "jobs")
    assert (running["released_at"], running["lease_token"]) == (None, job.lease_token)
    assert ManualWorker(second, "survivor").settle((job, Done()), released=True).stale == []
    _finish(second, job.id)
