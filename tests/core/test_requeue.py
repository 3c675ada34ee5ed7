"""Sending again: every entrance asks one guard, in every state of an effect, and of many at once one passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from effects import Done, Effects, JobStateError, Refused
from effects.operate.tables.audit import audit
from effects.operate.tables.lookup import chain_ids
from effects.store.effects import requeue as resolution
from effects.store.effects.requeue import newest_job, requeue
from effects.store.schema.job_tables import FACTS
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.effect_states import KEYS, KINDS, REPEATING, STATES, Effect, EffectStates, effects_app
from tests.support.manual_workers import rows, run_sql
from tests.support.sampling import sample
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

# What each state asks for before its effect is carried out again; None: nothing makes it pass.
NEEDS: dict[str, str | None] = {
    "waiting": None,
    "running": None,
    "retrying": None,
    "refused": "",
    "ignored": "",
    "abandoned": "",
    "done": "--even-if-done",
    "unknown": "unknown",
    "unknown and cancelled": "unknown",
    "given up": "unknown",
    "marked done": "--even-if-done",
    "requeued": None,
    "requeued and refused": "",
    "requeued and unknown": "unknown",
    "requeued and done": "--even-if-done",
}
FLAGS = ((), ("--even-if-done",))
ENTRANCES = ("retry ID", "retry NAME", "resolve")
TABLES = ("jobs", "job_history", "job_attempts", "job_actions", "effect_ledger", "sent_emails", "delivered_webhooks")


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    return effects_app(app_factory, tmp_path)


def arguments(entrance: str, effect: Effect) -> list[object] | None:
    """The command line of this entrance for this effect; None where it has none."""
    if entrance == "retry NAME":
        return ["retry", effect.name] if effect.name is not None else None
    return ["retry", effect.first] if entrance == "retry ID" else ["resolve", effect.first, "--as", "retry"]


def may_pass(entrance: str, kind: str, state: str, flags: tuple[str, ...]) -> bool:
    """The table."""
    if state.startswith("requeued") and entrance != "retry NAME":
        return False  # the old job's id is named, and a newer one has its effect
    if entrance == "resolve":
        return state in ("unknown", "unknown and cancelled")
    needs = NEEDS[state]
    if needs == "unknown" and kind in REPEATING:
        return True
    return needs is not None and (not needs or bool(flags))


def is_made_due(entrance: str, state: str) -> bool:
    """What waits is not requeued: it is due now."""
    waits = ("waiting", "retrying", "requeued") if entrance == "retry NAME" else ("waiting", "retrying")
    return entrance != "resolve" and state in waits


def snapshot(app: Effects) -> dict[str, list[dict[str, Any]]]:
    return {table: rows(app, table) for table in TABLES}


def pass_word(effect: Effect, flags: tuple[str, ...], entrance: str) -> list[str]:
    """What is recorded at the new job about why it passed."""
    needs = NEEDS[effect.state]
    if needs == "--even-if-done":
        return ["even_if_done"]
    if needs == "unknown":
        return ["even_if_unknown" if entrance == "resolve" or flags else "repeat_policy"]
    return []


def check_pass(app: Effects, effect: Effect, flags: tuple[str, ...], entrance: str) -> None:
    """One new live job, requeued from the newest, and on record who and why."""
    [job] = rows(app, "jobs")
    assert job["requeued_from"] == effect.newest
    actions = rows(app, "job_actions", "job_id IN (:old, :new)", old=effect.newest, new=job["id"])
    because = [(action["job_id"], action["action"]) for action in actions if action["reason"] == "because"]
    expected = [(effect.newest, "requeue"), *((job["id"], word) for word in pass_word(effect, flags, entrance))]
    assert because == expected
    assert all(action["actor"].startswith("cli:") for action in actions if action["reason"] == "because")


CASES = [
    (kind, state, entrance)
    for kind in KINDS
    for state in STATES
    for entrance in ENTRANCES
    if arguments(entrance, Effect(kind, state, 0, 0, None if kind == "keyless" else "", "")) is not None
]


@pytest.mark.slow
def test_every_entrance_asks_the_same_guard_in_every_state(app: Effects) -> None:
    states = EffectStates(app)
    wrong = []
    for kind, state, entrance in sample(CASES, 50):
        for flags in FLAGS[:1] if entrance == "resolve" else FLAGS:
            effect = states.make(kind, state)
            line = arguments(entrance, effect)
            assert line is not None
            before = snapshot(app)
            answer = command(app, *line, "--reason", "because", *flags)
            passed = len(rows(app, "jobs", "requeued_from = :id", id=effect.newest)) == 1
            if passed != may_pass(entrance, kind, state, flags):
                wrong.append((kind, state, entrance, flags, passed, answer))
            elif passed:
                assert answer.exit_code == 0, answer
                check_pass(app, effect, flags, entrance)
            else:
                is_due = is_made_due(entrance, state)
                assert is_due or snapshot(app) == before, (kind, state, entrance, flags)
                assert answer.exit_code == (0 if is_due else 1), answer
    assert wrong == []


@pytest.mark.parametrize("kind", ["held", "keyless", "email", "webhook"])
@pytest.mark.parametrize("state", ["refused", "unknown", "done"])
def test_only_one_of_many_concurrent_requeues_passes(app: Effects, kind: str, state: str) -> None:
    effect = EffectStates(app).make(kind, state)
    together = threading.Barrier(4)
    outcomes: list[str] = []

    def act() -> None:
        together.wait(20)
        try:
            requeue(app.store, app.job_types, effect.first, confirm_unknown=True, confirm_done=True, actor="ann")
            outcomes.append("passed")
        except JobStateError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert outcomes.count("passed") == 1, outcomes
    assert sum("was retried already" in outcome for outcome in outcomes) == 3, outcomes
    assert len(rows(app, "jobs")) == 1


@pytest.fixture
def blocked(app: Effects) -> Iterator[Any]:
    """Waits until a statement on this database waits for a lock. SQLite, with one writer, does not show it."""

    def wait() -> None:
        if not app.store.is_postgresql:
            return
        statement = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )

        def waits() -> bool:
            with app.store.read() as connection:
                return bool(connection.exec_driver_sql(statement).scalar())

        wait_until(waits)

    return wait


@pytest.mark.parametrize("kind", KINDS)
def test_an_effect_marked_done_meanwhile_is_not_requeued(
    app: Effects, app_factory: AppFactory, kind: str, blocked: Any
) -> None:
    """The requeue has begun and waits for the person who holds the job; it decides by what that person leaves."""
    effect = EffectStates(app).make(kind, "unknown")
    person = app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")], keys=KEYS)
    errors: list[str] = []

    def act() -> None:
        with pytest.raises(JobStateError) as caught:
            requeue(app.store, app.job_types, effect.first, confirm_unknown=True, actor="ann")
        errors.append(str(caught.value))

    thread = threading.Thread(target=act)

    def start_when_the_word_is_written(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "effects_job_actions" in statement and "INSERT" in statement:
            thread.start()
            blocked()

    event.listen(person.engine, "before_cursor_execute", start_when_the_word_is_written)
    resolution.resolve_unknown(person.store, person.job_types, person.ledgers, effect.first, "mark-done", actor="bob")
    thread.join(30)
    assert errors == [f"the effect of job {effect.first} is done; only --even-if-done makes it once more"]
    assert rows(app, "jobs") == []


def test_a_successor_that_ends_done_meanwhile_keeps_its_ancestor_from_a_second_requeue(app: Effects) -> None:
    states = EffectStates(app)
    effect = states.make("keyless", "requeued")
    for ending in (None, Done()):
        if ending is not None:
            states.end("keyless", ending)
        with pytest.raises(JobStateError, match=f"job {effect.first} was retried already: job {effect.newest} is"):
            requeue(app.store, app.job_types, effect.first, confirm_unknown=True, confirm_done=True, actor="ann")


def test_without_a_key_the_whole_chain_decides_the_effects_state(app: Effects) -> None:
    """The second try was refused; the first may have happened. What was done and is begun afresh has no past."""
    states = EffectStates(app)
    effect = states.make("keyless", "unknown")
    second = requeue(app.store, app.job_types, effect.first, confirm_unknown=True, actor="ann").job_id
    states.end("keyless", Refused("no"))
    with pytest.raises(JobStateError, match="may have happened"):
        requeue(app.store, app.job_types, second, actor="ann")
    third = requeue(app.store, app.job_types, second, confirm_unknown=True, actor="ann").job_id
    states.end("keyless", Done())
    with pytest.raises(JobStateError, match="is done"):
        requeue(app.store, app.job_types, third, confirm_unknown=True, actor="ann")
    fourth = requeue(app.store, app.job_types, third, confirm_done=True, actor="ann").job_id
    states.end("keyless", Refused("no"))
    assert requeue(app.store, app.job_types, fourth, actor="ann").job_id > fourth


def test_the_new_job_has_all_of_the_old_one_but_what_its_attempts_left(app: Effects) -> None:
    """Its time to expire is not among it: the decision of a person is newer."""
    old = EffectStates(app).make("scripted", "refused").first
    options = "priority = 7, max_attempts = 9, group_key = 'g', limit_key = 'l', trace_context = '00-t', queue = 'q'"
    schedule = "on_unknown = 'hold', definition_id = 3, slot = run_at, expires_at = run_at"
    run_sql(app, f"UPDATE effects_job_history SET {options}, {schedule} WHERE id = :id", id=old)
    [before] = rows(app, "job_history", "id = :id", id=old)
    requeue(app.store, app.job_types, old, actor="ann")
    [after] = rows(app, "jobs")
    left = {"lease_token", "attempts", "lost_count", "unknown_count", "last_error", "error_code"}
    renewed = {"run_at", "created_at", "expires_at", "requeued_from"}
    copied = [name for name in FACTS if name not in left | renewed]
    assert {name: after[name] for name in copied} == {name: before[name] for name in copied}
    assert None not in [before[name] for name in copied]
    assert (after["expires_at"], after["requeued_from"]) == (None, old)


def test_a_successor_whose_history_is_gone_may_have_been_done(app: Effects) -> None:
    effect = EffectStates(app).make("keyless", "requeued and done")
    run_sql(app, "DELETE FROM effects_job_history WHERE id = :id", id=effect.newest)
    with pytest.raises(JobStateError, match="may have happened"):
        requeue(app.store, app.job_types, effect.first, actor="ann")
    assert requeue(app.store, app.job_types, effect.first, confirm_unknown=True, actor="ann")


def test_a_chain_that_a_row_from_outside_closes_ends_all_the_same(app: Effects) -> None:
    """What asks for a job's chain would else go round in it for ever."""
    states = EffectStates(app)
    first, second = (states.make("keyless", "refused").first for _ in range(2))
    for job, source in ((first, second), (second, first)):
        run_sql(app, "UPDATE effects_job_history SET requeued_from = :source WHERE id = :id", source=source, id=job)
    with app.store.read() as connection:
        assert set(chain_ids(app.store, connection, first)) == {first, second}
        assert newest_job(app.store, connection, first) == newest_job(app.store, connection, second) == second
    audit(app.store, app.ledgers)
    with pytest.raises(JobStateError):
        requeue(app.store, app.job_types, second, actor="ann")
