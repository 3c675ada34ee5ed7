"""Retention: what is old and ended goes, what waits for a person never, and the audit stays clean throughout."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from sqlalchemy import Connection, Engine, event

from effects import (
    Done,
    Effects,
    EnqueueError,
    IdempotencyConflict,
    NewJob,
    Refused,
    Retry,
    Schedule,
    Snooze,
    Unknown,
    enqueue,
    enqueue_many,
)
from effects.app import retention
from effects.app.firing import fire_now
from effects.app.retention import Prune, Pruned, prune
from effects.operate.tables.audit import audit
from effects.store import prune as store_prune
from effects.store import schedules as schedule_definitions
from effects.store.effects.requeue import ignore, requeue, resolve_unknown
from effects.store.enqueue import enqueuing
from effects.store.queue import table_ledger
from effects.store.queue.cancellation import cancel
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, everything, row, rows, run_sql
from tests.support.query_plans import recorded, rows_touched
from tests.support.scripted import Scripted

DAY = 86_400.0


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(
        job_types=[
            Scripted(),
            Scripted("held", on_unknown="hold"),
            Scripted("short", retention_days=1.0, retention_effects_days=2.0),
            Scripted("long", retention_days=60.0, retention_effects_days=365.0),
        ]
    )


def ended(app: Effects, ending: Any, *, job_type: str = "scripted", key: str | None = "k", **options: Any) -> int:
    job_id = enqueue(job_type, {}, key=key, effects=app, **options).job_id
    manual_worker = ManualWorker(app, f"manual of {job_id}")
    [job] = [job for job in manual_worker.claim() if job.id == job_id]
    manual_worker.settle((job, ending))
    return job_id


def later(app: Effects, days: float) -> None:
    app.store.shift_clock(days * DAY)


def history(app: Effects) -> list[int]:
    return [int(job["id"]) for job in rows(app, "job_history")]


def keys(app: Effects) -> set[str]:
    return {str(effect["key"]) for effect in rows(app, "effect_ledger")}


def test_an_ended_job_goes_with_its_attempts_and_actions_after_its_days(app: Effects) -> None:
    done = ended(app, Done())
    gone = enqueue("scripted", {}, key="gone", effects=app).job_id
    cancel(app.store, app.ledgers, gone, actor="ann")
    later(app, 6.9)
    assert prune(app) == Pruned()
    assert history(app) == [done, gone]
    later(app, 0.2)
    assert prune(app).jobs == 2
    assert rows(app, "job_history") == rows(app, "job_attempts") == rows(app, "job_actions") == []
    assert keys(app) == {"k", "gone"}
    assert row(app, "pruned")["job_id"] == gone
    assert audit(app.store, app.ledgers) == []
    assert prune(app) == Pruned()


def test_each_job_type_has_its_own_ages(app: Effects) -> None:
    for job_type in ("short", "scripted", "long"):
        ended(app, Done(), job_type=job_type, key=job_type)
    for days, left, remembered in (
        (1.5, 2, {"short", "scripted", "long"}),
        (2.5, 2, {"scripted", "long"}),
        (7.5, 1, {"scripted", "long"}),
        (61, 0, {"scripted", "long"}),
        (91, 0, {"long"}),
        (366, 0, set()),
    ):
        app.store.sql.shift_seconds = days * DAY
        app.store._statements.clear()
        prune(app)
        assert (len(history(app)), keys(app)) == (left, remembered), days
        assert audit(app.store, app.ledgers) == []


@pytest.mark.parametrize("job_type", ['a"', "$.a", "a.b", "a\\", "a'", "a b"])
def test_a_job_type_that_is_not_registered_whatever_its_name_keeps_the_longest_age(app: Effects, job_type: str) -> None:
    job_id = ended(app, Done())
    run_sql(app, f"UPDATE {app.store.sql.job_history} SET job_type = :job_type", job_type=job_type)
    later(app, 729.9)
    assert prune(app) == Pruned()
    assert history(app) == [job_id]
    later(app, 0.2)
    assert prune(app).jobs == 1


def test_what_another_app_keeps_for_longer_is_not_pruned_here(app: Effects, app_factory: AppFactory) -> None:
    """Two apps on one database, or a command without --app: only the app itself knows what its types declare."""
    ended(app, Done(), job_type="long", key="long")
    ended(app, Done(), key="k")
    other_app = app_factory(job_types=[])
    later(other_app, 100)
    assert prune(other_app) == Pruned()
    later(app, 100)
    assert prune(app) == Pruned(jobs=2, effects=1)
    later(other_app, 629)
    assert prune(other_app) == Pruned()
    later(other_app, 2)
    assert prune(other_app) == Pruned(effects=1)


def test_a_key_is_remembered_until_its_own_age_and_then_free(app: Effects) -> None:
    first = ended(app, Done())
    later(app, 30)
    prune(app)
    assert history(app) == []
    assert enqueue("scripted", {}, key="k", effects=app).job_id == first
    with pytest.raises(IdempotencyConflict):
        enqueue("scripted", {"name": "other"}, key="k", effects=app)
    later(app, 61)
    assert prune(app).effects == 1
    again = enqueue("scripted", {"name": "other"}, key="k", effects=app)
    assert not again.existing
    assert audit(app.store, app.ledgers) == []


def test_a_key_that_is_pruned_while_it_is_asked_for_is_free(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the insert that found it taken and the question who has it."""
    first = ended(app, Done())
    key_holders = enqueuing.key_holders

    def after_a_prune(*arguments: Any) -> Any:
        app.store.write(arguments[1], lambda sql: f"DELETE FROM {sql.effect_ledger}")
        return key_holders(*arguments)

    monkeypatch.setattr(enqueuing, "key_holders", after_a_prune)
    again = enqueue("scripted", {}, key="k", effects=app)
    assert (again.existing, again.job_id > first) == (False, True)
    assert row(app, "effect_ledger")["job_id"] == again.job_id


def test_an_effect_with_an_expiry_of_its_own_goes_by_that(app: Effects) -> None:
    ended(app, Done(), key="sooner")
    ended(app, Done(), key="later")
    far = app.store.sql.after("400 * 86400")
    near = app.store.sql.after("10 * 86400")
    run_sql(app, f"UPDATE effects_effect_ledger SET expires_at = CASE WHEN key = 'later' THEN {far} ELSE {near} END")
    later(app, 9)
    prune(app)
    assert keys(app) == {"sooner", "later"}
    later(app, 2)
    prune(app)
    assert keys(app) == {"later"}
    later(app, 200)
    prune(app)
    assert keys(app) == {"later"}


def test_an_effect_that_changes_between_the_look_and_the_deletion_stays(app: Effects) -> None:
    ended(app, Done())
    later(app, 91)
    changed = threading.Event()

    def change(connection: Connection, cursor: Any, statement: str, *rest: object) -> None:
        is_look = f"FROM {app.store.sql.effect_ledger} WHERE" in statement and "AS since_created" in statement
        if is_look and not changed.is_set():
            changed.set()
            run_sql(app, f"UPDATE effects_effect_ledger SET updated_at = {app.store.sql.now}")

    event.listen(Engine, "after_cursor_execute", change)
    try:
        assert prune(app) == Pruned(jobs=1)
    finally:
        event.remove(Engine, "after_cursor_execute", change)
    assert changed.is_set()
    assert keys(app) == {"k"}


def test_unresolved_dead_letters_are_never_pruned(app: Effects) -> None:
    dead = ended(app, Refused("no"), key="dead")
    held = ended(app, Unknown("no reply"), job_type="held", key="held")
    plain = ended(app, Unknown("no reply"), job_type="held", key=None)
    unsure = enqueue("scripted", {}, key="unsure", effects=app).job_id
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Unknown("no reply")))
    cancel(app.store, app.ledgers, unsure, actor="ann")
    later(app, 5000)
    before = everything(app)
    assert prune(app) == Pruned(audit_log=1)
    assert everything(app) == before
    assert history(app) == [dead, held, plain, unsure]


def test_resolved_jobs_are_pruned_thirty_days_later(app: Effects) -> None:
    dead = ended(app, Refused("no"), key="dead")
    held = ended(app, Unknown("no reply"), job_type="held", key="held")
    later(app, 500)
    ignore(app.store, app.ledgers, dead, actor="ann", reason="a test order")
    resolve_unknown(app.store, app.job_types, app.ledgers, held, "give-up", actor="ann")
    later(app, 29)
    assert prune(app).jobs == 0
    later(app, 2)
    assert prune(app) == Pruned(jobs=2, effects=2)
    assert rows(app, "job_actions") == rows(app, "effect_ledger") == []
    assert audit(app.store, app.ledgers) == []


def test_a_requeued_job_is_kept_as_long_as_its_successor(app: Effects) -> None:
    """Its verdicts are part of the effect's state."""
    first = ended(app, Unknown("no reply"), job_type="held", key="k")
    second = requeue(app.store, app.job_types, first, actor="ann", confirm_unknown=True).job_id
    later(app, 100)
    assert prune(app).jobs == 0
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    later(app, 100)
    assert prune(app).jobs == 0
    assert history(app) == [first, second]
    assert audit(app.store, app.ledgers) == []
    resolve_unknown(app.store, app.job_types, app.ledgers, second, "give-up", actor="ann")
    later(app, 31)
    assert prune(app).jobs == 1
    assert history(app) == [first]
    assert audit(app.store, app.ledgers) == []
    assert prune(app).jobs == 1
    assert history(app) == []
    assert audit(app.store, app.ledgers) == []


def test_live_jobs_and_their_effects_stay_however_old(app: Effects) -> None:
    manual_worker = ManualWorker(app)
    waiting = enqueue("scripted", {}, key="waiting", effects=app).job_id
    manual_worker.settle((manual_worker.claim_one(), Retry("not now")))
    later(app, 1000)
    assert prune(app) == Pruned()
    assert [job["id"] for job in rows(app, "jobs")] == [waiting]
    assert keys(app) == {"waiting"}
    assert len(rows(app, "job_attempts")) == 1


def test_an_effect_that_lost_its_job_is_still_found(app: Effects) -> None:
    """Pruning does not blind the audit: only settled effects up to the mark may stand without a job."""
    ended(app, Done(), key="pruned")
    later(app, 8)
    prune(app)
    lost = ended(app, Done(), key="lost")
    live = enqueue("scripted", {}, key="live", effects=app).job_id
    run_sql(app, "DELETE FROM effects_job_history")
    run_sql(app, "DELETE FROM effects_attempt_log")
    run_sql(app, "DELETE FROM effects_jobs")
    assert {(finding.check, tuple(finding.job_ids)) for finding in audit(app.store, app.ledgers)} == {
        ("intent_kept", (lost, live))
    }


def test_groups_without_jobs_go_unless_they_are_blocked(app: Effects) -> None:
    ended(app, Done(), key=None, group_key="over")
    ended(app, Done(), key=None, group_key="blocked")
    run_sql(app, "UPDATE effects_job_groups SET blocked = true WHERE group_key = 'blocked'")
    enqueue("scripted", {}, group_key="live", effects=app)
    assert prune(app).groups == 1
    assert [group["group_key"] for group in rows(app, "job_groups")] == ["blocked", "live"]


@pytest.mark.slow
def test_the_order_of_a_group_holds_while_its_row_is_pruned(app: Effects) -> None:
    """Enqueue, run and prune of the same groups at once: every job runs, one in flight, in order."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def pruning() -> None:
        try:
            while not stop.is_set():
                prune(app)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=pruning)
    thread.start()
    manual_worker = ManualWorker(app)
    order: dict[str, list[int]] = {"a": [], "b": []}
    expected: dict[str, list[int]] = {"a": [], "b": []}
    try:
        for _ in range(25):
            for group in ("a", "b"):
                expected[group].append(enqueue("scripted", {}, group_key=group, effects=app).job_id)
            deadline = datetime.now(UTC) + timedelta(seconds=30)
            while order != expected and datetime.now(UTC) < deadline:
                for job in manual_worker.claim():
                    order[str(job.group_key)].append(job.id)
                    manual_worker.settle((job, Done()))
    finally:
        stop.set()
        thread.join(30)
    assert failures == []
    assert order == expected
    assert audit(app.store, app.ledgers) == []


def test_slots_go_once_their_run_is_old(app: Effects) -> None:
    """Not once their time is: a slot of long ago that was run by hand would run a second time."""
    schedule_definitions.add(app.store, Schedule("tidy", "scripted", {}, "0 * * * *"), actor="ann")
    with app.store.read() as connection:
        now = datetime.fromtimestamp(app.store.now(connection), UTC)
    slot = now - timedelta(days=200)
    fire_now(app, "tidy", actor="ann", slot=slot)
    later(app, 89)
    assert prune(app).slots == 0
    with pytest.raises(EnqueueError, match="has run already"):
        fire_now(app, "tidy", actor="ann", slot=slot)
    later(app, 2)
    assert prune(app, dry_run=True).slots == 1
    assert prune(app).slots == 1
    assert rows(app, "definition_runs") == []


def test_a_dry_run_counts_and_deletes_nothing(app: Effects) -> None:
    for number in range(3):
        ended(app, Done(), key=f"k{number}", group_key=f"g{number}")
    later(app, 8)
    before = everything(app)
    assert prune(app, dry_run=True) == Pruned(jobs=3, groups=3)
    assert everything(app) == before
    assert prune(app) == Pruned(jobs=3, groups=3)


def test_many_rows_are_pruned_in_pages_and_an_unresolved_one_does_not_stop_them(
    app: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (store_prune, table_ledger):
        monkeypatch.setattr(module, "PAGE", 7)  # what a statement takes is written into it once
    manual_worker = ManualWorker(app)
    enqueue_many([NewJob(job_type="scripted", payload={}, key=f"k{n}") for n in range(40)], effects=app)
    claimed = manual_worker.claim()
    manual_worker.settle(*((job, Refused("no") if number % 8 == 0 else Done()) for number, job in enumerate(claimed)))
    later(app, 91)
    assert prune(app) == Pruned(jobs=35, effects=35)
    assert len(history(app)) == len(keys(app)) == 5
    assert audit(app.store, app.ledgers) == []


def test_a_stopped_prune_continues_the_next_time(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_prune, "PAGE", 5)
    manual_worker = ManualWorker(app)
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(20)], effects=app)
    manual_worker.settle(*((job, Done()) for job in manual_worker.claim()))
    later(app, 8)
    turns = iter([True, True, False])
    first = prune(app, go_on=lambda: next(turns))
    assert (first.jobs, first.finished) == (10, False)
    second = prune(app)
    assert (second.jobs, second.finished) == (10, True)


class ShortSlice:
    """An attempt that is asked to stop before its ninth page."""

    def __init__(self) -> None:
        self._pages = 0

    @property
    def cancel_requested(self) -> bool:
        self._pages += 1
        return self._pages > 8


def test_a_slice_goes_on_where_the_one_before_it_ended(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the start each time, all slices would end among the rows that are kept for long, before anything else."""
    monkeypatch.setattr(store_prune, "PAGE", 2)
    manual_worker = ManualWorker(app)
    enqueue_many([NewJob(job_type="long", payload={}) for _ in range(20)], effects=app)
    manual_worker.settle(*((job, Done()) for job in manual_worker.claim()))
    gone = ended(app, Done(), group_key="over")
    later(app, 8)
    slices = [Prune(app).perform({}, cast("Any", ShortSlice()))]  # another process, whose slice is lost
    job_type = Prune(app)
    while isinstance(slices[-1], Snooze) and len(slices) < 40:
        slices.append(job_type.perform({}, cast("Any", ShortSlice())))
    done = slices[-1]
    assert isinstance(done, Done)
    assert done.detail == msgspec.to_builtins(Pruned(jobs=1, groups=1))
    assert gone not in history(app)
    assert isinstance(job_type.perform({}, cast("Any", ShortSlice())), Snooze)  # the next run begins at the start


def test_the_built_in_types_do_not_make_the_walk_longer(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends where the shortest retention begins: a day's, and each run would read a week of history."""
    app = app_factory()
    monkeypatch.setattr(store_prune, "PAGE", 5)
    empty = pages_of(app)
    manual_worker = ManualWorker(app)
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(20)], effects=app)
    manual_worker.settle(*((job, Done()) for job in manual_worker.claim()))
    later(app, 2)
    assert pages_of(app) == empty


def pages_of(app: Effects) -> int:
    """How many pages a run takes."""
    pages = 0

    def go_on() -> bool:
        nonlocal pages
        pages += 1
        return True

    prune(app, dry_run=True, go_on=go_on)
    return pages


def test_rows_of_a_clock_that_was_ahead_do_not_keep_those_behind_them(
    app: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of them has no old row, for as many years as the clock was ahead."""
    for module in (store_prune, table_ledger):
        monkeypatch.setattr(module, "PAGE", 3)
    for number in range(6):
        ended(app, Done(), key=f"k{number}")
    year, first = app.store.sql.after("365 * 86400"), history(app)[:3]
    run_sql(app, f"UPDATE effects_job_history SET finished_at = {year} WHERE id <= {first[-1]}")
    run_sql(app, f"UPDATE effects_effect_ledger SET created_at = {year} WHERE job_id <= {first[-1]}")
    later(app, 8)
    assert prune(app).jobs == 3
    assert history(app) == first
    later(app, 83)
    assert prune(app).effects == 3
    assert audit(app.store, app.ledgers) == []


def test_a_part_that_fails_does_not_stop_the_parts_after_it(app_factory: AppFactory) -> None:
    class Broken(Scripted):
        def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Any) -> int:
            raise OSError("the storage is away")

    class Own(Scripted):
        pruned = 0

        def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Any) -> int:
            self.pruned += 1
            return 1

    own = [Own("a"), Own("z")]
    app = app_factory(job_types=[own[0], Broken("m"), own[1]])
    with pytest.raises(OSError, match="the storage is away"):
        prune(app)
    assert [job_type.pruned for job_type in own] == [1, 1]


def test_two_at_once_and_a_requeue_between(app: Effects) -> None:
    """Each row goes once; what is requeued meanwhile either stays or is not there to be requeued."""
    manual_worker = ManualWorker(app)
    enqueue_many([NewJob(job_type="scripted", payload={}) for _ in range(60)], effects=app)
    claimed = manual_worker.claim()
    manual_worker.settle(*((job, Done()) for job in claimed))
    later(app, 8)
    together = threading.Barrier(3)
    taken: list[int] = []
    failures: list[BaseException] = []

    def pruning() -> None:
        together.wait(20)
        taken.append(prune(app).jobs)

    def requeuing() -> None:
        together.wait(20)
        for job in claimed[::10]:
            try:
                requeue(app.store, app.job_types, job.id, actor="ann", confirm_done=True)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=target) for target in (pruning, pruning, requeuing)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {type(error).__name__ for error in failures} <= {"JobNotFound", "JobStateError"}
    kept = [job.id for job in claimed if job.id in history(app)]
    assert len(kept) == len(rows(app, "jobs")) == 6 - len(failures)
    assert sum(taken) == 60 - len(kept)
    assert audit(app.store, app.ledgers) == []


def test_the_built_in_schedule_prunes(app: Effects) -> None:
    ended(app, Done())
    later(app, 8)
    schedule_definitions.register(app.store, list(app.schedules.values()))
    fire_now(app, "effects.prune", actor="ann")
    assert Worker(app).drain(30).counts == {"succeeded": 1}
    [left] = rows(app, "job_history")
    assert left["job_type"] == Prune.name
    [attempt] = rows(app, "job_attempts")
    assert '"jobs":1' in str(attempt["detail"]).replace(" ", "").replace("'", '"')


@pytest.mark.slow
def test_a_slice_out_of_time_is_snoozed_and_uses_up_no_attempt(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(app, Done())
    later(app, 8)
    schedule_definitions.register(app.store, list(app.schedules.values()))
    fire_now(app, "effects.prune", actor="ann")
    with monkeypatch.context() as patch:
        patch.setattr(retention, "SLICE_SECONDS", -1.0)
        assert Worker(app).drain(30).counts == {"snoozed": 1}  # a slice of no time: again in a second
    assert row(app, "jobs")["attempts"] == 0
    app.store.shift_clock(1.1)
    assert Worker(app).drain(30).counts == {"succeeded": 1}
    assert [job["job_type"] for job in rows(app, "job_history")] == [Prune.name]
    assert audit(app.store, app.ledgers) == []


def test_a_type_prunes_rows_of_its_own(app_factory: AppFactory) -> None:
    calls: list[tuple[float, bool]] = []

    class Own(Scripted):
        retention_effects_days = 3.0

        def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Any) -> int:
            calls.append((keep_seconds, dry_run))
            return 4 if go_on() else 0

    app = app_factory(job_types=[Own()])
    assert prune(app).packages == {"scripted": 4}
    assert prune(app, dry_run=True).packages == {"scripted": 4}
    assert calls == [(3 * DAY, False), (3 * DAY, True)]


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_prune_reads_what_is_old_and_little_more(app: Effects) -> None:
    """However much is live or young, and without statistics; a plan that joins whole tables would read 600,000 rows.

    Of small tables the planner may rather read all, and rightly so: these are large enough to be worth a probe.
    """
    young, old = (200_000, "now()", 1_000_000), (300, "now() - interval '100 days'", 0)
    _fill_history(app, *young)
    run_sql(
        app,
        "INSERT INTO effects_jobs (id, job_type, routed) "
        "SELECT 2000000 + i, 'scripted', true FROM generate_series(1, 200000) AS s(i)",
    )
    _fill_history(app, *old)
    with recorded(app) as statements:
        assert prune(app) == Pruned(jobs=300, effects=300)
    _fill_history(app, *old)  # the same again, for the same question
    assert 300 <= rows_touched(app, statements) <= 15_000


def _fill_history(app: Effects, count: int, then: str, first_id: int) -> None:
    series = f"generate_series({first_id + 1}, {first_id + count}) AS s(i)"
    run_sql(
        app,
        "INSERT INTO effects_job_history (id, job_type, status, attempts, lease_token, finished_at) "
        f"SELECT i, 'scripted', 'succeeded', 0, 0, {then} FROM {series}",
    )
    run_sql(
        app,
        "INSERT INTO effects_effect_ledger (job_type, key, digest, state, job_id, created_at, updated_at) "
        f"SELECT 'scripted', 'k' || i, '', 'abandoned', i, {then}, {then} FROM {series}",
    )
