"""A worker's row says what it last did, and how it ended: a worker that lives and does not work is seen."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from effects import Effects, Pause, enqueue
from effects.kit import crashpoints
from effects.kit.exit_codes import ExitCode
from effects.model.advice import DoctorFinding
from effects.model.settlement import Settlement
from effects.operate.doctor import examine
from effects.operate.evidence import job_evidence
from effects.operate.metrics import database_families
from effects.operate.sentences import advice
from effects.operate.tables.queue_status import WorkerState, read_status
from effects.retry import OnUnknown
from effects.store.numbers.samples import take_sample
from effects.store.workers import ENDED_KEPT, ENDED_KEPT_SECONDS, Activity, end, heartbeat
from effects.worker import Observer, Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.scripted import Scripted

LEASE = 120.0
WORKING = Activity(claimed=1.0, settled=1.0, fired=1.0, oldest_unsettled_seconds=0.5)
REASON = "settler stalled"


def state(app: Effects, name: str = "manual") -> WorkerState:
    [match] = [worker for worker in read_status(app.store, LEASE, app.job_types, []).workers if worker.id == name]
    return match


def findings(app: Effects, check: str) -> list[DoctorFinding]:
    return [finding for finding in examine(app) if finding.check == check]


def metric(app: Effects, name: str, **labels: str) -> float:
    [family] = [family for family in database_families(app) if family.name == name]
    [sample] = [sample for sample in family.samples if dict(sample.labels) == labels]
    return sample.value


def test_a_job_put_off_by_a_lapsed_pause_keeps_its_reason_in_the_status(app: Effects) -> None:
    enqueue("scripted", {}, limit_key="smtp", effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Pause(60, "the server is down", code="connect_failed")))
    app.store.shift_clock(100)
    status = read_status(app.store, LEASE, app.job_types, app.queues)
    assert [(held.kind, held.reason) for held in status.held_up] == [("put_off", "the server is down")]
    assert [(error.error_code, error.jobs) for error in status.errors] == [("connect_failed", 1)]


def test_a_worker_that_misses_heartbeats_is_silent_long_before_its_lease_ends(app: Effects) -> None:
    """By the interval of its own row; the reader's lease may be another."""
    receipt = enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.claim_one()
    assert job_evidence(app, receipt.job_id).silence is None
    app.store.shift_clock(35)
    silence = job_evidence(app, receipt.job_id).silence
    assert silence is not None
    assert 35 <= silence.seconds < LEASE
    assert "which was last heard of" in advice(job_evidence(app, receipt.job_id))
    assert (state(app).state, state(app).alive) == ("silent", True)
    [finding] = findings(app, "heartbeats")
    assert (finding.level, "every 10 s" in finding.text) == ("warning", True)
    manual_worker.heartbeat()
    assert (state(app).state, findings(app, "heartbeats"), findings(app, "leases")) == ("alive", [], [])
    assert job_evidence(app, receipt.job_id).silence is None


def test_a_heartbeats_answer_that_comes_after_a_later_one_changes_nothing(app: Effects) -> None:
    """Its thread stood still, and another beat in its place: no commit was lost, and the lease is no older."""
    worker = Worker(app)
    upkeep, lease = worker._parts.heartbeat, worker._parts._context.lease
    upkeep.register()
    renewed: list[float] = []

    def overtaken(name: str) -> None:
        if name == "heartbeat.committed" and not renewed:
            renewed.append(0.0)
            for _ in range(3):
                upkeep._beat()
            renewed.append(lease.renewed_at)

    crashpoints.install(overtaken)
    try:
        upkeep._beat()
    finally:
        crashpoints.install(None)
    assert row(app, "workers")["beat"] == 4
    assert [failover["sign"] for failover in rows(app, "failovers")] == ["first"]
    assert lease.renewed_at == renewed[1]
    upkeep._beat()
    assert len(rows(app, "failovers")) == 1


class Outcomes(Observer):
    """The outcomes in the order in which they were recorded."""

    def __init__(self) -> None:
        self.recorded_outcomes: list[str] = []

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        self.recorded_outcomes += [settlement.outcome for settlement in settlements]


@pytest.mark.parametrize(("policy", "status"), [("hold", "dead"), ("repeat", "succeeded")])
def test_a_drain_counts_the_lost_jobs_that_it_ends(app_factory: AppFactory, policy: OnUnknown, status: str) -> None:
    """One that runs again counts by what became of it."""
    app = app_factory(job_types=[Scripted(on_unknown=policy)])
    enqueue("scripted", {}, key="k", effects=app)
    gone = ManualWorker(app, "gone")
    gone.release(gone.claim_one())
    app.store.shift_clock(LEASE + 1)
    outcomes = Outcomes()
    worker = Worker(app, observers=[outcomes])
    result = worker.drain(30)
    assert (result.finished, result.counts) == (True, {status: 1})
    assert result.exit_code == (ExitCode.FINDINGS if status == "dead" else ExitCode.DONE)
    assert outcomes.recorded_outcomes == ["lost", "succeeded"][: 1 if status == "dead" else 2]


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (Activity(), "alive"),  # one that has just begun
        (WORKING, "alive"),
        (Activity(claimed=LEASE - 60, settled=None, fired=None, oldest_unsettled_seconds=0.0), "alive"),
        (Activity(claimed=LEASE + 10, settled=1.0, fired=1.0, oldest_unsettled_seconds=0.0), "idle"),
        (Activity(claimed=1.0, settled=1.0, fired=1.0, oldest_unsettled_seconds=LEASE + 10), "idle"),
    ],
)
def test_a_live_worker_that_does_nothing_is_reported(app: Effects, activity: Activity, expected: str) -> None:
    manual_worker = ManualWorker(app)
    heartbeat(app.store, manual_worker.name, activity)
    assert state(app).state == expected
    idle = int(expected == "idle")
    assert metric(app, "effects_workers", state="idle") == idle
    assert metric(app, "effects_workers", state="alive") == 1
    [finding] = findings(app, "workers")
    assert finding.level == ("warning" if idle else "ok")
    assert ("restart" in (finding.advice or "")) == bool(idle)


def test_the_row_shows_when_a_worker_last_worked(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    heartbeat(app.store, manual_worker.name, WORKING)
    worker = state(app)
    assert 1.0 <= (worker.claimed_seconds or 0) < 60
    assert 1.0 <= (worker.settled_seconds or 0) < 60
    assert 1.0 <= (worker.fired_seconds or 0) < 60
    assert worker.oldest_unsettled_seconds == 0.5
    assert metric(app, "effects_oldest_unsettled_seconds") == 0.5


def test_a_worker_that_ended_by_a_fault_is_listed(app: Effects) -> None:
    for number in range(3):
        ManualWorker(app, f"manual{number}")
    end(app.store, "manual0", ExitCode.PART_FAILED, REASON)
    assert findings(app, "failed workers") == []  # once is no pattern
    end(app.store, "manual1", ExitCode.PART_FAILED, REASON)
    [finding] = findings(app, "failed workers")
    assert (finding.level, REASON in finding.text) == ("warning", True)
    worker = state(app, "manual1")
    assert (worker.state, worker.alive, worker.exit_code, worker.reason) == ("failed", False, 70, REASON)
    assert metric(app, "effects_workers", state="alive") == 1
    assert metric(app, "effects_workers_failed_last_hour") == 2
    app.store.shift_clock(3700)
    assert findings(app, "failed workers") == []


def test_what_an_ended_worker_left_is_rescued_at_once(app: Effects) -> None:
    manual_worker, successor = ManualWorker(app), ManualWorker(app, "successor")
    enqueue("scripted", {}, effects=app)
    manual_worker.claim_one()
    assert successor.rescue().accepted == []
    end(app.store, manual_worker.name, ExitCode.PART_FAILED, REASON)
    assert len(successor.rescue().accepted) == 1


def test_rows_of_ended_workers_are_bounded_and_deleted(app: Effects) -> None:
    survivor = ManualWorker(app, "survivor")
    for number in range(ENDED_KEPT + 5):
        ManualWorker(app, f"manual{number}")
        end(app.store, f"manual{number}", ExitCode.PART_FAILED, REASON)
    survivor.rescue()
    assert len(rows(app, "workers", "ended_at IS NOT NULL")) == ENDED_KEPT
    app.store.shift_clock(ENDED_KEPT_SECONDS + 1)
    survivor.heartbeat()
    survivor.rescue()
    assert [worker["id"] for worker in rows(app, "workers")] == ["survivor"]


def test_a_worker_keeps_its_row_when_too_many_handlers_hang(app_factory: AppFactory) -> None:
    scripted = Scripted(time_limit_seconds=0.05)
    app = app_factory(job_types=[scripted], threads=5)
    for _ in range(4):
        enqueue("scripted", {"moves": ["wait"]}, effects=app)
    try:
        assert Worker(app, queues={"default": 5}).run() == ExitCode.HANDLERS_HANG
    finally:
        scripted.gate.set()
    worker = row(app, "workers")
    assert (worker["exit_code"], worker["end_reason"]) == (75, "handlers hang")


class OpensTheGate(logging.Handler):
    """Lets the handlers come back once the worker has said that they hang."""

    def __init__(self, scripted: Scripted) -> None:
        super().__init__()
        self.scripted = scripted
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage() == "worker.handlers_hang":
            self.records.append(record)
            self.scripted.gate.set()


def test_handlers_that_return_during_shutdown_do_not_hide_its_reason(app_factory: AppFactory) -> None:
    scripted = Scripted(time_limit_seconds=0.05)
    app = app_factory(job_types=[scripted], threads=5)
    jobs = [enqueue("scripted", {"moves": ["wait"]}, effects=app).job_id for _ in range(4)]
    watcher = OpensTheGate(scripted)
    logger = logging.getLogger("effects.worker")
    logger.addHandler(watcher)
    try:
        assert Worker(app, queues={"default": 5}).run() == ExitCode.HANDLERS_HANG
    finally:
        scripted.gate.set()
        logger.removeHandler(watcher)
    [record] = watcher.records
    assert record.levelno == logging.ERROR
    assert sorted(vars(record)["jobs"].split(",")) == sorted(map(str, jobs))
    assert vars(record)["types"] == "scripted"
    assert row(app, "workers")["end_reason"] == "handlers hang"


@pytest.mark.parametrize(
    ("absent", "due", "level", "text"),
    [
        (None, None, "ok", "no worker has run yet"),  # a new database
        (None, 60, "ok", "no worker has run yet"),
        (None, 900, "warning", "1 job is due"),
        (300, None, "ok", "min ago"),  # drains by cron, and nothing to do
        (300, 900, "ok", "min ago"),  # a drain came by: the job waits for something else, such as a pause
        (7200, None, "ok", "min ago"),
        (7200, 60, "ok", "min ago"),  # enqueued a moment ago
        (7200, 900, "warning", "1 job is due"),
        (2 * 86_400, None, "warning", "no worker is running"),  # no schedule ran, nothing was pruned
    ],
)
def test_no_worker_is_a_warning_where_jobs_wait_for_one(
    app: Effects, absent: float | None, due: float | None, level: str, text: str
) -> None:
    if absent is not None:
        take_sample(app.store, LEASE)
        app.store.shift_clock(absent - (due or 0) + 5)
    if due is not None:
        enqueue("scripted", {}, effects=app)
        app.store.shift_clock(due)
    [finding] = findings(app, "workers")
    assert (finding.level, "no worker is running" in finding.text) == (level, True)
    assert text in finding.text
    assert ("effects work" in (finding.advice or "")) == (level == "warning")


def test_a_working_worker_is_not_reported_as_absent(app: Effects) -> None:
    take_sample(app.store, LEASE)
    app.store.shift_clock(7200)
    enqueue("scripted", {}, effects=app)
    app.store.shift_clock(900)
    ManualWorker(app)
    [finding] = findings(app, "workers")
    assert (finding.level, finding.text) == ("ok", "1 alive, 0 silent")
