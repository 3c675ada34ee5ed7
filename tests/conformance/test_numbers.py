"""RollupRecorder over time: what attempts came to is in the rollups, once, whatever the workers and the folds do."""

from __future__ import annotations

import math
import random
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from effects import Effects, NewJob, Refused, Unknown, enqueue, enqueue_many
from effects.app.retention import NUMBERS_DAYS, prune
from effects.kit.histogram import BOUNDS, BUCKETS, percentile
from effects.model.job import Job
from effects.model.limits import Rate
from effects.model.outcome import Done
from effects.model.settlement import Execution, Settlement
from effects.operate.stats import Stats, read_stats
from effects.store.db.sql import Window
from effects.store.limits import key_limits as limit_rows
from effects.store.numbers.rollups import MINUTES_SECONDS, WORKERS_SECONDS, Rollup, rollup_columns, rollup_of
from effects.store.numbers.samples import seconds_without_worker, take_sample
from effects.store.schema.tables import HOUR, MINUTE, ROLLUP_COUNTS, SIX_HOURS
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from effects.worker.recording.observers import LATE_SECONDS, RollupRecorder
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.query_plans import recorded, rows_touched_in
from tests.support.scripted import Scripted
from tests.support.threads import at_once

NAMED_QUEUES = ("slow", "needs-person")

LEASE = 120.0
LATER = 200  # jobs
START = 1_800_000_000.0  # of an hour, and of a minute


class MovedRuntime(Runtime):
    """Time that the test moves."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.monotonic = lambda: self.seconds


def job(job_type: str = "scripted", queue: str = "default") -> Job:
    return Job(
        id=1, job_type=job_type, payload="{}", queue=queue, priority=5, attempts=1, max_attempts=None, lease_token=1,
        lost_count=0, unknown_count=0, released=False, routed=True, expired=False, cancel_requested=False,
        age_seconds=0.0,
    )  # fmt: skip


def settled(outcome: str = "succeeded", *, of: Job | None = None, ran: bool = True, **facts: Any) -> Settlement:
    subject = of or job()
    status = facts.pop("status", "succeeded")
    execution = Execution(subject, outcome=Done()) if ran else None
    return Settlement(job=subject, status=status, outcome=outcome, execution=execution, **facts)


class Counting:
    """The numbers of one worker whose clock the test moves; its database's time begins at `begins`."""

    def __init__(self, app: Effects, begins: float = START) -> None:
        self.runtime = MovedRuntime()
        self.numbers = RollupRecorder(app.store, self.runtime, lease_seconds=LEASE)
        self.numbers.set_clock(begins)

    def count(self, *settlements: Settlement) -> None:
        self.numbers.recorded(settlements)

    def write(self) -> None:
        self.numbers._write_rollups()


def all_rollups(app: Effects, length: int = MINUTE) -> list[Rollup]:
    """What was done: in the folded rows of a length, and in those that are not folded."""
    sql = app.store.sql
    statement = f"""
        SELECT {rollup_columns(sql)} FROM {sql.rollups} WHERE worker <> '' OR seconds = {length}
        ORDER BY begins_at, job_type, queue"""
    with app.store.read() as connection:
        return [rollup_of(row) for row in connection.execute(text(statement))]


def total(rollups: list[Rollup]) -> Rollup:
    summed = Rollup(0.0, 0, "", "")
    for rollup in rollups:
        summed.add(rollup)
    return summed


def now(app: Effects) -> float:
    with app.store.read() as connection:
        return app.store.now(connection)


# -- counting --------------------------------------------------------------------------------------------


def test_each_outcome_has_its_column(app: Effects) -> None:
    words = {
        "succeeded": "done", "failed": "failed", "refused": "refused", "unknown": "unknown", "timed_out": "timed_out",
        "lost": "lost", "cancelled": "cancelled", "snoozed": "snoozed", "paused": "snoozed",
    }  # fmt: skip
    counting = Counting(app)
    for number, word in enumerate(words, start=1):
        counting.count(*[settled(word, status="queued")] * number)
    counting.count(settled("", status="queued"))  # it merely went back
    counting.count(settled("", status="cancelled", ran=False))  # it expired before an attempt
    counting.count(settled("refused", status="dead", ran=False))
    counting.write()
    [rollup] = all_rollups(app)
    expected = Counter[str]()
    for number, name in enumerate(words.values(), start=1):
        expected[name] += number
    expected.update({"cancelled": 1, "refused": 1, "dead": 1})
    assert {name: getattr(rollup, name) for name in ROLLUP_COUNTS} == dict(expected)
    assert sum(rollup.run_counts) == sum(range(1, len(words) + 1))  # of those that ran


def test_writing_again_changes_nothing_and_a_minute_continues(app: Effects) -> None:
    counting = Counting(app)
    counting.count(settled(wait_seconds=1.0, duration_seconds=0.5))
    counting.write()
    counting.write()
    assert [rollup.done for rollup in all_rollups(app)] == [1]
    counting.runtime.seconds += 10
    counting.count(settled(wait_seconds=1.0, duration_seconds=0.5))
    counting.write()
    [rollup] = all_rollups(app)
    assert (rollup.begins_at, rollup.done, rollup.wait_seconds, rollup.run_seconds) == (START, 2, 2.0, 1.0)
    counting.runtime.seconds += 60
    counting.count(settled())
    counting.write()
    assert [(rollup.begins_at, rollup.done) for rollup in all_rollups(app)] == [(START, 2), (START + 60, 1)]


def test_a_write_without_a_response_is_repeated_without_counting_twice(app: Effects) -> None:
    counting = Counting(app)
    counting.count(settled())
    counting.write()
    for minute in counting.numbers._minutes:  # as if its response had been lost
        for totals in minute.rows.values():
            totals.written = 0
    counting.count(settled())
    counting.write()
    assert total(all_rollups(app)).done == 2


def test_two_workers_lose_no_update(app: Effects) -> None:
    countings = [Counting(app) for _ in range(2)]

    def work(counting: Counting) -> None:
        for _ in range(5):
            counting.count(settled())
            counting.write()

    at_once(2, lambda number: work(countings[number]))
    assert total(all_rollups(app)).done == 10


def test_a_clock_set_back_loses_nothing(app: Effects) -> None:
    counting = Counting(app)
    counting.count(settled())
    counting.runtime.seconds += 60
    counting.count(settled())
    counting.write()
    counting.numbers.set_clock(START)
    counting.count(settled())
    counting.write()
    assert [(rollup.begins_at, rollup.done) for rollup in all_rollups(app)] == [
        (START, 1), (START, 1), (START + 60, 1)
    ]  # fmt: skip


def test_a_row_due_for_folding_is_no_longer_written(app: Effects) -> None:
    """What was counted since its last write is lost, as in a crash; a row that was never written is not."""
    counting = Counting(app)
    counting.count(settled())
    counting.write()
    counting.count(settled(), settled(of=job("other")))
    counting.runtime.seconds += LATE_SECONDS + MINUTE
    counting.write()
    assert [(rollup.job_type, rollup.done) for rollup in all_rollups(app)] == [("other", 1), ("scripted", 1)]


# -- folding ---------------------------------------------------------------------------------------------


def _random_numbers(app: Effects, draw: random.Random) -> Rollup:
    """Attempts of three workers over two days and more, until now; what they come to."""
    durations: list[float] = []
    for begins in (now(app) - 3 * 86_400, now(app) - 3 * 86_400 + 1800, now(app) - 7200, now(app) - 30):
        for _ in range(3):
            counting = Counting(app, begins)
            for _ in range(draw.randrange(1, 6)):
                subject = job(draw.choice(["a", "b"]), draw.choice(["default", "slow"]))
                seconds = draw.expovariate(1.0)
                durations.append(seconds)
                counting.count(settled(of=subject, wait_seconds=seconds, duration_seconds=seconds))
                counting.runtime.seconds += draw.choice([1.0, 61.0])
            counting.write()
    summed = total(all_rollups(app))
    assert summed.done == len(durations)
    assert summed.run_seconds == pytest.approx(sum(durations))
    for share in (0.5, 0.95):
        exact = sorted(durations)[math.ceil(share * len(durations)) - 1]
        assert percentile(summed.run_counts, share) == pytest.approx(exact, rel=0.25, abs=BOUNDS[0] / 2)
    return summed


def _same(rollup: Rollup, expected: Rollup) -> bool:
    sums = ("wait_seconds", "run_seconds")
    return all(getattr(rollup, name) == getattr(expected, name) for name in ROLLUP_COUNTS) and all(
        getattr(rollup, name) == pytest.approx(getattr(expected, name)) for name in sums
    ) and (rollup.wait_counts, rollup.run_counts) == (expected.wait_counts, expected.run_counts)  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_folding_loses_nothing(app: Effects, seed: int) -> None:
    expected = _random_numbers(app, random.Random(seed))
    assert prune(app).numbers > 0
    assert _same_in_hours(app, expected)
    sql = app.store.sql
    assert not rows(app, "rollups", f"worker <> '' AND begins_at < {sql.after(str(-WORKERS_SECONDS - MINUTE))}")
    assert not rows(app, "rollups", f"seconds < {HOUR} AND begins_at < {sql.after(str(-MINUTES_SECONDS - MINUTE))}")
    assert prune(app).numbers == 0
    assert _same_in_hours(app, expected)


def _same_in_hours(app: Effects, expected: Rollup) -> bool:
    return all(_same(total(all_rollups(app, length)), expected) for length in (HOUR, SIX_HOURS))


@pytest.mark.parametrize("hours", [1, 3, 8, 21, 23, 50, 80, 400])
def test_a_fold_changes_no_answer(app: Effects, hours: int) -> None:
    """Each window reads rows of another length, beside what is not folded yet."""
    expected = _random_numbers(app, random.Random(hours))
    until = datetime.fromtimestamp(now(app) + HOUR, UTC)
    since = datetime.fromtimestamp(now(app) - hours * HOUR, UTC)
    app.store.shift_clock(2 * HOUR)
    before = read_stats(app.store, Window(since=since, until=until))
    assert before.types
    assert hours < 80 or sum(series.outcomes["done"] for series in before.types) == expected.done
    prune(app)
    after = read_stats(app.store, Window(since=since, until=until))
    assert _rounded(after) == _rounded(before)


def _rounded(stats: Stats) -> list[dict[str, Any]]:
    """Sums of seconds depend on their order in the last digit."""
    types = [msgspec.to_builtins(series) for series in stats.types]
    for series in types:
        for durations in (series["wait"], series["run"]):
            durations["mean"] = round(durations["mean"], 6)
    return types


def test_a_late_row_joins_what_is_folded(app: Effects) -> None:
    begins = now(app) - 3 * 86_400
    for _ in range(3):
        late = Counting(app, begins)
        late.count(settled())
        late.write()
        prune(app)
    rollups = [(row["seconds"], row["worker"], row["done"]) for row in rows(app, "rollups")]
    assert sorted(rollups) == [(HOUR, "", 3), (SIX_HOURS, "", 3)]


def fold(app: Effects) -> None:
    prune(app)


def test_folds_at_once_count_nothing_twice(app: Effects, app_factory: AppFactory) -> None:
    expected = _random_numbers(app, random.Random(7))
    apps = [app_factory(), app_factory()]
    at_once(2, lambda number: fold(apps[number]))
    prune(app)
    assert _same_in_hours(app, expected)


def test_numbers_are_kept_for_a_month(app: Effects) -> None:
    counting = Counting(app, now(app))
    counting.count(settled())
    counting.write()
    take_sample(app.store, LEASE)
    app.store.shift_clock((NUMBERS_DAYS - 1) * 86_400)
    prune(app)
    assert (len(rows(app, "rollups")), len(rows(app, "samples"))) == (2, 1)
    app.store.shift_clock(2 * 86_400)
    assert prune(app, dry_run=True).numbers == 3
    assert prune(app).numbers == 3
    assert rows(app, "rollups") == rows(app, "samples") == []


# -- samples ---------------------------------------------------------------------------------------------


def test_a_fleet_samples_once_a_minute(app: Effects) -> None:
    ManualWorker(app), ManualWorker(app, "second")
    enqueue("scripted", {}, effects=app)
    enqueue("scripted", {}, queue="slow", run_at=None, effects=app)
    taken = [take_sample(app.store, LEASE) for _ in range(3)]
    assert taken[0]
    assert sum(taken) == len(rows(app, "samples", "queue = ''"))  # 1, unless a minute ended meanwhile
    samples = {sample["queue"]: sample for sample in rows(app, "samples")}
    assert {name: sample["due"] for name, sample in samples.items()} == {"": 2, "default": 1, "slow": 1}
    assert samples[""]["workers"] == 2
    app.store.shift_clock(MINUTE)
    assert take_sample(app.store, LEASE)
    assert rows(app, "samples", "queue = 'slow' AND oldest_due_seconds >= 50")


def set_limit(app: Effects, key: str, **limits: Any) -> None:
    with app.store.begin() as connection:
        limit_rows.set_limit(app.store, connection, key, actor="test", **limits)


def test_a_sample_counts_what_limits_hold_and_what_is_unresolved(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])
    manual_worker = ManualWorker(app)
    for job_type, outcome in (("scripted", Refused("no")), ("held", Unknown("no reply"))):
        enqueue(job_type, {}, queue="needs-person", effects=app)
        manual_worker.settle((manual_worker.claim_one(queue="needs-person"), outcome))
    enqueue("scripted", {}, limit_key="full", effects=app)
    manual_worker.claim_one()
    set_limit(app, "full", max_in_flight=1)
    set_limit(app, "child", parent="full")
    set_limit(app, "slow", rate=Rate(1, 3600.0))
    set_limit(app, "paused")
    set_limit(app, "open", max_in_flight=2)
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, "paused", actor="test")
    run_sql(app, f"UPDATE {app.store.sql.limits} SET tokens = 0, refilled_at = {app.store.sql.now} "
                 "WHERE limit_key = 'slow'")  # fmt: skip
    for key in ("full", "child", "slow", "paused", "open", "without limits", None):
        enqueue("scripted", {}, limit_key=key, effects=app)
    enqueue("scripted", {}, limit_key="full", run_at=datetime(2100, 1, 1, tzinfo=UTC), effects=app)
    take_sample(app.store, LEASE)
    samples = {sample["queue"]: sample for sample in rows(app, "samples")}
    counts = {
        name: (sample["due"], sample["held"], sample["running"], sample["unresolved"])
        for name, sample in samples.items()
    }
    assert counts == {"": (7, 4, 1, 2), "default": (7, 4, 1, 0), "needs-person": (0, 0, 0, 2)}
    shown = {queue.queue: (queue.held, queue.unresolved) for queue in stats(app, 3600).queues}
    assert shown == {"default": (4, 0), "needs-person": (0, 2)}


def test_a_sample_passes_over_jobs_that_are_scheduled_for_later(app: Effects) -> None:
    kinds: tuple[dict[str, str], ...] = ({}, {"limit_key": "key"}, {"group_key": "group"})
    later = datetime(2100, 1, 1, tzinfo=UTC)
    jobs = [NewJob(job_type="scripted", payload={}, run_at=later, **kind) for kind in kinds for _ in range(LATER)]
    enqueue_many([*jobs, *(NewJob(job_type="scripted", payload={}, **kind) for kind in kinds)], effects=app)
    with recorded(app) as statements:
        take_sample(app.store, LEASE)
    assert rows(app, "samples", "queue = 'default'")[0]["due"] == len(kinds)
    counting = [entry for entry in statements if f"FROM {app.store.sql.jobs}" in entry[0]]
    assert len(counting) == 1
    with app.store.begin() as connection:
        if app.store.is_postgresql:
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # as with a million jobs
            assert rows_touched_in(connection, counting) <= 2 * len(kinds)
            return
        statement, parameters = counting[0]
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
        scans = [row.detail for row in plan if " effects_jobs" in row.detail]
        assert len(scans) == len(kinds) + 2  # those that run, and those that failed
        assert all(" USING INDEX " in scan for scan in scans)


def test_samples_become_those_of_an_hour(app: Effects) -> None:
    app.store.shift_clock(-3 * 86_400 - (now(app) % HOUR))
    worker = ManualWorker(app)
    enqueue("scripted", {}, effects=app)
    for _ in range(3):
        app.store.shift_clock(MINUTE)
        take_sample(app.store, LEASE)
    longest = max(sample["oldest_due_seconds"] for sample in rows(app, "samples"))
    app.store.shift_clock(3 * 86_400)
    prune(app)
    samples = {sample["queue"]: sample for sample in rows(app, "samples")}
    assert sorted(samples) == ["", "default"]
    for sample in samples.values():
        assert (sample["seconds"], sample["minutes"], sample["due"]) == (HOUR, 3, 1)
        assert sample["oldest_due_seconds"] == longest
    assert worker.claim()


# -- a worker ---------------------------------------------------------------------------------------------


def test_a_drain_writes_its_numbers_at_its_end(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted()])
    for moves in (["done"], ["refuse"], ["retry"]):
        enqueue("scripted", {"moves": moves}, effects=app)
    app.store.shift_clock(30)
    Worker(app).drain(60)
    numbers = total(all_rollups(app))
    assert (numbers.done, numbers.refused, numbers.failed, numbers.dead) == (1, 1, 1, 1)
    assert (percentile(numbers.wait_counts, 0.5) or 0) > 20  # they were due for half a minute
    assert rows(app, "samples", "queue = ''")
    with app.store.read() as connection:
        ago = seconds_without_worker(app.store, connection)
    assert ago is not None
    assert ago < 3600


def test_an_error_in_the_numbers_stops_no_worker(app_factory: AppFactory, caplog: pytest.LogCaptureFixture) -> None:
    app = app_factory(job_types=[Scripted()])
    run_sql(app, f"DROP TABLE {app.store.sql.rollups}")
    run_sql(app, f"DROP TABLE {app.store.sql.samples}")
    enqueue("scripted", {}, effects=app)
    result = Worker(app).drain(60)
    assert (result.finished, result.counts) == (True, {"succeeded": 1})
    assert "numbers.failed" in caplog.text


# -- reading ---------------------------------------------------------------------------------------------


def stats(app: Effects, seconds: float, **filters: str) -> Stats:
    return read_stats(app.store, Window(newer=seconds), **filters)


def test_a_time_without_a_worker_is_a_gap(app: Effects) -> None:
    begins = now(app) // MINUTE * MINUTE
    app.store.shift_clock(begins - now(app) + 30.5)  # the middle of a minute
    counting = Counting(app, begins - 600)
    counting.count(settled(), settled())
    counting.write()
    app.store.shift_clock(-300)
    take_sample(app.store, LEASE)
    enqueue("scripted", {}, effects=app)
    app.store.shift_clock(300)
    take_sample(app.store, LEASE)
    numbers = stats(app, 660)
    [series], [queue] = numbers.types, numbers.queues
    assert numbers.point_seconds == MINUTE
    points = {number: point for number, point in enumerate(series.points) if point is not None}
    assert sorted(points.values()) == [0, 0, 2]
    assert len(series.points) - len(points) == len(series.points) - 3
    assert series.per_minute == pytest.approx(2 / 3)
    assert (queue.queue, queue.due) == ("default", 1)
    assert [point for point in queue.points if point] == [pytest.approx(300, abs=60)]
    assert queue.points.count(None) == series.points.count(None)


@pytest.mark.parametrize(("seconds", "point"), [(60, MINUTE), (3600, MINUTE), (86_400, 1800), (20 * 86_400, 12 * HOUR)])
def test_a_drawing_has_at_most_sixty_points(app: Effects, seconds: float, point: int) -> None:
    counting = Counting(app, now(app))
    counting.count(settled())
    counting.write()
    numbers = stats(app, seconds)
    assert numbers.point_seconds == point
    assert 30 <= len(numbers.types[0].points) <= 61 or seconds == MINUTE
    [series] = numbers.types
    assert 1 <= len(series.points) <= 61
    assert sum(point or 0 for point in series.points) == series.attempts == 1


def test_filters_and_empty_windows(app: Effects) -> None:
    counting = Counting(app, now(app))
    counting.count(settled(of=job("a", "q")), settled(of=job("b", "q")), settled(of=job("a", "r")))
    counting.write()
    assert [(series.job_type, series.queue) for series in stats(app, 60, job_type="a").types] == [
        ("a", "q"),
        ("a", "r"),
    ]
    assert [(series.job_type, series.queue) for series in stats(app, 60, queue="q").types] == [("a", "q"), ("b", "q")]
    assert read_stats(app.store, Window(newer=60, older=120)).types == []


@pytest.mark.parametrize("histogram", ["[]", "null", '{"a": 1}', "[1.5]", '["x"]', str([1] * (BUCKETS + 1))])
def test_an_invalid_histogram_does_not_break_stats(app: Effects, histogram: str) -> None:
    with app.store.begin() as connection:
        quoted = histogram.replace("'", '"')
        connection.exec_driver_sql(
            f"INSERT INTO {app.store.sql.rollups} "
            "(seconds, begins_at, job_type, queue, worker, done, wait_counts, run_counts) "
            f"VALUES (60, {app.store.sql.now}, 'a', 'q', 'w', 3, '{quoted}', '{quoted}')"
        )
    [series] = stats(app, 3600).types
    assert (series.attempts, series.run.p50) == (3, None)
    assert isinstance(prune(app).numbers, int)
    assert row(app, "rollups")["done"] == 3
