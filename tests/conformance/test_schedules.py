"""Schedules on a database: each slot once whoever looks, catch-up, overlap, pauses, deploys."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from effects import ConfigurationError, Done, Effects, EnqueueError, JobType, Refused, Schedule, enqueue
from effects.app.firing import fire_due, fire_now
from effects.kit.moments import moment
from effects.operate.tables.schedule_states import read_states
from effects.store import schedules as schedule_definitions
from effects.store import schedules as schedule_slots
from effects.store.effects.requeue import requeue
from effects.store.schedules import Registered
from effects.worker import Worker
from effects.worker.upkeep.scheduler import LOOK_SECONDS, Scheduler
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, row, rows, run_sql
from tests.support.scripted import Scripted
from tests.support.worker_parts import context_of, no_queues

HOURLY = {"cron": "0 * * * *"}
DAY = 86_400.0


def schedule(name: str = "tidy", **options: Any) -> Schedule:
    return Schedule(name, "scripted", **{"payload": {"name": name}, **HOURLY, **options})


def register(app: Effects, *schedules: Schedule) -> Registered:
    return schedule_definitions.register(app.store, list(schedules), retire_types=app.job_types.names())


def look(app: Effects) -> float:
    """One look of a worker at the schedules."""
    context = context_of(app)
    return Scheduler(context, no_queues(context)).round()


def now(app: Effects) -> datetime:
    with app.store.read() as connection:
        return moment(app.store.now(connection))


def to_the_next_hour(app: Effects, after_seconds: float = 1.0) -> datetime:
    """Move the clock to just after a full hour, and give that hour."""
    here = now(app)
    hour = here.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    app.store.shift_clock((hour - here).total_seconds() + after_seconds)
    return hour


def look_until_quiet(app: Effects) -> None:
    while look(app) < 1:
        pass


def slot_of(record: dict[str, Any]) -> datetime:
    """A slot as the database has it: a time, or milliseconds."""
    value = record["slot"]
    return moment(value / 1000) if isinstance(value, int) else value.astimezone(UTC)


def outcomes(app: Effects) -> list[str]:
    return [str(run["outcome"]) for run in rows(app, "definition_runs")]


# -- a slot ----------------------------------------------------------------------------------------------


def test_a_slot_makes_one_job_with_its_key_and_its_name(app: Effects) -> None:
    register(app, schedule(payload={"name": "{slot_date}"}, max_attempts=3))
    assert look(app) <= LOOK_SECONDS + 1
    assert rows(app, "jobs") == []

    hour = to_the_next_hour(app)
    look_until_quiet(app)
    job = row(app, "jobs")
    assert job["idempotency_key"] == f"schedule:tidy:{hour:%Y-%m-%dT%H:%M:%SZ}"
    assert job["max_attempts"] == 3
    assert slot_of(job) == hour
    job = ManualWorker(app).claim_one()
    assert f'"{hour.date()}"' in job.payload
    done = row(app, "definition_runs")
    assert (done["job_id"], done["outcome"], slot_of(done)) == (job.id, "enqueued", hour)
    look_until_quiet(app)
    assert len(rows(app, "definition_runs")) == 1


def test_the_worker_is_told_when_to_look_again(app: Effects) -> None:
    register(app, schedule())
    hour = to_the_next_hour(app, after_seconds=-8.0)
    assert 0 < look(app) <= 8.1
    app.store.shift_clock(60)
    assert look(app) < 1  # fired: look again at once
    assert 1 < look(app) <= LOOK_SECONDS + 1
    assert slot_of(row(app, "jobs")) == hour


@pytest.mark.slow
def test_eight_workers_make_each_slot_once(app_factory: AppFactory) -> None:
    """No leader: all of them look at the same moment, for six slots in a row."""
    first = app_factory()
    register(first, schedule("a", overlap="allow"), schedule("b", overlap="allow"))
    apps = [app_factory() for _ in range(8)]
    together = threading.Barrier(len(apps))
    failures: list[BaseException] = []

    def work(app: Effects) -> None:
        try:
            for turn in range(6):
                app.store.sql.shift_seconds = (turn + 1) * 3600.0
                app.store._statements.clear()
                together.wait(60)
                look_until_quiet(app)
        except BaseException as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=work, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failures == []
    for app in apps:  # a row that another held at the last moment is looked at again
        look_until_quiet(app)
    jobs = rows(first, "jobs")
    slots = sorted((job["definition_id"], slot_of(job)) for job in jobs)
    assert len(slots) == len(set(slots))
    assert 12 <= len(slots) <= 14  # the real clock may pass an hour meanwhile
    assert sorted((run["definition_id"], slot_of(run)) for run in rows(first, "definition_runs")) == slots
    assert {run["job_id"] for run in rows(first, "definition_runs")} == {run["id"] for run in jobs}


def test_slot_and_job_are_one_commit(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    """What breaks the transaction after the job was written leaves neither, and the next look makes both."""
    register(app, schedule())
    to_the_next_hour(app)

    def breaks(*_: object) -> None:
        raise RuntimeError("the process is gone")

    [definition] = definitions(app)
    with monkeypatch.context() as patch:
        patch.setattr(schedule_slots, "advance", breaks)
        with pytest.raises(RuntimeError):
            fire_due(app, definition)
    assert rows(app, "jobs") == rows(app, "definition_runs") == rows(app, "effect_ledger") == []
    look_until_quiet(app)
    assert len(rows(app, "jobs")) == len(rows(app, "definition_runs")) == 1


def definitions(app: Effects) -> list[schedule_definitions.Definition]:
    with app.store.read() as connection:
        return schedule_slots.active(app.store, connection, app.job_types.names())[0]


def test_a_job_enqueued_under_the_slots_key_is_not_duplicated(app: Effects) -> None:
    register(app, schedule(payload={"name": "x"}, key="report:{slot_date}", cron="0 * * * *", overlap="allow"))
    day = to_the_next_hour(app).date()
    first = enqueue("scripted", {"name": "x"}, key=f"report:{day}", effects=app)
    look_until_quiet(app)
    assert [job["id"] for job in rows(app, "jobs")] == [first.job_id]
    done = row(app, "definition_runs")
    assert (done["outcome"], done["job_id"]) == ("existing", first.job_id)


def test_a_key_conflict_fails_its_slot_and_not_the_next(app: Effects) -> None:
    register(app, schedule(key="report:{slot}"))
    hour = to_the_next_hour(app)
    enqueue("scripted", {"name": "another"}, key=f"report:{hour.isoformat()}", effects=app)
    look_until_quiet(app)
    done = row(app, "definition_runs")
    assert (done["outcome"], done["job_id"]) == ("failed", None)
    assert "belongs to job" in str(done["reason"])
    to_the_next_hour(app)
    look_until_quiet(app)
    assert outcomes(app) == ["failed", "enqueued"]


def test_a_worker_leaves_the_schedules_of_job_types_that_it_does_not_know(
    app: Effects, app_factory: AppFactory
) -> None:
    register(app, schedule())
    to_the_next_hour(app)
    third_party = app_factory(job_types=[])
    third_party.store.shift_clock(app.store.sql.shift_seconds)
    look_until_quiet(third_party)
    assert rows(app, "jobs") == []
    look_until_quiet(app)
    assert len(rows(app, "jobs")) == 1


def test_one_broken_schedule_does_not_keep_the_others(app: Effects) -> None:
    register(app, schedule("a"), schedule("b"), schedule("c"))
    run_sql(app, "UPDATE effects_job_definitions SET zone = 'Europe/Atlantis' WHERE name = 'a'")
    run_sql(app, "UPDATE effects_job_definitions SET payload = '{\"moves\": 7}' WHERE name = 'b'")
    to_the_next_hour(app)
    look_until_quiet(app)
    assert [job["idempotency_key"].split(":")[1] for job in rows(app, "jobs")] == ["c"]
    assert sorted(outcomes(app)) == ["enqueued", "failed"]


# -- catch-up --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "days_back"),
    [
        ({"catch_up": "none"}, []),
        ({"catch_up": "latest"}, [0]),
        ({"catch_up": "all", "overlap": "queue"}, [2, 1, 0]),
        ({"catch_up": "all", "overlap": "allow", "catch_up_max": 2}, [1, 0]),
    ],
)
def test_a_worker_that_was_down_for_three_days(app: Effects, options: dict[str, Any], days_back: list[int]) -> None:
    """It does what the policy says, once, whoever comes back and however often."""
    start = now(app)
    slot = (start + timedelta(hours=2)).replace(second=0, microsecond=0)
    register(app, schedule(cron=f"{slot.minute} {slot.hour} * * *", **options))
    app.store.shift_clock(3 * DAY)
    for _ in range(3):
        look_until_quiet(app)
    last = slot + timedelta(days=2)
    assert [slot_of(job) for job in rows(app, "jobs")] == [last - timedelta(days=days) for days in days_back]
    app.store.shift_clock(DAY)
    look_until_quiet(app)
    newly_due = 0 if options["catch_up"] == "none" else 1  # a day later the slot is 22 hours old
    assert len(rows(app, "definition_runs")) == len(days_back) + newly_due


@pytest.mark.slow
def test_a_catch_up_of_many_goes_in_commits_of_fifty(app: Effects) -> None:
    to_the_next_hour(app)
    register(app, schedule(cron="* * * * *", catch_up="all", catch_up_max=120, overlap="allow"))
    app.store.shift_clock(DAY)
    [definition] = definitions(app)
    assert len(fire_due(app, definition)) == 50
    look_until_quiet(app)
    slots = [slot_of(job) for job in rows(app, "jobs")]
    assert len(slots) == 120
    assert slots == [slots[0] + timedelta(minutes=number) for number in range(120)]
    assert now(app) - slots[-1] < timedelta(minutes=1)


# -- overlap ---------------------------------------------------------------------------------------------


def two_slots(app: Effects, **options: Any) -> None:
    register(app, schedule(**options))
    for _ in range(2):
        to_the_next_hour(app)
        look_until_quiet(app)


def test_skip_records_the_slot_and_makes_no_job_while_one_is_live(app: Effects) -> None:
    two_slots(app, overlap="skip")
    assert len(rows(app, "jobs")) == 1
    assert outcomes(app) == ["enqueued", "skipped"]
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Done()))
    to_the_next_hour(app)
    look_until_quiet(app)
    assert outcomes(app) == ["enqueued", "skipped", "enqueued"]


def test_allow_lets_both_run(app: Effects) -> None:
    two_slots(app, overlap="allow")
    assert len(ManualWorker(app).claim()) == 2


def test_queue_lets_the_next_one_wait(app: Effects) -> None:
    two_slots(app, overlap="queue")
    manual_worker = ManualWorker(app)
    [first] = manual_worker.claim()
    assert first.group_key == "schedule:tidy"
    assert manual_worker.claim() == []
    manual_worker.settle((first, Done()))
    assert manual_worker.claim_one().id > first.id


def test_a_requeued_job_still_belongs_to_its_schedule(app: Effects) -> None:
    register(app, schedule(overlap="skip"))
    hour = to_the_next_hour(app)
    look_until_quiet(app)
    manual_worker = ManualWorker(app)
    job = manual_worker.claim_one()
    manual_worker.settle((job, Refused("no")))
    requeue(app.store, app.job_types, job.id, actor="ann")
    assert slot_of(row(app, "jobs")) == hour
    to_the_next_hour(app)
    look_until_quiet(app)
    assert outcomes(app) == ["enqueued", "skipped"]


# -- what people and deploys do --------------------------------------------------------------------------


def test_a_pause_survives_a_deploy_and_its_slots_are_not_caught_up(app: Effects) -> None:
    register(app, schedule())
    schedule_definitions.pause(app.store, "tidy", actor="ann", reason="too loud")
    assert register(app, schedule(max_attempts=2)).changed == ["tidy"]
    [state] = read_states(app.store)
    assert (state.state, state.paused_by, state.next_slot) == ("paused", "ann: too loud", None)
    app.store.shift_clock(3 * DAY)
    look_until_quiet(app)
    schedule_definitions.resume(app.store, "tidy", actor="ann")
    look_until_quiet(app)
    assert rows(app, "jobs") == []
    to_the_next_hour(app)
    look_until_quiet(app)
    assert len(rows(app, "jobs")) == 1


def test_registering_again_changes_nothing(app: Effects) -> None:
    first, second = schedule("a"), schedule("b", payload={"name": "{slot}", "moves": ["done"]})
    assert register(app, first, second) == Registered(["a", "b"], [], [])
    before = [{**definition, "updated_at": None} for definition in rows(app, "job_definitions")]
    assert register(app, first, second) == Registered([], [], [])
    assert [{**definition, "updated_at": None} for definition in rows(app, "job_definitions")] == before


def test_a_schedule_removed_from_code_stops_and_resumes_with_its_next_slot(app: Effects) -> None:
    register(app, schedule("a"), schedule("b"))
    schedule_definitions.add(app.store, schedule("by_hand"), actor="ann")
    assert register(app, schedule("a")).retired == ["b"]
    assert register(app, schedule("a")).retired == []
    assert {schedule_state.name: schedule_state.state for schedule_state in read_states(app.store)} == {
        "a": "active",
        "b": "retired",
        "by_hand": "active",
    }
    with pytest.raises(ConfigurationError, match="no longer in the app's code"):
        schedule_definitions.resume(app.store, "b", actor="ann")
    app.store.shift_clock(DAY)
    assert register(app, schedule("a"), schedule("b")).changed == ["b"]
    look_until_quiet(app)
    assert sorted(job["idempotency_key"].split(":")[1] for job in rows(app, "jobs")) == ["a", "by_hand"]


def test_another_apps_schedules_are_left_alone(app: Effects, app_factory: AppFactory) -> None:
    register(app, schedule("a"))
    second_app = app_factory(job_types=[])
    assert register(second_app).retired == []
    assert read_states(app.store)[0].state == "active"


def test_changing_the_time_resets_the_schedule(app: Effects) -> None:
    """At three o'clock a daily schedule moves from one to two: two has passed, and does not run today."""
    to_the_next_hour(app)
    register(app, schedule(cron="0 1 * * *"))
    app.store.shift_clock(2 * DAY)
    assert register(app, schedule(cron="* * * * *")).changed == ["tidy"]
    look_until_quiet(app)
    assert rows(app, "definition_runs") == []


def test_one_name_is_one_schedule(app: Effects) -> None:
    schedule_definitions.add(app.store, schedule(), actor="ann")
    with pytest.raises(ConfigurationError, match="there is a schedule 'tidy' already"):
        schedule_definitions.add(app.store, schedule(), actor="ann")
    for act in (
        lambda: schedule_definitions.pause(app.store, "none", actor="ann"),
        lambda: schedule_definitions.resume(app.store, "none", actor="ann"),
    ):
        with pytest.raises(ConfigurationError, match=r"no schedule 'none' \(known: tidy\)"):
            act()


def test_a_run_by_hand_is_a_slot_of_its_own(app: Effects) -> None:
    register(app, schedule(key="report:{slot_date}", payload={"name": "{slot_date}"}))
    schedule_definitions.pause(app.store, "tidy", actor="ann")
    slot = datetime(2026, 1, 14, 6, tzinfo=UTC)
    fired = fire_now(app, "tidy", actor="ann", slot=slot)
    assert (fired.outcome, fired.slot) == ("enqueued", slot)
    assert row(app, "jobs")["idempotency_key"] == "report:2026-01-14"
    with pytest.raises(EnqueueError, match="has run already"):
        fire_now(app, "tidy", actor="ann", slot=slot)
    again = fire_now(app, "tidy", actor="ann", slot=slot + timedelta(hours=1))
    assert (again.outcome, again.job_id) == ("existing", fired.job_id)
    assert len(rows(app, "jobs")) == 1
    assert outcomes(app) == ["enqueued", "existing"]
    [state] = read_states(app.store)
    assert (state.last_outcome, state.last_reason) == ("existing", "run by ann")


def test_a_slot_to_come_is_not_run_by_hand_and_runs_at_its_time(app: Effects) -> None:
    register(app, schedule(key="report:{slot}", payload={"name": "{slot_date}"}))
    with app.store.read() as connection:
        coming = moment(app.store.now(connection)) + timedelta(hours=1)
    with pytest.raises(EnqueueError, match=r"has not come yet.*give one that has passed"):
        fire_now(app, "tidy", actor="ann", slot=coming)
    assert rows(app, "definition_runs") == rows(app, "jobs") == []
    assert fire_now(app, "tidy", actor="ann").outcome == "enqueued"


def test_a_run_by_hand_that_cannot_be_enqueued_leaves_nothing(app: Effects) -> None:
    register(app, schedule(key="report:{slot}"))
    at = datetime(2026, 1, 14, 6, tzinfo=UTC)
    enqueue("scripted", {"name": "other"}, key=f"report:{at.isoformat()}", effects=app)
    with pytest.raises(EnqueueError, match="belongs to job"):
        fire_now(app, "tidy", actor="ann", slot=at)
    assert rows(app, "definition_runs") == []


# -- in the worker ---------------------------------------------------------------------------------------


class Noting(JobType[dict[str, Any]]):
    name = "noting"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def perform(self, payload: dict[str, Any], attempt: object) -> None:
        self.seen.append(payload["day"])


@pytest.mark.slow
def test_a_drain_that_cron_starts_makes_and_does_what_is_due(app_factory: AppFactory) -> None:
    noting = Noting()
    app = app_factory(job_types=[noting])
    register(app, Schedule("note", "noting", {"day": "{slot_date}"}, "0 * * * *"))
    assert Worker(app).drain(20).finished
    assert noting.seen == []
    hour = to_the_next_hour(app)
    assert Worker(app).drain(20).counts == {"succeeded": 1}
    assert noting.seen == [hour.date().isoformat()]
    assert Worker(app).drain(20).counts == {}


def test_jobs_without_a_schedule_do_not_delay_one(app: Effects) -> None:
    enqueue("scripted", {}, effects=app)
    register(app, schedule(overlap="skip"))
    to_the_next_hour(app)
    look_until_quiet(app)
    assert outcomes(app) == ["enqueued"]


def test_the_app_brings_its_schedules(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[Scripted()], schedules=[schedule()])
    assert sorted(app.schedules) == ["effects.prune", "tidy"]
    assert register(app, *app.schedules.values()).added == ["effects.prune", "tidy"]


# -- a clock that was wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
@pytest.mark.parametrize("ahead", [2 * 3600.0, 5 * 365 * DAY], ids=["2 hours", "5 years"])
def test_a_clock_that_was_ahead_for_a_moment_does_not_silence_a_schedule(
    app: Effects, caplog: pytest.LogCaptureFixture, ahead: float, catch_up: str
) -> None:
    to_the_next_hour(app, after_seconds=1_800.0)  # "none" still takes a slot that is only just due
    register(app, schedule(catch_up=catch_up, overlap="allow"))
    app.store.shift_clock(ahead)
    look_until_quiet(app)
    app.store.shift_clock(-ahead)
    look(app)  # some worker does, within ten seconds
    early = {slot_of(run) for run in rows(app, "definition_runs")}
    assert bool(early) == (catch_up != "none")

    hour = to_the_next_hour(app)
    while hour in early:  # taken when the clock was ahead: once is enough
        look_until_quiet(app)
        hour = to_the_next_hour(app)
    look_until_quiet(app)
    assert hour in {slot_of(run) for run in rows(app, "definition_runs")}
    assert "schedule.turned_back" in {record.message for record in caplog.records}
    assert len(rows(app, "definition_runs")) == len({slot_of(run) for run in rows(app, "definition_runs")})


def test_a_clock_that_goes_back_within_a_period_does_nothing_twice(
    app: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    register(app, schedule())
    hour = to_the_next_hour(app)
    look_until_quiet(app)
    app.store.shift_clock(-600)
    look_until_quiet(app)
    app.store.shift_clock(600)
    look_until_quiet(app)
    assert [slot_of(run) for run in rows(app, "definition_runs")] == [hour]
    assert "schedule.turned_back" not in {record.message for record in caplog.records}
