"""Evidence of an effect: the one reason why it waits, and actions that are accepted as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from effects import Done, Effects, Retry, enqueue, enqueue_many
from effects.limits import Breaker, Rate
from effects.observation.evidence import Evidence, find_evidence, job_evidence
from effects.observation.sentences import wait_text
from effects.observation.waits import Wait
from effects.store.limits import queue_pauses
from effects.store.limits import rows as limit_rows
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.effect_states import KINDS, STATES, Effect, EffectStates, effects_app
from tests.support.limited_jobs import answered, claim_all, limited
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.sampling import sample
from tests.support.scripted import Scripted

# -- why it waits ----------------------------------------------------------------------------------------------


def waits(app: Effects, job_id: int) -> Wait:
    wait = job_evidence(app, job_id).waits
    assert wait is not None
    return wait


def live(app: Effects, **options: object) -> int:
    return enqueue("scripted", {}, effects=app, **options).job_id  # type: ignore[arg-type]


def pause_queue(app: Effects, seconds: float | None = None) -> None:
    with app.store.begin() as connection:
        queue_pauses.pause(
            app.store, connection, "default", actor="ann", seconds=seconds, reason="a release", create=True
        )


def pause_key(app: Effects, key: str, seconds: float = 600.0) -> None:
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, key, actor="ann", seconds=seconds, reason="they asked", create=True)


def limit(app: Effects, key: str, **limits: object) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure(app.store, connection, key, **limits)  # type: ignore[arg-type]


def of_paused_queue(app: Effects) -> int:
    ManualWorker(app)
    pause_queue(app)
    return live(app)


def of_paused_key(app: Effects) -> int:
    ManualWorker(app)
    pause_key(app, "k")
    return live(app, limit_key="k")


def of_paused_parent(app: Effects) -> int:
    ManualWorker(app)
    limit(app, "k", parent="above")
    pause_key(app, "above")
    return live(app, limit_key="k")


def behind_a_breaker(app: Effects) -> int:
    limit(app, "k", breaker=Breaker(1, 600.0))
    enqueue_many(limited("k", 2), effects=app)
    worker = ManualWorker(app)
    answered(worker, (worker.claim(1)[0], Retry("busy", after_seconds=7200)))
    return live(app, limit_key="k")


def behind_a_trial(app: Effects) -> int:
    job_id = behind_a_breaker(app)
    app.store.shift_clock(601)
    ManualWorker(app, "second").claim_one()
    return job_id


def in_a_blocked_group(app: Effects) -> int:
    ManualWorker(app)
    job_id = live(app, group_key="g")
    run_sql(app, "UPDATE effects_job_groups SET blocked = true WHERE group_key = 'g'")
    return job_id


def behind_a_group_head(app: Effects) -> int:
    ManualWorker(app)
    live(app, group_key="g")
    return live(app, group_key="g")


def with_a_draining_worker(app: Effects) -> int:
    ManualWorker(app)
    run_sql(app, f"UPDATE effects_workers SET drain_requested_at = {app.store.sql.now}")
    return live(app)


def with_a_silent_worker(app: Effects) -> int:
    ManualWorker(app)
    app.store.shift_clock(app.settings.lease_seconds + 1)
    return live(app)


def with_another_queues_worker(app: Effects) -> int:
    ManualWorker(app, queue="others")
    return live(app)


def of_a_missing_type(app: Effects) -> int:
    ManualWorker(app)
    run_sql(app, "INSERT INTO effects_jobs (job_type) VALUES ('no.such')")
    with app.store.read() as connection:
        return int(connection.exec_driver_sql("SELECT max(id) FROM effects_jobs").scalar_one())


def of_a_full_key(app: Effects) -> int:
    limit(app, "k", max_in_flight=1)
    live(app, limit_key="k")
    ManualWorker(app).claim_one()
    return live(app, limit_key="k")


def of_a_key_without_a_token(app: Effects) -> int:
    limit(app, "k", rate=Rate(1, 3600.0, 1))
    live(app, limit_key="k")
    ManualWorker(app).claim_one()
    return live(app, limit_key="k")


def due_later(app: Effects) -> int:
    ManualWorker(app)
    return live(app, run_at=datetime.now(UTC) + timedelta(hours=1))


def due(app: Effects) -> int:
    ManualWorker(app)
    return live(app)


REASONS: list[tuple[Callable[[Effects], int], str, str, str]] = [
    (
        of_paused_queue,
        "queue_paused",
        "default",
        r"its queue default is paused by ann until it is resumed \(a release\)",
    ),
    (of_paused_key, "limit_paused", "k", r"its limit key k is paused until 20.{17}Z \(they asked\)"),
    (of_paused_parent, "limit_paused", "above", r"its limit key above is paused until 20.{17}Z \(they asked\)"),
    (behind_a_breaker, "breaker", "k", r"the breaker of its limit key k is open: paused until 20.*after 1 failures"),
    (behind_a_trial, "trial", "k", r"due .* ago, waiting for the one trial that the open breaker of its limit key k"),
    (in_a_blocked_group, "group_blocked", "g", r"due .* ago, its group g is blocked"),
    (behind_a_group_head, "group_head", "g", r"due .* ago, waiting behind job \d+ of its group g"),
    (with_a_draining_worker, "no_worker", "default", r"due .* waiting for a worker on queue default: none is alive"),
    (with_a_silent_worker, "no_worker", "default", r"due .* waiting for a worker on queue default: none is alive"),
    (with_another_queues_worker, "no_worker_for_queue", "default", r"due .* none of those alive serves it"),
    (of_a_missing_type, "type_not_registered", "no.such", r"with its job type no\.such, which is not registered here"),
    (of_a_full_key, "cap", "k", r"due .* waiting for its limit key k: 1 of at most 1 run"),
    (of_a_key_without_a_token, "rate", "k", r"due .* waiting for the rate of its limit key k: next start at 20"),
    (due_later, "due_later", "", r"next attempt at 20.*, in (59|60) min|next attempt at 20.*, in 1 h"),
    (due, "free_worker", "default", r"due .* ago, waiting for a free worker on queue default"),
]


@pytest.mark.parametrize(("make", "reason", "name", "text"), REASONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_waiting_job_has_exactly_one_reason(
    app: Effects, make: Callable[[Effects], int], reason: str, name: str, text: str
) -> None:
    job_id = make(app)
    wait = waits(app, job_id)
    assert (wait.reason, wait.name) == (reason, name)
    assert re.search(text, wait_text(wait)), wait_text(wait)
    document = command(app, "jobs", "show", job_id, "--json").json
    assert document["waits"]["reason"] == reason
    lacks_worker = reason in ("no_worker", "no_worker_for_queue", "free_worker")
    assert (job_id in {job.id for job in claim_all(ManualWorker(app, "a free one"))}) is lacks_worker


def test_the_latest_of_several_times_is_the_reason(app: Effects) -> None:
    ManualWorker(app)
    job_id = live(app, limit_key="k", run_at=datetime.now(UTC) + timedelta(hours=1))
    pause_key(app, "k", 600)
    assert waits(app, job_id).reason == "due_later"
    pause_key(app, "k", 7200)
    assert waits(app, job_id).reason == "limit_paused"
    pause_queue(app, 86_400)
    assert waits(app, job_id).reason == "queue_paused"
    assert [action.name for action in job_evidence(app, job_id).next] == ["resume-queue", "run-now", "cancel"]


def test_a_running_or_ended_job_waits_for_nothing(app: Effects) -> None:
    job_id = live(app, key="k")
    worker = ManualWorker(app)
    job = worker.claim_one()
    assert (job_evidence(app, job_id).state, job_evidence(app, job_id).waits) == ("running", None)
    worker.settle((job, Retry("busy", detail={"status": 503, "ms": {"connect": 1.5, "total": 1.5, "odd": "x"}})))
    [evidence] = find_evidence(app, "k")
    assert (evidence.state, evidence.facts.tries) == ("waiting", 1)
    [attempt] = evidence.facts.attempts
    assert (attempt.answer, attempt.phases_ms) == ("HTTP 503, busy", {"connect": 1.5, "total": 1.5})


def test_a_hook_that_fails_breaks_no_evidence(app_factory: AppFactory) -> None:
    class Faulty(Scripted):
        def explain(self, *arguments: object) -> None:
            raise ValueError("rosebud")

    app = app_factory(job_types=[Faulty()])
    job_id = live(app)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), Retry("busy")))
    explanation = job_evidence(app, job_id).facts.explanation
    assert explanation is not None
    assert explanation.follows == "ValueError"


# -- what may be done ------------------------------------------------------------------------------------------

# Every action with its command for a job, in the weakest form that may be accepted.
COMMANDS = {
    "run-now": ["effects jobs run-now {job}"],
    "cancel": ["effects jobs cancel {job}"],
    "requeue": ["effects jobs requeue {job}"],
    "mark-done": ["effects dead resolve {job} --as mark-done"],
    "give-up": ["effects dead resolve {job} --as give-up"],
    "ignore": ["effects dead ignore {job} --reason REASON"],
}


@pytest.fixture
def effects(app_factory: AppFactory, tmp_path: Path) -> EffectStates:
    return EffectStates(effects_app(app_factory, tmp_path))


def evidence_of(states: EffectStates, effect: Effect) -> Evidence:
    return job_evidence(states.app, effect.newest)


def run(states: EffectStates, line: str) -> int:
    return command(states.app, *shlex.split(line)[1:]).exit_code


@pytest.mark.slow
def test_offered_actions_work_and_others_are_refused(effects: EffectStates) -> None:
    for kind, state in sample([(kind, state) for kind in KINDS for state in STATES], 15):
        offered = evidence_of(effects, effects.make(kind, state)).next
        for number in range(len(offered)):
            effect = effects.make(kind, state)
            action = evidence_of(effects, effect).next[number]
            assert run(effects, action.command) == 0, (kind, state, action)
        plain = {action.name for action in offered if action.confirmation is None}
        for name, [line] in COMMANDS.items():
            if name not in plain:
                effect = effects.make(kind, state)
                assert run(effects, line.format(job=effect.newest)) != 0, (kind, state, name)


@pytest.mark.parametrize(("kind", "state", "names"), [
    ("held", "waiting", ["run-now", "cancel"]),
    ("held", "running", ["cancel"]),
    ("held", "refused", ["requeue", "ignore"]),
    ("held", "ignored", ["requeue"]),
    ("held", "unknown", ["requeue!", "mark-done", "give-up", "ignore"]),
    ("scripted", "unknown", ["requeue", "mark-done", "give-up", "ignore"]),
    ("keyless", "unknown", ["requeue!", "mark-done", "give-up", "ignore"]),
    ("held", "given up", ["requeue!"]),
    ("held", "done", ["requeue!"]),
    ("held", "requeued", ["run-now", "cancel"]),
])  # fmt: skip
def test_the_actions_fit_the_state(effects: EffectStates, kind: str, state: str, names: list[str]) -> None:
    evidence = evidence_of(effects, effects.make(kind, state))
    assert [action.name + ("!" if action.confirmation else "") for action in evidence.next] == names


def test_an_override_is_among_the_facts(effects: EffectStates) -> None:
    effect = effects.make("held", "done")
    [action] = evidence_of(effects, effect).next
    assert action.confirmation == "even_if_done"
    assert run(effects, action.command) == 0
    [evidence] = find_evidence(effects.app, effect.name or "")
    assert [override.action for override in evidence.facts.overrides] == ["even_if_done"]


def test_a_job_that_ends_meanwhile_is_seen_whole_or_not_at_all(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted("held", on_unknown="hold")])
    enqueue("held", {}, key="k", effects=app)
    worker = ManualWorker(app)
    job = worker.claim_one()
    ends = iter([lambda: worker.settle((job, Done()), released=True)])

    def after_each_statement(*_: object) -> None:
        for end in ends:  # once
            end()

    for engine in app.store.engines:
        event.listen(engine, "after_cursor_execute", after_each_statement)
    [evidence] = find_evidence(app, "k")
    seen = (evidence.state, evidence.facts.ledger_state, evidence.facts.jobs[0].status)
    assert seen in (("running", "intended", "running"), ("done", "done", "succeeded"))
    assert [evidence.state for evidence in find_evidence(app, "k")] == ["done"]
