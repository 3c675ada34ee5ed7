"""Bulk actions: frozen at their preview, worked off in chunks, each job acted on once."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from effects import Done, Effects, EnqueueError, JobStateError, Refused, Unknown, enqueue
from effects.app.late_jobs import BulkJob
from effects.app.retention import prune
from effects.errors import BulkNotFound, StoreConflict
from effects.kit import crashpoints
from effects.model.job import HOUSEKEEPING_QUEUE
from effects.operate.bulk import (
    BulkStarted,
    act_on,
    cancel_bulk,
    carry_out,
    find_bulk,
    find_bulks,
    preview,
)
from effects.operate.tables import bulk_selection
from effects.operate.tables.actions import LogFilters, list_entries
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_rows import BulkCounts, ChunkActor, advance, lock_running
from effects.operate.tables.bulk_selection import ActionName, BulkAction, InlineResult
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.operate.tables.job_list import Filters, list_jobs
from effects.store.db.sql import Window
from effects.store.effects.requeue import requeue
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.many_dead import many_dead
from tests.support.refused_requeues import refuse_requeues_of
from tests.support.scripted import Scripted

CHUNK, INLINE_MAX = 4, 3  # in place of 200 and 100
REQUEUE, CANCEL = BulkAction("requeue"), BulkAction("cancel")
ALL = DeadFilters()


@pytest.fixture
def app(app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch) -> Effects:
    monkeypatch.setattr("effects.operate.bulk.CHUNK", CHUNK)
    monkeypatch.setattr("effects.operate.bulk.INLINE_MAX", INLINE_MAX)
    monkeypatch.setattr("effects.operate.bulk.ACT_ON_MAX", INLINE_MAX)
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


def start(app: Effects, action: BulkAction = REQUEUE, filters: DeadFilters | Filters = ALL) -> BulkStarted:
    started = carry_out(preview(action, filters, effects=app), actor="web:ann", reason="fixed", effects=app)
    assert isinstance(started, BulkStarted)
    return started


def chunk_actor(app: Effects, started: BulkStarted) -> ChunkActor:
    return ChunkActor(app.store, app.job_types, app.ledgers, bulk_id=started.bulk_id, job_id=started.job_id)


def work(app: Effects, started: BulkStarted) -> None:
    """All chunks that there are."""
    actor = chunk_actor(app, started)
    while (chunk := actor.act(CHUNK)) is not None and not chunk.ended:
        pass


def acted_on(app: Effects, action: str = "requeue") -> Counter[int]:
    """How often each job was acted on, as the audit log has it."""
    return Counter(int(entry["subject"]) for entry in rows(app, "audit_log", "action = :action", action=action))


def bulk_entries(app: Effects) -> list[tuple[str, str]]:
    return [(entry["action"], entry["subject"]) for entry in rows(app, "audit_log", "subject_kind = 'bulk'")]


def test_few_jobs_are_acted_on_at_once(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX)
    previewed = preview(REQUEUE, ALL, effects=app)
    assert (previewed.counted.jobs, previewed.counted.all, previewed.job_ids) == (INLINE_MAX, True, tuple(ids))
    result = carry_out(previewed, actor="ann", effects=app)
    assert isinstance(result, InlineResult)
    assert list(result.done) == ids  # oldest first, as they were enqueued
    assert acted_on(app) == Counter(ids)
    assert rows(app, "bulk_actions") == []
    with pytest.raises(EnqueueError, match="4 jobs are too many at once; give at most 3"):
        act_on(REQUEUE, range(1, 5), actor="ann", effects=app)


def test_many_are_a_job_that_acts_on_each_once(app: Effects) -> None:
    ids = many_dead(app, 2 * CHUNK + 1)
    started = start(app)
    assert started.expected == len(ids)
    assert acted_on(app) == Counter()
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.done, record.expected) == ("running", 0, len(ids))
    work(app, started)
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.done, record.refused, record.refusals) == ("done", len(ids), 0, {})
    assert record.ended_at is not None
    assert acted_on(app) == Counter(ids)
    entries = rows(app, "audit_log", "action = 'requeue'")
    assert {(entry["actor"], entry["via"], entry["reason"]) for entry in entries} == {("web:ann", "web", "fixed")}
    assert bulk_entries(app) == [("start", str(started.bulk_id)), ("end", str(started.bulk_id))]
    assert chunk_actor(app, started).act(CHUNK) is None
    assert audit(app.store, app.ledgers) == []


def test_a_worker_carries_it_out(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    started = start(app)
    Worker(app).drain()
    assert find_bulk(started.bulk_id, effects=app).status == "done"
    assert row(app, "job_history", "id = :id", id=started.job_id)["status"] == "succeeded"
    assert acted_on(app) == Counter(ids)
    assert len(rows(app, "job_history", "requeued_from IS NOT NULL AND status = 'succeeded'")) == len(ids)


def test_jobs_that_die_after_the_preview_are_not_included(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    lives = enqueue("scripted", {}, effects=app).job_id  # older than the preview, and ends after it
    previewed = preview(REQUEUE, ALL, effects=app)
    app.store.shift_clock(1)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    many_dead(app, 3, limit_key="later")
    started = carry_out(previewed, actor="ann", effects=app)
    assert isinstance(started, BulkStarted)
    work(app, started)
    assert acted_on(app) == Counter(ids)
    assert lives not in acted_on(app)
    again = preview(REQUEUE, DeadFilters(as_of=previewed.as_of), effects=app)
    assert again.job_ids == ()
    assert preview(REQUEUE, ALL, effects=app).counted.jobs == 4


def test_ages_are_frozen_as_times(app: Effects) -> None:
    ids = many_dead(app, 2)
    app.store.shift_clock(3600)
    previewed = preview(REQUEUE, DeadFilters(window=Window(older=1800)), effects=app)
    assert previewed.job_ids == tuple(ids)
    window = previewed.selection.filters.window
    assert (window.older, window.newer) == (None, None)
    assert window.until is not None


def test_what_is_refused_by_now_is_counted_by_its_reason_and_stops_nothing(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    held = many_dead(app, 2, "held", Unknown("no reply"))
    previewed = preview(REQUEUE, ALL, effects=app)
    requeue(app.store, app.job_types, ids[1], actor="set-up")
    run_sql(app, "DELETE FROM effects_unresolved WHERE job_id = :id", id=ids[2])
    started = carry_out(previewed, actor="ann", effects=app)
    assert isinstance(started, BulkStarted)
    run_sql(app, "INSERT INTO effects_unresolved (job_id, job_type, queue, finished_at)"
                 f" SELECT id, job_type, queue, finished_at FROM effects_job_history WHERE id = {ids[1]}")  # fmt: skip
    work(app, started)
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.done, record.refused) == (len(ids) - 2, 3)
    assert record.refusals == {"effect_unknown": len(held), "requeued_already": 1}


@pytest.mark.parametrize("name", ["resolve_requeue", "mark_done", "give_up"])
def test_unknown_effects_are_resolved(app: Effects, name: ActionName) -> None:
    held = many_dead(app, INLINE_MAX + 1, "held", Unknown("no reply"))
    many_dead(app, 1)
    started = start(app, BulkAction(name), DeadFilters(unknown=True))
    work(app, started)
    assert find_bulk(started.bulk_id, effects=app).done == len(held)
    assert len(rows(app, "unresolved")) == 1
    assert audit(app.store, app.ledgers) == []


def test_an_override_is_kept(app: Effects) -> None:
    held = many_dead(app, INLINE_MAX + 1, "held", Unknown("no reply"))
    started = start(app, BulkAction("requeue", even_if_unknown=True))
    work(app, started)
    assert find_bulk(started.bulk_id, effects=app).done == len(held)
    assert find_bulk(started.bulk_id, effects=app).options == {"even_if_unknown": True}


def test_waiting_jobs_are_cancelled_and_the_bulk_job_is_not(app: Effects) -> None:
    ids = [enqueue("scripted", {}, effects=app).job_id for _ in range(INLINE_MAX + 1)]
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('3600')}")
    started = start(app, CANCEL, Filters())
    Worker(app).drain()
    assert acted_on(app, "cancel") == Counter(ids)
    assert {job["id"]: job["status"] for job in rows(app, "job_history")} == {
        **dict.fromkeys(ids, "cancelled"), started.job_id: "succeeded",
    }  # fmt: skip
    assert audit(app.store, app.ledgers) == []


def test_it_does_not_wait_behind_the_jobs_that_it_cancels(app: Effects) -> None:
    for number in range(INLINE_MAX + 1):
        enqueue("scripted", {"name": str(number)}, effects=app)
    started = start(app, BulkAction("cancel"), Filters(status="queued"))
    assert ManualWorker(app).claim_one(queue=HOUSEKEEPING_QUEUE).id == started.job_id


def test_jobs_that_workers_have_started_no_longer_match(app: Effects) -> None:
    """Its end says of every expected job what became of it."""
    for _ in range(2 * CHUNK):
        enqueue("scripted", {}, effects=app)
    previewed = preview(CANCEL, Filters(status="queued"), effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle(*[(claimed, Done()) for claimed in manual_worker.claim(CHUNK)])
    started = carry_out(previewed, actor="ann", effects=app)
    assert isinstance(started, BulkStarted)
    assert progress(app, started) == ("running", 0, 0, CHUNK, CHUNK)
    work(app, started)
    assert progress(app, started) == ("done", CHUNK, 0, CHUNK, 0)
    [end] = list_entries(app.store, LogFilters(subject_kind="bulk", action="end"))
    assert end.detail == {"done": CHUNK, "refused": 0, "refusals": {}, "no_longer_match": CHUNK}


def progress(app: Effects, started: BulkStarted) -> tuple[str, int, int, int | None, int | None]:
    """The status; jobs acted on, refused, that no longer match, and left."""
    [record] = find_bulks(effects=app)
    assert record == find_bulk(started.bulk_id, effects=app)
    return record.status, record.done, record.refused, record.no_longer_match, record.left


def test_an_unknown_count_is_not_reported(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    many_dead(app, 2 * CHUNK)
    monkeypatch.setattr(bulk_selection, "COUNTED_MAX", CHUNK)
    started = start(app)
    assert progress(app, started) == ("running", 0, 0, None, CHUNK)
    run_sql(app, "UPDATE effects_bulk_actions SET filters = '[]'")
    assert progress(app, started) == ("running", 0, 0, None, None)


def test_waiting_jobs_are_made_due(app: Effects) -> None:
    ids = [enqueue("scripted", {}, effects=app).job_id for _ in range(INLINE_MAX + 1)]
    run_sql(app, f"UPDATE effects_jobs SET run_at = {app.store.sql.after('3600')}")
    started = start(app, BulkAction("run_now"), Filters(status="queued"))
    work(app, started)
    assert acted_on(app, "run_now") == Counter(ids)
    assert len(ManualWorker(app).claim()) == len(ids)


def test_ended_jobs_are_requeued_window_by_window(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    many_dead(app, 10, ending=Done(), limit_key="done")
    more = many_dead(app, 2, limit_key="more")
    monkeypatch.setattr("effects.operate.tables.job_list.SPAN", 4)
    previewed = preview(REQUEUE, Filters(status="dead"), effects=app)
    assert (previewed.counted.jobs, previewed.counted.all, previewed.job_ids) == (4, False, None)
    started = carry_out(previewed, actor="ann", effects=app)
    assert isinstance(started, BulkStarted)
    assert progress(app, started) == ("running", 0, 0, None, None)  # not the 4 that the preview counted
    work(app, started)
    assert acted_on(app) == Counter(ids + more)
    assert find_bulk(started.bulk_id, effects=app).status == "done"


def test_a_future_time_is_read_as_now(app: Effects) -> None:
    previewed = preview(REQUEUE, DeadFilters(as_of=datetime(2126, 1, 1, tzinfo=UTC)), effects=app)
    assert previewed.as_of.year < 2126


FILTERS: list[dict[str, Any]] = [
    {}, {"job_type": "held"}, {"error_code": "refused"}, {"text": "NO"}, {"word": "no"}, {"limit_key": "b"},
    {"key": "unheard of"}, {"limit_keys": ("a:b", "c")}, {"unknown": True}, {"unknown": False}, {"queue": "default"},
    {"window": Window(newer=3600)}, {"window": Window(older=3600)},
]  # fmt: skip


def test_it_selects_what_the_lists_show(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("effects.operate.bulk.INLINE_MAX", 100)
    monkeypatch.setattr("effects.operate.bulk.ACT_ON_MAX", 100)
    many_dead(app, 2)
    many_dead(app, 2, "held", Unknown("no reply"), limit_key="a:b")
    many_dead(app, 1, limit_key="c")
    for filters in FILTERS:
        unresolved = DeadFilters(**filters)
        letters = list_dead(app.store, app.ledgers, unresolved)
        selected = preview(REQUEUE, unresolved, effects=app).job_ids
        assert selected == tuple(sorted(letter.id for letter in letters)), filters
        if not filters.keys() & {"unknown", "limit_key", "key"}:
            ended = Filters(status="dead", **filters)
            jobs = list_jobs(app.store, app.ledgers, ended).jobs
            assert preview(REQUEUE, ended, effects=app).job_ids == tuple(sorted(job.id for job in jobs)), filters


def test_two_attempts_at_a_time_act_on_each_job_once(app: Effects) -> None:
    """As a frozen worker that goes on beside its successor."""
    ids = many_dead(app, 10 * CHUNK)
    started = start(app)

    def attempt() -> None:
        actor = chunk_actor(app, started)
        while find_bulk(started.bulk_id, effects=app).status == "running":
            with suppress(StoreConflict):
                actor.act(CHUNK)

    threads = [threading.Thread(target=attempt) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert acted_on(app) == Counter(ids)
    assert find_bulk(started.bulk_id, effects=app).done == len(ids)
    assert bulk_entries(app) == [("start", str(started.bulk_id)), ("end", str(started.bulk_id))]


def test_a_chunk_that_another_has_recorded_is_rolled_back(app: Effects) -> None:
    """The comparison alone, without the lock of the row."""
    many_dead(app, CHUNK + 1)
    started = start(app)
    with app.store.begin() as connection:
        stale = lock_running(app.store, connection, started.bulk_id)
    assert stale is not None
    chunk_actor(app, started).act(CHUNK)
    nothing = BulkCounts(last_id=stale.last_id + 1, done=1, refusals={}, ended=False)
    with pytest.raises(StoreConflict), app.store.begin() as connection:
        advance(app.store, connection, stale, nothing, job_id=started.job_id, actor="ann", reason=None)
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.done) == ("running", CHUNK)


def test_a_preview_counts_no_further_than_it_must(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    many_dead(app, 5)
    monkeypatch.setattr(bulk_selection, "COUNTED_MAX", 4)
    counted = preview(REQUEUE, ALL, effects=app).counted
    assert (counted.jobs, counted.all) == (4, False)


def test_cancelled_half_way_it_stops_before_the_next_chunk(app: Effects) -> None:
    ids = many_dead(app, 2 * CHUNK + 1)
    started = start(app)
    assert chunk_actor(app, started).act(CHUNK) is not None
    record = cancel_bulk(started.bulk_id, actor="bob", reason="enough", effects=app)
    assert (record.status, record.done, record.left, record.no_longer_match) == ("cancelled", CHUNK, CHUNK + 1, 0)
    assert chunk_actor(app, started).act(CHUNK) is None
    Worker(app).drain()
    assert row(app, "job_history", "id = :id", id=started.job_id)["status"] == "cancelled"
    assert acted_on(app) == Counter(ids[:CHUNK])
    assert bulk_entries(app) == [("start", str(started.bulk_id)), ("cancel", str(started.bulk_id))]
    with pytest.raises(JobStateError, match=f"bulk {started.bulk_id} is cancelled: only a running one"):
        cancel_bulk(started.bulk_id, actor="bob", effects=app)
    assert len(bulk_entries(app)) == 2
    with pytest.raises(BulkNotFound, match="bulk 4711 not found"):
        cancel_bulk(4711, actor="bob", effects=app)


@pytest.mark.parametrize("point", ["bulk.before_commit", "bulk.committed"])
def test_after_a_crash_it_goes_on_where_it_was(app: Effects, point: str) -> None:
    ids = many_dead(app, CHUNK + 1)
    started = start(app)
    crashpoints.install(crashpoints.plan(point, action="raise"))
    with pytest.raises(crashpoints.CrashPoint):
        chunk_actor(app, started).act(CHUNK)
    crashpoints.install(None)
    done = CHUNK if point == "bulk.committed" else 0
    assert find_bulk(started.bulk_id, effects=app).done == done
    assert acted_on(app).total() == done
    work(app, started)
    assert acted_on(app) == Counter(ids)


def test_a_job_that_the_database_refuses_is_passed_over(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    refuse_requeues_of(app, ids[3])
    started = start(app)
    Worker(app).drain()
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.done, record.refusals) == ("done", len(ids) - 1, {"rejected": 1})
    assert acted_on(app) == Counter({job_id: 1 for job_id in ids if job_id != ids[3]})


def test_a_job_that_the_database_refuses_does_not_outlast_every_slice(
    app: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow database a slice is over before the chunk is small enough, and the next begins at full size."""
    monkeypatch.setattr("effects.operate.bulk.SLICE_SECONDS", 0.0)
    ids = many_dead(app, INLINE_MAX + 1)
    refuse_requeues_of(app, ids[3])
    started = start(app)
    for _ in ids:
        Worker(app).drain()
        app.store.shift_clock(2)
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.done, record.refusals) == ("done", len(ids) - 1, {"rejected": 1})


def test_a_package_that_fails_to_advise_keeps_no_one_from_the_job(app_factory: AppFactory) -> None:
    class Unadvised(Scripted):
        def instead_of_requeue(self, key: str | None, error_code: str | None) -> Any:
            raise ValueError("a key of its own form")

    app = app_factory(job_types=[Unadvised()])
    ids = many_dead(app, 2)
    result = act_on(REQUEUE, ids, actor="ann", effects=app)
    assert (list(result.done), result.refused) == (ids, {})


def test_a_bulk_action_without_its_job_is_shown_as_stopped_and_can_continue(app: Effects) -> None:
    ids = many_dead(app, INLINE_MAX + 1)
    started = start(app)
    assert carry_out_cancel(app, started.job_id) == "cancelled"
    assert find_bulk(started.bulk_id, effects=app).status == "stopped"
    assert [bulk.status for bulk in find_bulks(status="running", effects=app)] == ["stopped"]
    newer = requeue(app.store, app.job_types, started.job_id, actor="ann").job_id
    assert find_bulk(started.bulk_id, effects=app).status == "running"
    Worker(app).drain()
    record = find_bulk(started.bulk_id, effects=app)
    assert (record.status, record.job_id) == ("done", newer)
    assert acted_on(app)[ids[0]] == 1


def carry_out_cancel(app: Effects, job_id: int) -> str:
    done = act_on(CANCEL, [job_id], actor="ann", effects=app).done
    return "cancelled" if job_id in done else "refused"


@pytest.mark.parametrize(
    ("action", "filters", "message"),
    [
        (CANCEL, DeadFilters(), "cancel is no action on the list of unresolved jobs"),
        (BulkAction("ignore"), Filters(), "ignore is no action on the list of jobs"),
        (REQUEUE, DeadFilters(closed=True), "resolved jobs"),
        (REQUEUE, Filters(key="k"), "a key names one effect"),
        (REQUEUE, Filters(status="queued"), "status queued: requeue acts on ended jobs only"),
        (CANCEL, Filters(status="dead"), "status dead: cancel acts on live jobs only"),
    ],
)
def test_invalid_combinations_are_refused(
    app: Effects, action: BulkAction, filters: DeadFilters | Filters, message: str
) -> None:
    with pytest.raises(EnqueueError, match=message):
        preview(action, filters, effects=app)


def test_actor_and_reason_are_checked_first(app: Effects) -> None:
    [job_id] = many_dead(app, 1)
    with pytest.raises(EnqueueError, match="actor"):
        act_on(REQUEUE, [job_id], actor="", effects=app)
    with pytest.raises(EnqueueError, match="ignore needs a reason"):
        act_on(BulkAction("ignore"), [job_id], actor="ann", effects=app)
    assert acted_on(app) == Counter()


def test_it_is_kept_as_long_as_the_audit_log(app: Effects) -> None:
    many_dead(app, INLINE_MAX + 1)
    started = start(app)
    work(app, started)
    assert prune(app).bulks == 0
    app.store.shift_clock(app.settings.retention_audit_days * 86_400 + 60)
    assert prune(app, dry_run=True).bulks == 1
    assert prune(app).bulks == 1
    with pytest.raises(BulkNotFound):
        find_bulk(started.bulk_id, effects=app)


def test_the_type_is_registered(app: Effects) -> None:
    assert BulkJob.name in app.job_types
