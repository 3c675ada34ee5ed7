"""`examples/monitoring`: each rule fires on what it is for, as `effects metrics` prints it, and on nothing else."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

from effects import Effects, Pause, Refused, Unknown, enqueue
from effects.cli import bulk
from effects.kit.exit_codes import ExitCode
from effects.operate.metrics import WorkerMetrics, database_families
from effects.store.workers import Activity, end, heartbeat
from tests.cli.conftest import Run
from tests.house.source import ROOT
from tests.support.manual_workers import ManualWorker
from tests.support.needs import program
from tests.support.runbooks import Operator, blocks, sections
from tests.support.scripted import Scripted
from tests.support.waiting import wait_until

MONITORING = ROOT / "examples" / "monitoring"
RULES = yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"][0]["rules"]
NAMES = [rule["alert"] for rule in RULES]
WORKING = Activity(claimed=1.0, settled=1.0, fired=1.0, oldest_unsettled_seconds=0.0)

Case: TypeAlias = Callable[[Operator], object]


def settle_one(operator: Operator, outcome: Any, **options: Any) -> None:
    app = operator.app()
    operator.words["ID"] = enqueue("scripted", {}, effects=app, **options).job_id
    worker = ManualWorker(app)
    worker.settle((worker.claim_one(), outcome))
    heartbeat(app.store, worker.name, WORKING)


def no_worker(operator: Operator) -> None:
    enqueue("scripted", {}, effects=operator.app())


def idle(operator: Operator) -> None:
    """A process that stands in for one whose threads stand still while its heartbeat goes on."""
    process = operator.stack.enter_context(subprocess.Popen(["sleep", "1000"]))
    operator.stack.callback(process.kill)
    app = operator.app()
    heartbeat(app.store, ManualWorker(app).name, Activity(200.0, 1.0, 1.0, 0.0))
    operator.words["PID"] = process.pid


def silent(operator: Operator) -> None:
    ManualWorker(operator.app())
    operator.clock_seconds = 600


def failed(operator: Operator) -> None:
    app = operator.app()
    end(app.store, ManualWorker(app, "w1").name, ExitCode.PART_FAILED, "settler stalled")
    operator.words["ID"] = "w1"


def overdue(operator: Operator) -> None:
    enqueue("scripted", {}, effects=operator.app())
    operator.clock_seconds = 700
    heartbeat(operator.app().store, ManualWorker(operator.app()).name, WORKING)
    operator.words["QUEUE"] = "default"


def unwritten(operator: Operator) -> None:
    app = operator.app()
    heartbeat(app.store, ManualWorker(app).name, Activity(1.0, 1.0, 1.0, 90.0))
    operator.mended_elsewhere = lambda: heartbeat(app.store, "manual", WORKING)


def queue_paused(operator: Operator) -> None:
    operator.command("queues", "pause", "default", "--for", "9h")
    operator.words["QUEUE"] = "default"


def limit_paused(operator: Operator) -> None:
    settle_one(operator, Pause(9000, "down"), limit_key="k")
    operator.words["KEY"] = "k"


def bulk_stopped(operator: Operator) -> None:
    for _ in range(3):
        settle_one(operator, Refused("no"))
    operator.command("resolve", "--all", "--as", "give-up", "--yes", "--reason", "a test")
    operator.command("cancel", 4)
    operator.words |= {"ID": 4, "BULK": 1}


def died(operator: Operator) -> None:
    settle_one(operator, Refused("no"))


def unknown(operator: Operator) -> None:
    settle_one(operator, Unknown("no reply"), on_unknown="hold")


# What provokes it; each block of its section ends it.
PROVOKED: dict[str, Case] = {
    "EffectsMetricsMissing": lambda operator: None,
    "EffectsNoWorker": no_worker,
    "EffectsWorkerIdle": idle,
    "EffectsWorkerSilent": silent,
    "EffectsWorkerFailed": failed,
    "EffectsJobsOverdue": overdue,
    "EffectsJobsDied": died,
    "EffectsUnknownOutcomes": unknown,
    "EffectsOutcomesUnwritten": unwritten,
    "EffectsQueuePaused": queue_paused,
    "EffectsLimitsPaused": limit_paused,
    "EffectsBulkStopped": bulk_stopped,
}
SECTIONS = sections("alerts.md")
BLOCKS = [(name, number) for name in NAMES for number in range(len(blocks(SECTIONS[name])))]


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


@pytest.mark.parametrize(("name", "number"), BLOCKS)
@pytest.mark.slow
def test_a_rule_fires_on_what_it_is_for_and_what_its_section_says_to_type_ends_it(
    name: str, number: int, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "AT_ONCE", 2)
    with ExitStack() as stack:
        operator = Operator(database_url, tmp_path, stack, {}, options={"job_types": [Scripted()]})
        PROVOKED[name](operator)
        metrics = "" if name == "EffectsMetricsMissing" else operator.command("metrics").out
        assert name in firing(tmp_path, metrics)
        operator.type(*blocks(SECTIONS[name])[number])
        operator.mended_elsewhere()
        wait_until(lambda: name not in firing(tmp_path, operator.command("metrics").out))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_names_its_section_and_that_names_commands(rule: Any) -> None:
    name = rule["alert"]
    assert rule["annotations"]["runbook"] == f"docs/alerts.md#{name.lower()}"
    assert blocks(SECTIONS[name])


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
