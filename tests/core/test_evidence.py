"""Evidence of an effect: the one reason why it waits, and actions that are accepted as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import event

from effects import Done, Effects, Retry, enqueue
from effects.operate.evidence import Evidence, find_evidence, job_evidence
from effects.operate.sentences import wait_text
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.effect_states import KINDS, STATES, Effect, EffectStates, effects_app
from tests.support.limited_jobs import claim_all
from tests.support.manual_workers import ManualWorker
from tests.support.sampling import sample
from tests.support.scripted import Scripted
from tests.support.waits import REASONS, live, pause_key, pause_queue, waits

# -- why it waits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "reason", "name", "text"), REASONS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_waiting_job_has_exactly_one_reason(
    app: Effects, make: Callable[[Effects], int], reason: str, name: str, text: str
) -> None:
    job_id = make(app)
    wait = waits(app, job_id)
    assert (wait.reason, wait.name) == (reason, name)
    assert re.search(text, wait_text(wait)), wait_text(wait)
    assert re.fullmatch(r"(It|Its|The) .*\b(is|are|has|waits|pauses)\b.*[^.]\.", wait_text(wait)), wait_text(wait)
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
    "run-now": ["effects retry {job}"],
    "cancel": ["effects cancel {job}"],
    "requeue": ["effects retry {job}"],
    "mark-done": ["effects resolve {job} --as done"],
    "give-up": ["effects resolve {job} --as give-up"],
    "ignore": ["effects resolve {job} --as give-up --reason REASON"],
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
        lines = {line for name, [line] in COMMANDS.items() if name in plain}
        for name, [line] in COMMANDS.items():
            if line not in lines:
                effect = effects.make(kind, state)
                if "retry" in line and evidence_of(effects, effect).waits is not None:
                    continue  # due already: it changes nothing, and says so
                assert run(effects, line.format(job=effect.newest)) != 0, (kind, state, name)


@pytest.mark.parametrize(("kind", "state", "names"), [
    ("held", "waiting", ["cancel"]),
    ("held", "retrying", ["run-now", "cancel"]),
    ("held", "running", ["cancel"]),
    ("held", "refused", ["requeue", "ignore"]),
    ("held", "ignored", ["requeue"]),
    ("held", "unknown", ["requeue!", "mark-done", "give-up", "ignore"]),
    ("scripted", "unknown", ["requeue", "mark-done", "give-up", "ignore"]),
    ("keyless", "unknown", ["requeue!", "mark-done", "give-up", "ignore"]),
    ("held", "given up", ["requeue!"]),
    ("held", "done", ["requeue!"]),
    ("held", "requeued", ["cancel"]),
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
