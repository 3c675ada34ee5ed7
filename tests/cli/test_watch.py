"""What an operator and a monitor look at: metrics, doctor, alerts."""

from __future__ import annotations

import base64
import itertools
import re
import signal
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import create_engine, text

from effects import Cancelled, Done, Effects, Refused, Retry, enqueue
from effects.model.advice import DoctorFinding
from effects.model.schedules import Schedule
from effects.operate.doctor import examine, exit_code
from effects.operate.metrics import Family, MetricsServer, Sample, WorkerMetrics, database_families, render
from effects.operate.tables import queue_status
from effects.store import schedules as schedule_definitions
from effects.store.limits import key_limits as limit_rows
from effects.version import VERSION
from effects_webhooks import add_endpoint
from tests.cli.conftest import ROOT, Run
from tests.support.commands import error_line
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.processes import fleet
from tests.support.served_metrics import fetch, port_of, serving
from tests.support.waiting import wait_until

NAMED_QUEUES = ('odd "queue"\\',)

KEY, DIGEST = (base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


# -- metrics -------------------------------------------------------------------------------------------


def parsed(exposition: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By the parser of Prometheus's own client: every sample by its name and labels."""
    families = list(text_string_to_metric_families(exposition))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def labels(**named: str) -> frozenset[tuple[str, str]]:
    return frozenset(named.items())


def test_metrics(app: Effects, run: Run) -> None:
    for outcome in (Refused("no", code="gone"), Retry("not now", code="busy")):
        enqueue("scripted", {}, effects=app)
        manual_worker = ManualWorker(app)
        manual_worker.settle((manual_worker.claim_one(), outcome))
    enqueue("scripted", {}, queue='odd "queue"\\', effects=app)
    samples = parsed(run("metrics").out)
    assert samples["effects_jobs", labels(job_type="scripted", queue="default", status="retrying")] == 1
    assert samples["effects_jobs", labels(job_type="scripted", queue='odd "queue"\\', status="queued")] == 1
    assert samples["effects_due_jobs", labels(queue='odd "queue"\\')] == 1
    assert samples["effects_oldest_due_seconds", labels(queue='odd "queue"\\')] >= 0
    assert samples["effects_unresolved_jobs", labels(job_type="scripted", effect="not_done")] == 1
    assert samples["effects_dead_jobs_last_hour", labels(job_type="scripted")] == 1
    assert samples["effects_workers", labels(state="alive")] == 1
    assert samples["effects_workers", labels(state="silent")] == 0
    run_sql(app, f"UPDATE effects_workers SET seen_at = {app.store.sql.after('-600')}")
    assert parsed(run("metrics").out)["effects_workers", labels(state="silent")] == 1


def _label_sets(samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> dict[str, set[Any]]:
    sets: dict[str, set[Any]] = defaultdict(set)
    for name, values in samples:
        sets[name].add(values)
    return sets


def _expected_labels(app: Effects, name: str) -> set[Any]:
    """What each gauge has a sample for, whatever there is to count: its known queues and job types."""
    queues = {labels(queue=queue) for queue in (*app.queues, "of-a-worker")}
    types = list(app.job_types)
    by_status = itertools.product(types, ("queued", "running", "retrying"))
    by_effect = itertools.product(types, ("unknown", "not_done"))
    by_name = {
        "effects_build_info": {labels(version=VERSION)},
        "effects_due_jobs": queues,
        "effects_oldest_due_seconds": queues,
        "effects_jobs": {labels(job_type=each.name, queue=each.queue, status=status) for each, status in by_status},
        "effects_unresolved_jobs": {labels(job_type=each.name, effect=effect) for each, effect in by_effect},
        "effects_dead_jobs_last_hour": {labels(job_type=each.name) for each in types},
        "effects_bulk_actions": {labels(status=status) for status in ("running", "stopped")},
        "effects_bulk_jobs": {labels(count=count) for count in ("expected", "done", "refused")},
        "effects_workers": {labels(state=state) for state in ("alive", "idle", "silent")},
    }
    return by_name.get(name, {labels()})


@pytest.mark.parametrize(
    "ending", [None, Done(), Refused("no"), Cancelled()], ids=["no job", "done", "dead", "cancelled"]
)
def test_no_gauge_vanishes_at_zero(app: Effects, ending: Any) -> None:
    """On an empty database, and after the last job has ended: every family, every label."""
    worker = ManualWorker(app, "other", queue="of-a-worker")
    if ending is not None:
        enqueue("scripted", {}, queue="of-a-worker", effects=app)
        worker.settle((worker.claim_one(), ending))
    families = database_families(app)
    sets = _label_sets(parsed(render(families)))
    assert {family.kind for family in families} == {"gauge"}
    assert sets == {family.name: _expected_labels(app, family.name) for family in families}
    moved = {"effects_build_info", "effects_workers"}
    if isinstance(ending, Refused):
        moved |= {"effects_unresolved_jobs", "effects_dead_jobs_last_hour"}
    assert {family.name for family in families if any(sample.value for sample in family.samples)} == moved


def test_line_breaks_are_escaped() -> None:
    odd = 'a\\b"c\nd'
    family = Family("odd_things", "gauge", "One\nline \\ only.", [Sample(0.1, {"what": odd}), Sample(float("inf"))])
    samples = parsed(render([family]))
    assert samples["odd_things", labels(what=odd)] == 0.1
    assert len(render([family]).splitlines()) == 4


def test_the_server_answers_only_for_its_path(app: Effects) -> None:
    with MetricsServer(app, WorkerMetrics(), port=0) as server:
        status, content_type, body = fetch(server.port)
        assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert ("effects_paused_limits", labels()) in parsed(body)
        assert fetch(server.port, "/metrics?name=x")[0] == 200
        assert fetch(server.port, "/")[0] == 404


def test_an_unavailable_database_is_shown(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
    with MetricsServer(app, WorkerMetrics(), port=0) as server:
        assert fetch(server.port)[0] == 503
    app.dispose()


@pytest.mark.slow
def test_a_worker_serves_its_own_counts(database_url: str, app: Effects, tmp_path: Path) -> None:
    for moves in (["done"], ["refuse"]):
        enqueue("scripted", {"moves": moves}, effects=app)
    with fleet(database_url, tmp_path) as processes:
        worker = serving(processes)
        wait_until(lambda: port_of(worker.output))
        port = port_of(worker.output)
        wait_until(lambda: "outcome" in fetch(port)[2])
        wait_until(lambda: ("effects_worker_attempts_total", attempts("refused")) in parsed(fetch(port)[2]))
        samples = parsed(fetch(port)[2])
        assert samples["effects_worker_attempts_total", attempts("succeeded")] == 1
        assert samples["effects_worker_attempts_total", attempts("refused")] == 1
        assert samples["effects_worker_attempt_seconds_count", labels(job_type="scripted")] == 2
        assert samples["effects_worker_attempt_seconds_sum", labels(job_type="scripted")] >= 0
        assert samples["effects_workers", labels(state="alive")] == 1
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.output


def attempts(outcome: str) -> frozenset[tuple[str, str]]:
    return labels(job_type="scripted", outcome=outcome)


def test_a_taken_port_is_reported_on_one_line(app: Effects, run: Run) -> None:
    with MetricsServer(app, WorkerMetrics(), port=0) as server:
        line = error_line(run("work", "--drain", "--metrics-port", server.port))
    assert f"127.0.0.1:{server.port} cannot be served" in line


# -- doctor --------------------------------------------------------------------------------------------


def found_by(app: Effects) -> dict[str, DoctorFinding]:
    """The worst finding of each check."""
    levels = ["ok", "warning", "error"]
    worst: dict[str, DoctorFinding] = {}
    for finding in examine(app):
        before = worst.get(finding.check)
        if before is None or levels.index(finding.level) > levels.index(before.level):
            worst[finding.check] = finding
    assert all((finding.advice is None) == (finding.level == "ok") for finding in worst.values())
    return worst


def unwell(app: Effects) -> dict[str, str]:
    return {check: finding.level for check, finding in found_by(app).items() if finding.level != "ok"}


@pytest.fixture
def healthy(app_factory: Any) -> Effects:
    app: Effects = app_factory(keys=f"k={KEY},digest={DIGEST}")
    schedule_definitions.register(app.store, list(app.schedules.values()))
    return app


def test_a_healthy_database(healthy: Effects) -> None:
    # The tests' server is set up for speed: fsync is off.
    expected = {"durability": "warning"} if healthy.store.is_postgresql else {}
    assert unwell(healthy) == expected
    assert {
        "schema",
        "indexes",
        "vacuum",
        "clock",
        "durability",
        "workers",
        "backlog",
        "job types",
        "schedules",
        "keys",
        "settings",
    } <= set(found_by(healthy))


def test_a_database_without_tables(empty_database_url: str, run: Run) -> None:
    answer = run("doctor", "--quiet", url=empty_database_url)
    assert answer.exit_code == 2
    assert "run `effects init`" in answer.out + answer.err  # a SQLite file that is not there is an error at once


def test_a_missing_file_is_not_created(run: Run, tmp_path: Path) -> None:
    assert "run `effects init`" in error_line(run("doctor", url=f"sqlite:///{tmp_path / 'new.db'}"))
    assert not (tmp_path / "new.db").exists()


def test_a_paused_key_with_waiting_jobs_is_named_among_many_without(
    healthy: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits behind a parent waits in its children's keys."""
    monkeypatch.setattr(queue_status, "SHOWN_MAX", 2)
    enqueue("scripted", {}, limit_key="z", effects=healthy)
    enqueue("scripted", {}, limit_key="child", effects=healthy)
    with healthy.store.begin() as connection:
        limit_rows.ensure_limit(healthy.store, connection, "child", parent="parent")
        for key in ("a", "b", "parent", "z"):
            limit_rows.pause(healthy.store, connection, key, actor="ann", create=True)
    findings = [finding.text for finding in examine(healthy) if finding.check == "limit keys"]
    waiting = [text.partition(" is paused")[0] for text in findings if text.endswith("; 1 job waits")]
    assert waiting == ["parent", "z"]
    assert [text.partition(" is paused")[0] for text in findings[:2]] == waiting


def test_a_missing_index(healthy: Effects) -> None:
    run_sql(healthy, "DROP INDEX ix_effects_jobs_ready")
    finding = found_by(healthy)["indexes"]
    assert finding.level == "error"
    assert "effects_jobs (queue, priority, run_at, id)" in finding.text


def test_a_missing_table(healthy: Effects) -> None:
    run_sql(healthy, "DROP TABLE effects_job_actions")
    finding = found_by(healthy)["tables"]
    assert (finding.level, finding.text) == ("error", "the table effects_job_actions is missing")


@pytest.mark.parametrize("index", ["ix_effects_jobs_ready", "effects_attempt_log_pkey", "effects_webhook_events_pkey"])
def test_an_index_that_is_not_valid(healthy: Effects, index: str) -> None:
    if not healthy.store.is_postgresql:
        pytest.skip("SQLite has no invalid indexes")
    run_sql(healthy, f"UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{index}'::regclass")
    finding = found_by(healthy)["indexes"]
    assert f"not valid: {index}" in finding.text
    assert finding.advice == f"REINDEX INDEX CONCURRENTLY {index};"


@pytest.mark.parametrize(("seconds", "level"), [(5, "warning"), (-5, "warning"), (600, "error"), (-600, "error")])
def test_clocks_that_differ(healthy: Effects, seconds: int, level: str) -> None:
    healthy.store.shift_clock(seconds)
    finding = found_by(healthy)["clock"]
    assert finding.level == level
    assert ("behind" if seconds > 0 else "ahead of") in finding.text


def test_an_old_snapshot_and_its_holder(healthy: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    if not healthy.store.is_postgresql:
        pytest.skip("SQLite removes what is dead when it writes")
    monkeypatch.setattr("effects.operate.tables.server_checks.SNAPSHOT_WARNING_SECONDS", 0.0)
    holder = create_engine(healthy.engine.url, connect_args={"application_name": "a long report"})
    with holder.connect() as connection:
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        connection.execute(text("SELECT count(*) FROM effects_jobs"))
        finding = next(candidate for candidate in examine(healthy) if candidate.check == "snapshot")
        assert finding.level == "warning"
        assert f"connection {pid}" in finding.text
        assert "a long report" in finding.text
        assert f"pg_terminate_backend({pid})" in str(finding.advice)
    holder.dispose()


def test_dead_rows_are_reported(healthy: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    if not healthy.store.is_postgresql:
        monkeypatch.setattr("effects.operate.tables.database_checks.FREE_PAGES_MIN_BYTES", 1)
        run_sql(healthy, "CREATE TABLE filler AS SELECT zeroblob(5000000) AS b")
        run_sql(healthy, "DROP TABLE filler")
        assert "are empty pages" in found_by(healthy)["vacuum"].text
        return
    monkeypatch.setattr("effects.operate.tables.database_checks.DEAD_TUPLES_MIN", 5)
    for _ in range(10):
        enqueue("scripted", {}, effects=healthy)
    run_sql(healthy, "DELETE FROM effects_jobs")
    healthy.engine.dispose()  # a session reports its statistics when it ends, if not before
    wait_until(lambda: found_by(healthy)["vacuum"].level == "warning")
    # The server's figures are estimates: a session that has just ended may have counted some rows twice, or not yet.
    assert re.match(r"effects_jobs: \d+ dead rows and \d live rows", found_by(healthy)["vacuum"].text)


def test_an_engine_with_prepared_statements(database_url: str, app_factory: Any) -> None:
    if not database_url.startswith("postgresql"):
        pytest.skip("SQLite has no pooler")
    engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
    app = app_factory(engine=engine, keys=f"k={KEY},digest={DIGEST}")
    assert found_by(app)["pooler"].level == "warning"


def test_a_sqlite_engine_of_the_apps_own(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}", connect_args={"timeout": 0.1})
    app = Effects(f"sqlite:///{tmp_path / 'own.db'}", engine=engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA journal_mode=DELETE")
    levels = unwell(app)
    assert (levels["journal"], levels["busy timeout"]) == ("warning", "warning")
    app.dispose()


def test_a_schedule_that_no_init_has_registered(healthy: Effects) -> None:
    nightly = Schedule("nightly", "scripted", cron="0 3 * * *")
    healthy.add_schedules(nightly)
    assert "schedules missing or different from the code: nightly" in found_by(healthy)["schedules"].text
    schedule_definitions.register(healthy.store, [nightly])
    assert found_by(healthy)["schedules"].level == "ok"
    schedule_definitions.pause(healthy.store, "nightly", actor="test")
    assert found_by(healthy)["schedules"].level == "ok"  # an operator's word, and no difference
    healthy.schedules["nightly"] = replace(nightly, cron="0 4 * * *")
    assert found_by(healthy)["schedules"].level == "warning"


def test_silent_workers_and_a_backlog(healthy: Effects) -> None:
    enqueue("scripted", {}, effects=healthy)
    ManualWorker(healthy, "quiet")
    healthy.store.shift_clock(1000)
    worst = found_by(healthy)
    assert "1 of 1 workers are silent" in worst["workers"].text
    assert (worst["backlog"].level, worst["backlog"].advice) == (
        "error", "start `effects work`, or see why `effects work --drain` no longer runs",
    )  # fmt: skip
    ManualWorker(healthy, "alive")
    assert found_by(healthy)["backlog"].level == "warning"


def test_live_jobs_of_unknown_types(healthy: Effects) -> None:
    run_sql(healthy, "INSERT INTO effects_jobs (job_type) VALUES ('third_party'), ('third_party')")
    assert found_by(healthy)["job types"].text.startswith("third_party: 2 jobs are live")


def test_keys(app_factory: Any, healthy: Effects) -> None:
    add_endpoint("https://partner.example/", effects=healthy)
    assert found_by(healthy)["keys"].level == "ok"
    newer = app_factory(keys=f"new={DIGEST},k={KEY},digest={DIGEST}")
    assert found_by(newer)["keys"].advice == "run `effects keys rotate`"
    without = app_factory(keys=f"new={DIGEST}")
    assert (found_by(without)["keys"].level, "k (1)" in found_by(without)["keys"].text) == ("error", True)
    assert [finding.text for finding in examine(without) if "digest" in finding.text]
    assert found_by(app_factory(keys=""))["keys"].level == "error"


def test_risky_settings_are_reported(app_factory: Any) -> None:
    app = app_factory(allow_private_addresses=True, log_level="DEBUG", keys=f"k={KEY},digest={DIGEST}")
    assert [finding.level for finding in examine(app) if finding.check == "settings"] == ["warning", "warning"]


def test_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run("doctor")
    assert answer.exit_code == 1
    assert "EFFECTS_KEYS is not set" in answer.out
    findings = run("doctor", "--json").json
    assert {"check", "level", "text", "advice", "about"} == set(findings[0])
    assert {finding["level"] for finding in run("doctor", "--quiet", "--json").json} == {"warning"}
    monkeypatch.setenv("EFFECTS_KEYS", f"k={KEY},digest={DIGEST}")
    run("doctor")


def test_the_exit_code_is_the_worst() -> None:
    ok, warning, error = (DoctorFinding("c", level, "t") for level in ("ok", "warning", "error"))  # type: ignore[arg-type]
    assert [exit_code(list(findings)) for findings in ([], [ok], [ok, warning], [error, warning])] == [0, 0, 1, 2]


# -- alerts --------------------------------------------------------------------------------------------


def test_without_alerts(run: Run) -> None:
    assert (run("alerts", "check").exit_code, run("alerts", "check").out) == (0, "no alerts firing\n")
    assert run("alerts", "list").out == "no alerts\n"
    assert run("alerts", "check", "--json").json == []


@pytest.mark.slow
def test_an_apps_alerts(app: Effects, process: Run) -> None:
    app_option = ("--app", "tests.cli.watched_app:app", "alerts")
    assert process(*app_option, "check").exit_code == 0
    enqueue("scripted", {}, effects=app)
    manual_worker = ManualWorker(app)
    manual_worker.settle((manual_worker.claim_one(), Refused("no")))
    fired = process(*app_option, "check", "--json", cwd=ROOT)
    assert fired.exit_code == 1
    summary = (
        "1 jobs died within 3,600 s: scripted refused (1); see `effects --app tests.cli.watched_app:app dead list`"
    )
    assert [(firing["alert"], firing["summary"]) for firing in fired.json] == [("dead", summary)]
    listed = process(*app_option, "list")
    assert "DeadLetters(more_than=0" in listed.out
    assert "yes" in listed.out


def test_a_backlog_of_failed_jobs_is_reported_by_cause(healthy: Effects) -> None:
    """Where no worker runs between two drains, `start effects work` is the wrong cure."""
    enqueue("scripted", {}, effects=healthy)
    worker = ManualWorker(healthy, "quiet")
    worker.settle((worker.claim_one(), Retry("no connection to 127.0.0.1:1", code="connect_failed")))
    healthy.store.shift_clock(1000)
    backlog = found_by(healthy)["backlog"]
    assert "1 failed with connect_failed (no connection to 127.0.0.1:1)" in backlog.text
    assert str(backlog.advice).startswith("mend that cause (`effects jobs list --code connect_failed`)")
