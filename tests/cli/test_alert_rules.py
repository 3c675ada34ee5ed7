"""`examples/monitoring`: each rule fires on what it is for, as `effects metrics` prints it, and on nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from effects import Effects, Pause, Refused, Unknown, enqueue
from effects.cli import many
from effects.exit_codes import ExitCode
from effects.observation.metrics import WorkerMetrics, database_families
from effects.store.workers.registration import Activity, end, heartbeat
from tests.cli.conftest import Run
from tests.conftest import AppFactory
from tests.house.source import ROOT
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.needs import program
from tests.support.scripted import Scripted

MONITORING = ROOT / "examples" / "monitoring"
PAGES = ROOT / "docs" / "alerts.md"
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]
WORKING = Activity(claimed=1.0, settled=1.0, fired=1.0, oldest_unsettled_seconds=0.0)

Case: TypeAlias = Callable[[Effects, Run], object]


def settle_one(app: Effects, outcome: Any, **options: Any) -> None:
    enqueue("scripted", {}, effects=app, **options)
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), outcome))
    heartbeat(app.store, worker.name, WORKING)


def no_worker(app: Effects, run: Run) -> None:
    enqueue("scripted", {}, effects=app)


def idle(app: Effects, run: Run) -> None:
    heartbeat(app.store, ManualWorker(app).name, Activity(200.0, 1.0, 1.0, 0.0))


def silent(app: Effects, run: Run) -> None:
    ManualWorker(app)
    run_sql(app, f"UPDATE {app.store.sql.workers} SET seen_at = {app.store.sql.after('-600')}")


def failed(app: Effects, run: Run) -> None:
    end(app.store, ManualWorker(app).name, ExitCode.PART_FAILED, "settler stalled")


def overdue(app: Effects, run: Run) -> None:
    enqueue("scripted", {}, effects=app)
    run_sql(app, f"UPDATE {app.store.sql.jobs} SET run_at = {app.store.sql.after('-700')}")
    heartbeat(app.store, ManualWorker(app).name, WORKING)


def unwritten(app: Effects, run: Run) -> None:
    heartbeat(app.store, ManualWorker(app).name, Activity(1.0, 1.0, 1.0, 90.0))


def bulk_stopped(app: Effects, run: Run) -> None:
    for _ in range(3):
        settle_one(app, Refused("no"))
    run("dead", "ignore", "--all", "--yes", "--reason", "a test")
    run("jobs", "cancel", 4)


PROVOKED: dict[str, tuple[Case, str]] = {
    "EffectsMetricsMissing": (lambda app, run: None, ""),
    "EffectsNoWorker": (no_worker, ""),
    "EffectsWorkerIdle": (idle, ""),
    "EffectsWorkerSilent": (silent, ""),
    "EffectsWorkerFailed": (failed, ""),
    "EffectsJobsOverdue": (overdue, ""),
    "EffectsJobsDied": (lambda app, run: settle_one(app, Refused("no")), ""),
    "EffectsUnknownOutcomes": (
        lambda app, run: settle_one(app, Unknown("no reply"), on_unknown="hold"),
        "dead resolve 1 --as mark-done --reason asked",
    ),
    "EffectsOutcomesUnwritten": (unwritten, ""),
    "EffectsQueuePaused": (lambda app, run: run("queues", "pause", "default", "--for", "9h"), "queues resume default"),
    "EffectsLimitsPaused": (lambda app, run: settle_one(app, Pause(9000, "down"), limit_key="k"), "limits resume k"),
    "EffectsBulkStopped": (bulk_stopped, "bulk cancel 1"),
}


def series(exposition: str) -> list[dict[str, str]]:
    lines = [line for line in exposition.splitlines() if not line.startswith("#")]
    return [{"series": line.rpartition(" ")[0], "values": f"{line.rpartition(' ')[2]}x100"} for line in lines]


def firing(folder: Path, exposition: str) -> set[str]:
    """What promtool evaluates: the names of the alerts that fire after 90 minutes of these metrics."""
    expected: list[dict[str, Any]] = []
    test = {
        "interval": "1m",
        "input_series": series(exposition),
        "promql_expr_test": [
            {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "90m", "exp_samples": expected}
        ],
    }
    (folder / "rules.yml").write_text((MONITORING / "rules.yml").read_text())
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [test]}))
    ran = subprocess.run(
        [program("promtool"), "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    output = ran.stdout + ran.stderr
    names = set(re.findall(r'alertname="(\w+)"', output))
    assert bool(names) == bool(ran.returncode), output
    return names


def test_every_rule_has_a_provocation() -> None:
    assert sorted(PROVOKED) == sorted(NAMES)


def test_healthy_metrics_fire_none(app: Effects, run: Run, tmp_path: Path) -> None:
    enqueue("scripted", {}, effects=app)
    worker = ManualWorker(app)
    heartbeat(app.store, worker.name, WORKING)
    assert firing(tmp_path, run("metrics").out) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_fires_on_what_it_is_for_and_its_command_mends_it(
    name: str, app_factory: AppFactory, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many.bulk, "INLINE_MAX", 2)
    app = app_factory(job_types=[Scripted()])
    provoke, mend = PROVOKED[name]
    provoke(app, run)
    metrics = "" if name == "EffectsMetricsMissing" else run("metrics").out
    assert name in firing(tmp_path, metrics)
    if mend:
        assert f"`effects {' '.join(mend.split()[:2])} " in section(name)
        assert run(*mend.split()).exit_code == 0
        assert name not in firing(tmp_path, run("metrics").out)


def section(name: str) -> str:
    [text] = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGES.read_text(), re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_its_section_and_that_names_commands(rule: Any) -> None:
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
    assert "`effects " in section(name)


def test_rules_and_dashboard_ask_for_metrics_that_there_are(app: Effects) -> None:
    families = [*database_families(app), *WorkerMetrics().families()]
    names = {f"{family.name}{suffix}" for family in families for suffix in ("", "_sum", "_count")}
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for text in expressions for name in re.findall(r"effects_\w+", text)}
    assert used - names == set()
    assert {family.name for family in families if family.kind == "gauge"} - {"effects_build_info"} <= used


def test_promtool_accepts_rules_configuration_metrics_and_each_panel(app: Effects, run: Run, tmp_path: Path) -> None:
    promtool = program("promtool")
    checked = subprocess.run(
        [promtool, "check", "config", "prometheus.yml"], cwd=MONITORING, capture_output=True, timeout=60, check=False
    )
    assert checked.returncode == 0, checked.stderr
    linted = subprocess.run(
        [promtool, "check", "metrics"], input=run("metrics").out.encode(), capture_output=True, timeout=60, check=False
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    rules = [{"record": f"panel:{number}", "expr": target["expr"]} for number, target in enumerate(targets)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    parsed = subprocess.run(
        [promtool, "check", "rules", "panels.yml"], cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert parsed.returncode == 0, parsed.stdout
