"""Load on a pair of servers, and the judge: what the receiver saw against what the database says."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from effects import Effects, enqueue
from effects.errors import StoreUnavailable
from effects.operate.tables.audit import audit
from tests.peers.stub_server import StubServer
from tests.support.manual_workers import rows, run_sql
from tests.support.step_jobs import StepJob
from tests.support.waiting import PATIENCE_SECONDS, wait_until

TYPES = ("step_job", "step_job.held", "step_job.async", "step_job.async_held")
# A question takes a while: before the effect, or after it.
KINDS = {"brief": ("do",), "later": ("do",), "slow": ("ask", "do"), "long": ("do", "ask")}
SLOW_SECONDS, LATER_SECONDS = 0.8, 1.5


@dataclass
class Load:
    """Enqueues keyed jobs of every policy, one commit each, until it is stopped.

    `acknowledged`: the names whose commit has returned. `refused`: those whose call raised; they may be stored or not.
    """

    app: Effects
    port: int
    interval_seconds: float
    kinds: Sequence[str] = ("brief",)
    acknowledged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        for number in itertools.count():
            if self.stopping.wait(self.interval_seconds):
                return
            job_type, kind = TYPES[number % len(TYPES)], self.kinds[number // len(TYPES) % len(self.kinds)]
            name = f"{job_type}:{kind}:{number}"
            steps = ("release", *KINDS[kind]) if job_type.endswith("held") else KINDS[kind]
            delay = LATER_SECONDS if kind == "later" else None
            try:
                enqueue(job_type, StepJob(name, self.port, steps), key=name, delay=delay, effects=self.app)
            except StoreUnavailable:
                self.refused.append(name)
            else:
                self.acknowledged.append(name)


@contextmanager
def load(app: Effects, port: int, *, jobs_per_second: float, kinds: Sequence[str] = ("brief",)) -> Iterator[Load]:
    """Under way within, stopped at the end."""
    under_way = Load(app, port, 1 / jobs_per_second, kinds)
    thread = threading.Thread(target=under_way.run)
    thread.start()
    try:
        yield under_way
    finally:
        under_way.stopping.set()
        thread.join()


class TimedStubServer(StubServer):
    """Knows when each effect arrived, by the monotonic clock. A question takes `SLOW_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived_at: list[float] = []
        self._pause = threading.Event()

    def answer(self, line: str) -> str:
        if line.startswith("ask"):
            self._pause.wait(SLOW_SECONDS)
        answer = super().answer(line)
        self.arrived_at.append(time.monotonic())
        return answer

    def await_effect(self, moment: float) -> float:
        """When the first effect after this moment arrived."""
        wait_until(lambda: any(at > moment for at in reversed(self.arrived_at)))
        return next(at for at in self.arrived_at if at > moment)


@dataclass(frozen=True)
class Verdict:
    """What is not as it should be; names of jobs.

    Args:
        lost: acknowledged, and neither arrived nor known.
        forgotten: acknowledged, and the database does not know them, though they may have arrived.
        wrong: recorded otherwise than the receiver saw.
        unlisted: arrived, and the database knows nothing of them, not even as an orphan.
    """

    lost: list[str]
    forgotten: list[str]
    wrong: list[str]
    unlisted: list[str]


def judge(app: Effects, under_way: Load, received: Counter[str]) -> Verdict:
    """Compare every job. A repeat is right where an attempt says that the effect may have happened before."""
    jobs = {row["idempotency_key"]: row for row in rows(app, "job_history")}
    jobs |= {row["idempotency_key"]: row for row in rows(app, "jobs")}
    states = {row["key"]: row["state"] for row in rows(app, "effect_ledger")}
    evidence: dict[int, int] = Counter()
    for row in rows(app, "job_attempts", "verdict IN ('done', 'unknown')"):
        evidence[row["job_id"]] += 1
    forgotten = [name for name in under_way.acknowledged if name not in jobs]
    wrong = []
    for name, job in jobs.items():
        state, arrived = states[name], received[name]
        is_right = state == "done" if arrived else state != "done"
        if state != "unknown" and (not is_right or arrived > max(1, evidence[job["id"]])):
            wrong.append(f"{name} is {state}, {evidence[job['id']]} attempts may have done it, and arrived {arrived}")
    return Verdict(
        lost=[name for name in forgotten if not received[name]],
        forgotten=forgotten,
        wrong=wrong,
        unlisted=sorted(set(received) - set(jobs)),
    )


def await_failover(app: Effects) -> None:
    """Returns when a worker has recorded that the server is another one."""
    _await(lambda: rows(app, "failovers", "sign = 'name'"))


def await_end(app: Effects) -> None:
    """Returns when no job is live; nothing waits for its time."""

    def ended() -> bool:
        run_sql(app, "UPDATE effects_jobs SET run_at = now() WHERE status = 'failed' AND run_at > now()")
        return not rows(app, "jobs")

    _await(ended)


def _await(condition: Callable[[], object]) -> None:
    """After a failover: the first look may find its connection dead."""

    def is_true() -> bool:
        try:
            return bool(condition())
        except StoreUnavailable:
            return False

    wait_until(is_true, seconds=2 * PATIENCE_SECONDS)  # leases end first, and what was lost runs alone


def await_orphans(app: Effects, under_way: Load, stub_server: StubServer) -> None:
    """Returns when each effect is of a job that is known, or listed: attempts of lost jobs may still run."""

    def listed() -> bool:
        orphans = {row["key"] for row in rows(app, "evidence", "fate = 'orphan'")}
        return set(judge(app, under_way, received_by(stub_server)).unlisted) <= orphans

    wait_until(listed)


def received_by(stub_server: StubServer) -> Counter[str]:
    """How often each effect arrived."""
    return Counter(stub_server.done)


def audit_findings(app: Effects) -> list[str]:
    return [f"{finding.sentence} {finding.count} {finding.job_ids}" for finding in audit(app.store, app.ledgers)]
