"""Dead letters and unknown outcomes: found by what one knows of them, closed once, each action on record."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from effects import Done, Effects, EnqueueError, JobNotFound, JobStateError, Refused, Retry, Unknown, enqueue
from effects.kit.exit_codes import ExitCode
from effects.operate.bulk import act_on
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.dead_letters import DeadFilters, DeadLetter, count_causes, list_dead
from effects.store.db.sql import Window
from effects.store.effects.requeue import Requeued, Resolution, ignore, requeue, resolve_unknown
from effects.store.queue.cancellation import cancel
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import LEASE_SECONDS, ManualWorker, row, rows
from tests.support.scripted import Scripted


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def put(app: Effects, *, job_type: str = "scripted", key: str | None = "k", **options: Any) -> int:
    return enqueue(job_type, {}, key=key, effects=app, **options).job_id


def ended(app: Effects, ending: Any, *, job_type: str = "scripted", key: str | None = "k", **options: Any) -> int:
    """A job that ended so."""
    job_id = put(app, job_type=job_type, key=key, **options)
    manual_worker = ManualWorker(app, f"manual of {job_id}")
    [job] = [job for job in manual_worker.claim() if job.id == job_id]
    manual_worker.settle((job, ending))
    return job_id


def listed(app: Effects, **filters: Any) -> list[DeadLetter]:
    return list_dead(app.store, app.ledgers, DeadFilters(**filters))


def ids(app: Effects, **filters: Any) -> list[int]:
    return [letter.id for letter in listed(app, **filters)]


def state(app: Effects, key: str = "k") -> str:
    return str(row(app, "effect_ledger", "key = :key", key=key)["state"])


def noted(app: Effects) -> list[tuple[Any, ...]]:
    return [
        (action["job_id"], action["action"], action["actor"], action["reason"]) for action in rows(app, "job_actions")
    ]


def test_dead_and_unknown_jobs_are_unresolved_and_no_others(app: Effects) -> None:
    ended(app, Done(), key="done")
    gone = ended(app, Refused("no", code="http_410"), key="dead")
    held = ended(app, Unknown("no reply"), job_type="held", key="held")
    unsure = put(app, key="unsure")
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    cancel(app.store, app.ledgers, unsure, actor="ann")
    cancelled = put(app, key="cancelled")
    cancel(app.store, app.ledgers, cancelled, actor="ann")

    assert sorted(ids(app)) == [gone, held, unsure]
    assert {letter.id: (letter.status, letter.unknown) for letter in listed(app)} == {
        gone: ("dead", False),
        held: ("dead", True),
        unsure: ("cancelled", True),
    }
    assert sorted(ids(app, unknown=True)) == [held, unsure]
    assert ids(app, unknown=False) == [gone]


def test_a_job_without_a_key_is_known_by_its_own_attempts(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held", key=None)
    gone = ended(app, Refused("no"), key=None)
    assert ids(app, unknown=True) == [held]
    assert ids(app, unknown=False) == [gone]


def test_causes_are_counted_by_type_code_and_effect(app: Effects) -> None:
    for key in ("a", "b"):
        ended(app, Refused("no", code="card"), key=key)
    ended(app, Unknown("no reply"), job_type="held", key="c")
    closed = ended(app, Refused("no", code="card"), key="d")
    ignore(app.store, app.ledgers, closed, actor="ann", reason="a test")
    with app.store.read() as connection:
        causes = count_causes(app.store, connection)
    assert [(cause.job_type, cause.error_code, cause.unknown, cause.jobs) for cause in causes] == [
        ("scripted", "card", False, 2),
        ("held", "unknown", True, 1),
    ]


def test_causes_tell_a_lost_worker_from_an_exception_of_the_handler(app: Effects) -> None:
    lost = put(app, job_type="held", key="lost")
    gone = ManualWorker(app, "gone")
    gone.release(gone.claim_one())
    app.store.shift_clock(LEASE_SECONDS + 1)
    enqueue("held", {"moves": ["release raise"]}, key="raised", effects=app)
    result = Worker(app).drain(30)
    assert (result.counts, result.exit_code) == ({"dead": 2}, ExitCode.FINDINGS)
    with app.store.read() as connection:
        causes = count_causes(app.store, connection)
    assert [(cause.error_code, cause.unknown, cause.jobs) for cause in causes] == [
        ("BoomError", True, 1),
        ("lost", True, 1),
    ]
    assert ids(app, error_code="lost") == [lost]


def test_the_filters(app: Effects) -> None:
    first = ended(app, Refused("The Card was declined", code="card"), key="a", limit_key="webhook:ep_1")
    app.store.shift_clock(7200)
    second = ended(app, Refused("gone for 100%", code="http_410"), key="b", limit_key="ep_2", job_type="held")
    assert ids(app) == [second, first]
    assert ids(app, limit=1) == [second]
    assert ids(app, job_type="held") == [second]
    assert ids(app, error_code="card") == [first]
    assert ids(app, text="card WAS") == [first]
    assert ids(app, text="0%") == [second]
    assert ids(app, text="_") == []
    assert ids(app, limit_key="ep_1") == ids(app, limit_key="webhook:ep_1") == [first]
    assert ids(app, limit_key="ep_2") == [second]
    assert ids(app, limit_key="ep") == []
    assert ids(app, window=Window(older=3600)) == [first]
    assert ids(app, window=Window(newer=3600)) == [second]
    assert ids(app, window=Window(older=3600), error_code="http_410") == []


def test_a_requeue_resolves_the_old_job_and_leaves_its_row_unchanged(app: Effects) -> None:
    first = ended(app, Refused("no"))
    before = row(app, "job_history")
    successor = requeue(app.store, app.job_types, first, actor="ann", reason="fixed")
    assert row(app, "job_history") == before
    assert ids(app) == []
    assert ids(app, closed=True) == [first]
    assert noted(app) == [(first, "requeue", "ann", "fixed")]
    with pytest.raises(JobStateError, match=f"job {first} was retried already: job {successor.job_id} is queued"):
        requeue(app.store, app.job_types, first, actor="ann")
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("still no")))
    assert ids(app) == [successor.job_id]
    assert audit(app.store, app.ledgers) == []


def test_only_unresolved_dead_letters_can_be_acted_on(app: Effects) -> None:
    done = ended(app, Done(), key="done")
    live = put(app, key="live")
    for act in (
        lambda job_id: ignore(app.store, app.ledgers, job_id, actor="ann", reason="x"),
        lambda job_id: resolve_unknown(app.store, app.job_types, app.ledgers, job_id, "give-up", actor="ann"),
    ):
        with pytest.raises(JobStateError, match=f"job {done} is succeeded: it is no dead letter"):
            act(done)
        with pytest.raises(JobStateError, match=f"job {live} is queued: only an ended job"):
            act(live)
        with pytest.raises(JobNotFound, match="job 4711 not found"):
            act(4711)
    assert noted(app) == []


def test_ignore_resolves_and_reports_it_the_second_time(app: Effects) -> None:
    first = ended(app, Refused("no"))
    ignore(app.store, app.ledgers, first, actor="ann", reason="a test order")
    assert ids(app) == []
    assert noted(app) == [(first, "ignore", "ann", "a test order")]
    with pytest.raises(JobStateError, match=f"job {first} is already resolved \\(ignore\\)"):
        ignore(app.store, app.ledgers, first, actor="bob", reason="again")
    assert requeue(app.store, app.job_types, first, actor="bob").job_id > first  # whoever thinks again may
    assert audit(app.store, app.ledgers) == []


def test_what_was_resolved_stays_so_when_the_clock_is_set_back(app: Effects) -> None:
    ignore(app.store, app.ledgers, ended(app, Refused("no")), actor="ann", reason="a test order")
    app.store.shift_clock(-60)
    assert audit(app.store, app.ledgers) == []


def test_mark_done_records_that_an_operator_confirmed_the_effect(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held")
    assert (
        resolve_unknown(
            app.store, app.job_types, app.ledgers, held, "mark-done", actor="ann", reason="seen in their books"
        )
        is None
    )
    assert state(app) == "done"
    assert row(app, "job_history")["status"] == "dead"
    assert noted(app) == [(held, "mark_done", "ann", "seen in their books")]
    assert ids(app) == []
    assert audit(app.store, app.ledgers) == []
    assert enqueue("held", {}, key="k", effects=app).existing
    with pytest.raises(JobStateError, match="is done; only --even-if-done"):
        requeue(app.store, app.job_types, held, actor="ann")
    with pytest.raises(JobStateError, match="already resolved"):
        resolve_unknown(app.store, app.job_types, app.ledgers, held, "give-up", actor="ann")


def test_a_requeue_after_mark_done_starts_over(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held")
    resolve_unknown(app.store, app.job_types, app.ledgers, held, "mark-done", actor="ann")
    requeue(app.store, app.job_types, held, actor="ann", confirm_done=True)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert state(app) == "refused"
    assert audit(app.store, app.ledgers) == []


def test_audit_finds_a_done_effect_without_attempt_or_operator(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held")
    with app.store.begin() as connection:
        connection.exec_driver_sql("UPDATE effects_effect_ledger SET state = 'done'")
    findings = {finding.check: finding.job_ids for finding in audit(app.store, app.ledgers)}
    assert findings == {"done_proved": [held], "unresolved_kept": [held]}


def test_give_up_leaves_the_effect_unknown(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held")
    resolve_unknown(app.store, app.job_types, app.ledgers, held, "give-up", actor="ann")
    assert state(app) == "unknown"
    assert ids(app) == []
    assert rows(app, "jobs") == []
    assert noted(app) == [(held, "give_up", "ann", None)]
    assert audit(app.store, app.ledgers) == []


def test_a_requeued_unknown_stays_unknown_until_it_is_done(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), job_type="held")
    successor = resolve_unknown(app.store, app.job_types, app.ledgers, held, "requeue", actor="ann")
    assert successor is not None
    assert state(app) == "unknown"
    assert ids(app) == []
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    assert (ids(app, unknown=True), state(app)) == ([successor.job_id], "unknown")
    resolve_unknown(app.store, app.job_types, app.ledgers, successor.job_id, "requeue", actor="ann")
    manual_worker.settle((manual_worker.claim_one(), Done()))
    assert (ids(app), state(app)) == ([], "done")
    assert audit(app.store, app.ledgers) == []


def test_what_is_not_unknown_is_not_resolved(app: Effects) -> None:
    first = ended(app, Refused("no"))
    with pytest.raises(JobStateError, match="is not unknown: `effects retry"):
        resolve_unknown(app.store, app.job_types, app.ledgers, first, "mark-done", actor="ann")
    assert (state(app), noted(app)) == ("refused", [])


@pytest.mark.parametrize("key", ["k", None])
def test_only_one_of_many_concurrent_resolutions_counts(app: Effects, key: str | None) -> None:
    held = ended(app, Unknown("no reply"), job_type="held", key=key)
    together = threading.Barrier(4)
    answers: list[object] = []

    def act(resolution: Resolution) -> None:
        together.wait(20)
        try:
            answers.append(resolve_unknown(app.store, app.job_types, app.ledgers, held, resolution, actor="ann"))
        except JobStateError as error:
            answers.append(error)

    words: tuple[Resolution, ...] = ("mark-done", "give-up", "requeue", "mark-done")
    threads = [threading.Thread(target=act, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    [winner] = [answer for answer in answers if not isinstance(answer, JobStateError)]
    assert len(answers) == 4
    assert len([action for action in noted(app) if action[0] == held]) == 1
    override = [(winner.job_id, "even_if_unknown", "ann", None)] if isinstance(winner, Requeued) else []
    assert [action for action in noted(app) if action[0] != held] == override


def test_of_few_jobs_each_has_its_own_transaction(app: Effects) -> None:
    first = ended(app, Refused("no"), key="a")
    second = ended(app, Refused("no"), key="b")
    third = put(app, key="c")
    result = act_on(BulkAction("requeue"), [first, third, second, 4711], actor="ann", effects=app)
    assert list(result.done) == [first, second]
    assert all(new_id is not None and new_id > third for new_id in result.done.values())
    assert list(result.refused) == [third, 4711]
    assert "is queued" in result.refused[third]
    assert audit(app.store, app.ledgers) == []


def test_a_dead_letter_that_gave_up_names_its_last_error(app: Effects) -> None:
    first = put(app, max_attempts=2)
    manual_worker = ManualWorker(app)
    for _ in range(2):
        manual_worker.settle((manual_worker.claim_one(), Retry("busy at noon", code="busy")))
        app.store.shift_clock(3600)
    [letter] = listed(app, text="noon")
    assert (letter.id, letter.attempts, letter.error_code) == (first, 2, "busy")
    assert "gave up after 2 attempts" in str(letter.last_error)


def test_a_jobs_own_on_unknown_survives_its_requeue(app: Effects) -> None:
    held = ended(app, Unknown("no reply"), on_unknown="hold")
    with pytest.raises(JobStateError, match="may have happened"):
        requeue(app.store, app.job_types, held, actor="ann")
    successor = requeue(app.store, app.job_types, held, actor="ann", confirm_unknown=True)
    assert row(app, "jobs", "id = :id", id=successor.job_id)["on_unknown"] == "hold"
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("again no reply")))
    assert row(app, "job_history", "id = :id", id=successor.job_id)["status"] == "dead"


def test_a_job_with_on_unknown_repeat_is_requeued_like_its_type(app: Effects) -> None:
    given_up = ended(app, Unknown("no reply"), job_type="held", on_unknown="repeat", max_attempts=1)
    assert requeue(app.store, app.job_types, given_up, actor="ann").job_id


def test_no_other_on_unknown_is_accepted(app: Effects) -> None:
    with pytest.raises(EnqueueError, match="on_unknown is 'perhaps'; give one of repeat, repeat_once, hold"):
        put(app, on_unknown="perhaps")
