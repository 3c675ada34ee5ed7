"""What must hold of every world that has come to rest: its tables against the receiver's log.

A rule is a function of `Facts` that yields a sentence for each thing that is wrong; `RULES` lists them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec

from effects.kit.exit_codes import ExitCode
from effects.store.schema.job_tables import STATUS_LIVE
from tests.simulator.database import EPOCH
from tests.simulator.jobs import ATTEMPTS_MAX, RETRY_SECONDS, Run
from tests.simulator.plan import WAYS, Plan, PlannedJob
from tests.simulator.world import World

EXACT_SECONDS = 0.05  # between the world's clock and the database's times of an attempt
SLOT_MS = 60_000
COUNTED = ("failed", "unknown", "timed_out", "succeeded", "refused")
_ATTEMPTS = "SELECT job_id, lease_token, outcome, verdict, late_verdict FROM effects_job_attempts ORDER BY 1, 2"
_JOBS = """
SELECT id, payload ->> 'name', status, requeued_from IS NULL FROM effects_job_history
UNION ALL SELECT id, payload ->> 'name', status, requeued_from IS NULL FROM effects_jobs ORDER BY 1"""
_EVIDENCE = "SELECT job_id, lease_token FROM effects_evidence"
_LIVE = f"SELECT id, status FROM effects_jobs WHERE {STATUS_LIVE} AND definition_id IS NULL ORDER BY id"  # no slot's
_MARKED = "SELECT job_id FROM effects_job_actions WHERE action = 'mark_done'"
_SLOTS = "SELECT slot, outcome FROM effects_definition_runs ORDER BY 1"


class AttemptRow(msgspec.Struct, frozen=True):
    job_id: int
    token: int
    outcome: str
    verdict: str | None
    late: str | None


class Facts:
    """A world and what its tables say."""

    def __init__(self, world: World) -> None:
        self.world, self.plan, query = world, world.plan, world.database.query
        self.attempts = {(row[0], row[1]): AttemptRow(*row) for row in query(_ATTEMPTS)}
        self.jobs: dict[int, tuple[str, str, bool]] = {row[0]: row[1:] for row in query(_JOBS)}
        self.live = query(_LIVE)
        self.marked = {job for (job,) in query(_MARKED)}
        self.applied = Counter(map(tuple, query("SELECT job_id, token FROM applied")))
        self.planned: dict[str, PlannedJob] = {job.name: job for job in world.plan.jobs}
        ends = query("SELECT * FROM ends")
        self.ends = {(job, token): at for job, token, at, _ in ends}
        self.leased_until = {(job, token): leased / 1000 - EPOCH for job, token, _, leased in ends}
        self.runs = world.receiver.runs
        self.ids: dict[str, list[int]] = defaultdict(list)
        for job_id, (name, *_) in self.jobs.items():
            self.ids[name].append(job_id)
        self.clock_is_right = not world.plan.has("clock", "failover")

    @cached_property
    def arrivals(self) -> list[Run]:
        return [run for run in self.runs if run.arrived is not None]

    def under_way(self, name: str) -> Iterator[tuple[Run, float]]:
        """Its runs, and until when each held its job: a worker that gives one up goes on without."""
        for run in self.runs_of.get(name, ()):
            until = min(run.ended, self.ends.get(run.key, run.ended))
            if run.began < until:
                yield run, until

    @cached_property
    def runs_of(self) -> dict[str, list[Run]]:
        runs: dict[str, list[Run]] = defaultdict(list)
        for run in self.runs:
            runs[run.name].append(run)
        return runs


def complaints(world: World) -> list[str]:
    """What does not hold, each behind the name of its rule; empty for a world in which everything was right."""
    facts = Facts(world)
    return [f"{rule.__name__}: {sentence}" for rule in RULES for sentence in rule(facts)]


def nothing_is_stuck(facts: Facts) -> Iterator[str]:
    for job, status in facts.live:
        yield f"job {job} is {status} though everything is at rest"
    for name in facts.planned:
        if name not in facts.world.ids:
            yield f"{name} was never enqueued"


def attempts_are_as_they_arrived(facts: Facts) -> Iterator[str]:
    arrived = {run.key for run in facts.arrivals}
    for key, attempt in facts.attempts.items():
        if facts.world.failed_over and key not in {run.key for run in facts.runs}:
            continue  # written back, with a token of its own
        if attempt.late is not None and attempt.outcome != "lost" and attempt.verdict != "unknown":
            yield f"an attempt of job {key[0]} is {attempt.outcome}, and known too late as {attempt.late}"
        for word, verdict in (("recorded", attempt.verdict), ("known too late", attempt.late)):
            if verdict == "done" and key not in arrived:
                yield f"an attempt of job {key[0]} is {word} as done, and nothing arrived"
            if verdict == "not_done" and key in arrived:
                yield f"an attempt of job {key[0]} is {word} as not done, and it arrived"


def arrivals_are_on_record(facts: Facts) -> Iterator[str]:
    """Also those whose commits a failover lost, but where the worker that remembered them ended as well, or stood still
    for longer than it remembers them.
    """
    on_record = facts.attempts.keys() | set(map(tuple, facts.world.database.query(_EVIDENCE)))
    stood_still = facts.plan.has("freeze", "freeze in a handler", "stall", "preempt")
    for run in facts.arrivals:
        excused = facts.world.failed_over and (stood_still or run.process in facts.world.gone)
        if run.key not in on_record and not excused:
            yield f"an attempt of job {run.job_id} arrived, and none is on record"


def what_came_too_late_is_kept(facts: Facts) -> Iterator[str]:
    for key, verdict in facts.world.refused.items():
        attempt = facts.attempts.get(key)
        late = attempt is not None and (attempt.outcome == "lost" or attempt.verdict == "unknown")
        if late and attempt.late is None and not facts.world.failed_over:
            yield f"an attempt of job {key[0]} was {verdict}, which came too late, and is not kept"


def an_apply_is_called_again_once(facts: Facts) -> Iterator[str]:
    """Where it loses its connection; faults of the plan may repeat a call."""
    if facts.plan.faults:
        return
    for key, times in facts.world.receiver.calls_of_apply.items():
        if times > 3:
            yield f"the apply of an attempt of job {key[0]} was called {times} times"


def effects_happen_once_or_are_unknown(facts: Facts) -> Iterator[str]:
    arrivals = Counter(run.name for run in facts.arrivals)
    unknown = Counter(
        facts.jobs[key[0]][0] for key, attempt in facts.attempts.items()
        if attempt.verdict == "unknown" and key[0] in facts.jobs
    )  # fmt: skip
    for name, ids in facts.ids.items():
        if any(facts.jobs[job][1] == "succeeded" for job in ids) and not arrivals[name]:
            yield f"{name} is done, and nothing arrived"
        if arrivals[name] - 1 > unknown[name] and not facts.world.failed_over:
            yield f"{name} arrived {arrivals[name]} times with {unknown[name]} unknown attempts on record"


def what_is_unknown_is_repeated_as_the_policy_says(facts: Facts) -> Iterator[str]:
    most = {"hold": 1, "repeat_once": 2}
    times = Counter(run.job_id for run in facts.arrivals)
    for job_id, (name, *_) in facts.jobs.items():
        policy = facts.planned[name].policy if name in facts.planned else "repeat"
        if times[job_id] > most.get(policy, ATTEMPTS_MAX + 5) and not facts.world.failed_over:
            yield f"{name} ({policy}) arrived {times[job_id]} times by one job"


def attempts_are_bounded(facts: Facts) -> Iterator[str]:
    counted = Counter(key[0] for key, attempt in facts.attempts.items() if attempt.outcome in COUNTED)
    for job, attempts in counted.items():
        if attempts > ATTEMPTS_MAX:
            yield f"job {job} had {attempts} attempts"


def waits_are_kept(facts: Facts) -> Iterator[str]:
    """A retry comes after its pause, a delayed job after its delay."""
    if not facts.clock_is_right:
        return
    for name, runs in facts.runs_of.items():
        for before, after in pairwise(runs):
            attempt = facts.attempts.get(before.key)
            failed = attempt is not None and attempt.outcome == "failed" and before.job_id == after.job_id
            if failed and after.began < before.ended + RETRY_SECONDS - EXACT_SECONDS:
                yield f"{name} was tried again {after.began - before.ended:.2f} s after it failed"
        job = facts.planned.get(name)
        if job is not None and runs[0].began < job.at + job.delay - EXACT_SECONDS:
            yield f"{name} began {job.at + job.delay - runs[0].began:.2f} s before its time"


def groups_are_in_order(facts: Facts) -> Iterator[str]:
    """A job of a group begins when those before it have ended, or lost their jobs."""
    groups: dict[str, list[tuple[Run, float]]] = defaultdict(list)
    for name, job in facts.planned.items():
        if job.group is not None:
            groups[job.group] += facts.under_way(name)
    for group, runs in groups.items():
        ordered = sorted(runs, key=lambda span: (span[0].job_id, span[0].began))
        for (before, until), (after, _) in pairwise(ordered):
            if after.began < until and not facts.world.failed_over:
                yield f"{after.name} of {group} began at {after.began:.2f} s, before {before.name} had ended"


def caps_hold(facts: Facts) -> Iterator[str]:
    """Of jobs whose lease is valid: what a worker that stands still holds is free again after that, rescued or not."""
    for key, most in facts.plan.climate.caps.items():
        spans = [
            (run, min(until, facts.leased_until.get(run.key, until)))
            for name, job in facts.planned.items() if job.limit == key for run, until in facts.under_way(name)
        ]  # fmt: skip
        for run, _ in sorted(spans, key=lambda span: span[0].began):
            together = [held.name for held, until in spans if held.began <= run.began < until]
            if len(together) > most and facts.clock_is_right:
                yield f"{', '.join(together)} of {key} were under way together at {run.began:.2f} s"
                break


def what_is_applied_is_done(facts: Facts) -> Iterator[str]:
    """An `apply` commits with its outcome, once."""
    for key, times in facts.applied.items():
        attempt = facts.attempts.get(key)
        if times > 1:
            yield f"the apply of an attempt of job {key[0]} was committed {times} times"
        resolved = attempt is not None and attempt.late == "done" and key[0] in facts.marked
        if not resolved and (attempt is None or attempt.verdict != "done"):
            yield f"the apply of an attempt of job {key[0]} was committed, and it is not done"
    for key, attempt in facts.attempts.items():
        job = facts.planned.get(facts.jobs[key[0]][0]) if key[0] in facts.jobs else None
        applies = job is not None and job.applies and not facts.world.failed_over
        if applies and attempt.verdict == "done" and not facts.applied[key]:
            yield f"an attempt of job {key[0]} is done, and its apply is not"


def cancelled_is_cancelled(facts: Facts) -> Iterator[str]:
    """None arrives that was said not to, and no attempt is followed by another."""
    most = {"cancelled": 0, "stopped": 1, "released": 1}
    for act in facts.world.people.acts:
        if act.result not in most or len(facts.ids[act.subject]) > 1 or facts.world.failed_over:
            continue
        runs = facts.runs_of.get(act.subject, ())
        if act.prevented and any(run.arrived and run.arrived > act.at for run in runs):
            yield f"{act.subject} arrived after its cancellation had said that it would not"
        if sum(run.began > act.at for run in runs) > most[act.result]:
            yield f"{act.subject} was cancelled ({act.result}), and went on"


def one_job_has_a_key(facts: Facts) -> Iterator[str]:
    for name, ids in facts.ids.items():
        first = [job for job in ids if facts.jobs[job][2]]
        if len(first) != 1 and (name not in facts.planned or facts.planned[name].keyed):
            yield f"{name} was enqueued {len(first)} times"


def every_slot_has_its_job(facts: Facts) -> Iterator[str]:
    slots: list[Any] = facts.world.database.query(_SLOTS)
    for _, outcome in slots:
        if outcome != "enqueued":
            yield f"a slot is {outcome}"
    times = [slot for slot, _ in slots]
    for before, after in pairwise(times):
        if facts.clock_is_right and after - before > SLOT_MS:
            yield f"no slot between {before} and {after}"


def workers_live(facts: Facts) -> Iterator[str]:
    """None ends by itself, or logs an error, that nothing in the plan explains."""
    ends, errors = _expected(facts.plan)
    for process, code in facts.world.ends:
        if code not in ends:
            yield f"{process} ended with {code}"
    for event, times in facts.world.errors.items():
        if event not in errors:
            yield f"the log says {event}, {times} times"


def _expected(plan: Plan) -> tuple[set[str], set[str]]:
    """With which codes workers may end, and which errors they may log."""
    ends, errors = {"0"}, {"job.dead"}
    if plan.has("freeze", "freeze in a handler", "stall", "preempt"):  # a part that does not come round ends its worker
        ends |= {str(int(ExitCode.PART_FAILED)), str(int(ExitCode.HANDLERS_HANG))}
        errors |= {"worker.part_failed", "worker.fenced_off", "worker.handlers_hang"}
    if plan.has("away", "clock", "failover"):
        errors.add("worker.fenced_off")
    if plan.has("cut before commit", "cut after commit"):  # two in a row are blamed on the statement
        errors |= {"database.rejected", "settle.failed", "schedule.failed"}
    if plan.climate.ways[WAYS.index("silent")]:
        ends.add(str(int(ExitCode.HANDLERS_HANG)))
        errors.add("worker.handlers_hang")
    if any(job.applies not in (None, "row") for job in plan.jobs):
        errors |= {"settle.failed", "late.not_resolved"}
    return ends, errors


def what_is_lost_has_a_reason(facts: Facts) -> Iterator[str]:
    """Its worker ended, or was away for a while."""
    if facts.plan.has("freeze", "freeze in a handler", "stall", "preempt", "clock", "failover"):
        return
    for run in facts.runs:
        attempt = facts.attempts.get(run.key)
        if attempt is not None and attempt.outcome == "lost" and run.process not in facts.world.gone:
            yield f"an attempt of {run.name} was lost, and its worker was there"


def the_audit_is_clean(facts: Facts) -> Iterator[str]:
    yield from facts.world.findings


RULES: tuple[Callable[[Facts], Iterator[str]], ...] = (
    nothing_is_stuck, attempts_are_as_they_arrived, arrivals_are_on_record, effects_happen_once_or_are_unknown,
    what_is_unknown_is_repeated_as_the_policy_says, attempts_are_bounded, waits_are_kept, groups_are_in_order,
    caps_hold, what_came_too_late_is_kept, an_apply_is_called_again_once, what_is_applied_is_done,
    cancelled_is_cancelled, one_job_has_a_key, every_slot_has_its_job, workers_live, what_is_lost_has_a_reason,
    the_audit_is_clean,
)  # fmt: skip
