"""An alert enqueues one job for each episode, whoever checks and however often."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import msgspec
import pytest

from effects import ConfigurationError, Effects, JobType, PayloadInvalid, Refused, Retry, enqueue
from effects.app.late_jobs import CheckAlerts
from effects.model.alerts import Alert, DeadLetters, OldDueJobs, Rule, SameError
from effects.operate.alert_check import check_alerts
from effects.operate.doctor import examine, exit_code
from effects.operate.tables import alert_episodes
from effects.operate.tables.alert_episodes import episodes
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.scripted import Scripted

NAMED_QUEUES = ("a", "b", "c")


class Page(JobType[dict[str, Any]]):
    """What an alert enqueues. It stands in a queue that no test works on."""

    name = "page"
    queue = "pages"

    def perform(self, payload: Any, attempt: Any) -> None:
        """Nothing is to be done here."""


def watching(app_factory: AppFactory, *alerts: Alert) -> Effects:
    return app_factory(job_types=[Scripted(), Page()], alerts=list(alerts))


def alert(rule: Rule, name: str = "watch") -> Alert:
    return Alert(
        name, rule, notify="page", payload={"text": "{alert}: {summary}", "of": ["{subject}", "{value}/{limit}"]}
    )


def die(app: Effects, code: str = "gone", times: int = 1) -> None:
    for _ in range(times):
        enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle(*((job, Refused("no", code=code)) for job in manual_worker.claim()))


def pages(app: Effects) -> list[str]:
    return [row["idempotency_key"] for row in rows(app, "jobs") if row["job_type"] == "page"]


def test_each_episode_enqueues_one_job(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(DeadLetters(more_than=1)))
    die(app)
    assert check_alerts(app) == []
    die(app)
    [firing] = check_alerts(app)
    summary = "2 jobs died within 3,600 s: scripted gone (2); see `effects dead list`"
    assert (firing.alert, firing.value, firing.summary) == ("watch", 2.0, summary)
    [again] = check_alerts(app)
    assert again.job_id is None
    assert pages(app) == ["alert:watch:1:"]
    app.store.shift_clock(3700)
    assert check_alerts(app) == []
    assert [(episode.open, episode.number) for episode in episodes(app.store)] == [(False, 1)]
    die(app, times=2)
    assert check_alerts(app)[0].job_id is not None
    assert pages(app) == ["alert:watch:1:", "alert:watch:2:"]


def test_a_subject_that_is_not_among_the_greatest_for_a_while_has_one_episode(
    app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_episodes, "SUBJECTS_MAX", 2)
    app = watching(app_factory, alert(SameError(times=1)))
    for code in ("a", "b", "c", "c", "b", "b"):  # of three subjects another one is the least at each check
        die(app, code)
        check_alerts(app)
    assert sorted(pages(app)) == [f"alert:watch:1:scripted: {code}" for code in "abc"]
    app.store.shift_clock(3700)
    check_alerts(app)
    assert not any(episode.open for episode in episodes(app.store))


def test_an_alert_whose_job_is_refused_does_not_stop_the_others(app_factory: AppFactory) -> None:
    """As of a subject that is longer than its payload takes: the codes are those of any row."""

    class Short(msgspec.Struct):
        subject: Annotated[str, msgspec.Meta(max_length=20)]

    class Notice(JobType[Short]):
        name = "notice"
        payload = Short

        def perform(self, payload: Short, attempt: Any) -> None:
            """Nothing is to be done here."""

    notice = Alert("first", SameError(times=1), notify="notice", payload={"subject": "{subject}"})
    app = app_factory(job_types=[Scripted(), Page(), Notice()], alerts=[notice, alert(DeadLetters(), "second")])
    die(app, "a_code_that_is_longer")
    with pytest.raises(PayloadInvalid):
        check_alerts(app)
    assert pages(app) == ["alert:second:1:"]
    assert [(episode.alert, episode.open) for episode in episodes(app.store)] == [("second", True)]


def test_the_payload_is_filled_in(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(SameError(times=2)))
    die(app, "gone", 2)
    die(app, "other", 1)
    check_alerts(app)
    [job] = [job for job in ManualWorker(app, queue="pages").claim() if job.job_type == "page"]
    payload = app.job_types.get("page").decode(job.payload)
    assert payload == {"text": "watch: 2 jobs share one error (scripted: gone)", "of": ["scripted: gone", "2/2"]}


def test_the_same_error_counts_jobs_that_wait_to_be_retried(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(SameError(times=2, job_type="scripted")))
    die(app, "busy")
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Retry("not now", code="busy")))
    assert [alerted.subject for alerted in check_alerts(app)] == ["scripted: busy"]
    assert check_alerts(watching(app_factory, alert(SameError(times=2, job_type="page"), "other"))) == []


def test_each_subject_has_episodes_of_its_own(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(OldDueJobs(older_than_seconds=60)))
    for queue in ("a", "b"):
        enqueue("scripted", {}, queue=queue, effects=app)
    assert check_alerts(app) == []
    app.store.shift_clock(61)
    assert {alerted.subject for alerted in check_alerts(app)} == {"a", "b"}
    ManualWorker(app, queue="a").claim()
    assert [(alerted.subject, alerted.job_id) for alerted in check_alerts(app) if alerted.subject != "pages"] == [
        ("b", None)
    ]
    assert {(episode.subject, episode.open) for episode in episodes(app.store)} == {("a", False), ("b", True)}
    assert watching(app_factory, alert(OldDueJobs(queue="c"))).alerts[0].rule == OldDueJobs(queue="c")


def test_many_checks_at_once_enqueue_one_job(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(DeadLetters()))
    die(app)
    start = threading.Barrier(4)
    job_ids: list[int | None] = []

    def check() -> None:
        start.wait()
        job_ids.extend(alerted.job_id for alerted in check_alerts(app))

    threads = [threading.Thread(target=check) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(job_ids) == 4
    assert sum(job_id is not None for job_id in job_ids) == 1
    assert len(pages(app)) == 1


def test_an_episode_and_its_job_are_one_commit(app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    app = watching(app_factory, alert(DeadLetters()))
    die(app)
    page = app.job_types.get("page")
    monkeypatch.setattr(page, "route", lambda payload: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        check_alerts(app)
    assert episodes(app.store) == []
    monkeypatch.undo()
    assert check_alerts(app)[0].job_id is not None


def test_the_built_in_schedule_checks_alerts(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(DeadLetters()))
    assert app.schedules["effects.alerts"].job_type == CheckAlerts.name
    die(app)
    enqueue(CheckAlerts.name, {}, effects=app)
    Worker(app, queues={"default": 1}).drain()
    assert pages(app) == ["alert:watch:1:"]
    assert "effects.alerts" not in watching(app_factory).schedules


def test_a_long_strange_subject_makes_a_key(app_factory: AppFactory) -> None:
    app = watching(app_factory, alert(SameError(times=1)))
    die(app)
    run_sql(app, "UPDATE effects_job_history SET error_code = :code", code="x\ny" * 200)
    [firing] = check_alerts(app)
    assert firing.job_id is not None
    assert len(pages(app)[0]) == 255


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("Watch", DeadLetters(), "page"), "give a name of lower-case"),
        (("watch", DeadLetters(more_than=-1), "page"), "too small"),
        (("watch", SameError(times=0), "page"), "too small"),
        (("watch", DeadLetters(within_seconds=0), "page"), "too small"),
        (("watch", OldDueJobs(older_than_seconds=0), "page"), "too small"),
        (("watch", DeadLetters(), "nobody"), "no job type 'nobody'"),
        (("watch", DeadLetters(), "scripted", {"moves": 1}), "payload is not valid"),
    ],
)
def test_wrong_alerts_are_refused(app_factory: AppFactory, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        watching(app_factory, Alert(*arguments))


def test_a_name_is_given_once(app_factory: AppFactory) -> None:
    with pytest.raises(ConfigurationError, match="declared twice"):
        watching(app_factory, alert(DeadLetters()), alert(SameError()))


def test_doctor_warns_of_unresolved_dead_letters(app_factory: AppFactory) -> None:
    app = watching(app_factory)
    assert [finding.level for finding in examine(app) if finding.check == "dead letters"] == ["ok"]
    die(app, "gone", 2)
    [finding] = [finding for finding in examine(app) if finding.check == "dead letters"]
    assert (finding.level, finding.text) == ("warning", "2 unresolved: scripted gone (2)")
    assert "effects dead list" in str(finding.advice)
    assert exit_code([finding]) == 1
