"""`effects schedules`, and what `effects init` does with those of the app's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects import Effects
from tests.cli.conftest import Run, effects
from tests.support.commands import error_line
from tests.support.manual_workers import row, rows

ADD = ("schedules", "add", "nightly", "--type", "effects.prune", "--cron", "0 3 * * *")


def test_add_list_pause_resume(app: Effects, run: Run) -> None:
    assert run("schedules", "list").out == "no schedules\n"
    assert "next slot" in run(*ADD, "--zone", "Europe/Berlin").out
    [listed] = run("schedules", "list", "--json").json
    assert (listed["name"], listed["cron"], listed["zone"], listed["state"]) == (
        "nightly",
        "0 3 * * *",
        "Europe/Berlin",
        "active",
    )
    assert listed["next_slot"].endswith("Z")

    assert run("schedules", "pause", "nightly", "--reason", "too loud").out == "schedule nightly paused\n"
    [listed] = run("schedules", "list", "--json").json
    assert (listed["state"], listed["next_slot"]) == ("paused", None)
    assert listed["paused_by"].startswith("cli:")
    assert listed["paused_by"].endswith(": too loud")
    assert "too loud" in run("schedules", "list").out
    assert run("schedules", "resume", "nightly", "--json").json == {"name": "nightly", "result": "active"}
    assert run("schedules", "list", "--json").json[0]["state"] == "active"


def test_every_option_is_stored(app: Effects, run: Run) -> None:
    options = (
        "--payload", '{"day": "{slot_date}"}', "--key", "prune:{slot_date}", "--catch-up", "all", "--catch-up-max", 7,
        "--overlap", "queue", "--max-attempts", 3,
    )  # fmt: skip
    assert run(*ADD, *options, "--json").json["result"] == "added"
    stored = row(app, "job_definitions")
    names = ("key", "catch_up", "catch_up_max", "overlap", "max_attempts")
    assert [stored[name] for name in names] == ["prune:{slot_date}", "all", 7, "queue", 3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--cron", "0 3 * *"), "give five fields"),
        (("--zone", "Mars/Olympus"), "no time zone 'Mars/Olympus'"),
        (("--type", "nothing"), "no job type 'nothing' is registered"),
        (("--payload", "[1]"), "--payload must be a JSON object"),
        (("--payload", "{"), "--payload is not JSON"),
        (("--payload", "[" * 100_000), "--payload is nested too deeply"),
        (("--key", "always"), "must name its slot"),
        (("--catch-up", "all"), "overlap 'skip' drops"),
        (("--type", "webhook.deliver"), "webhook.deliver: the payload is not valid"),
    ],
)
def test_a_wrong_schedule_is_reported_and_nothing_is_added(
    app: Effects, run: Run, options: tuple[str, ...], says: str
) -> None:
    assert says in error_line(run(*ADD, *options))
    assert rows(app, "job_definitions") == []


def test_a_name_that_is_taken_or_unknown(app: Effects, run: Run) -> None:
    run(*ADD)
    assert "there is a schedule 'nightly' already" in error_line(run(*ADD))
    for command in ("pause", "resume", "run"):
        assert "no schedule 'daily' (known: nightly)" in error_line(run("schedules", command, "daily"))


def test_run_makes_the_job_of_a_slot_once(app: Effects, run: Run) -> None:
    run(*ADD, "--key", "prune:{slot_date}")
    slot = ("--slot", "2026-01-14T03:00+00:00")
    fired = run("schedules", "run", "nightly", *slot, "--json").json
    assert (fired["outcome"], fired["slot"]) == ("enqueued", "2026-01-14T03:00:00Z")
    assert row(app, "jobs")["idempotency_key"] == "prune:2026-01-14"
    assert "has run already" in error_line(run("schedules", "run", "nightly", *slot))
    repeated = run("schedules", "run", "nightly", "--slot", "2026-01-14T04:00")
    assert repeated.out == f"schedule nightly, slot 2026-01-14 04:00:00Z: job {fired['job_id']} " \
        "(its key already exists: nothing new runs)\n"  # fmt: skip
    assert "is not a time; give one such as" in error_line(run("schedules", "run", "nightly", "--slot", "yesterday"))
    assert len(rows(app, "jobs")) == 1
    assert run("schedules", "run", "nightly").exit_code == 0
    assert len(rows(app, "jobs")) == 2


APP = """
from effects import Effects, JobType, Schedule

class Tidy(JobType[dict]):
    name = "tidy.up"
    def perform(self, payload, attempt):
        print("tidied", payload["day"])

app = Effects(job_types=[Tidy()], schedules=[{schedules}])
"""
ONE = 'Schedule("{name}", "tidy.up", {{"day": "{{slot_date}}"}}, "0 3 * * *", "UTC", key="{name}:{{slot_date}}")'


def deploy(folder: Path, *names: str) -> None:
    schedules = ", ".join(ONE.format(name=name) for name in names)
    (folder / "deployed.py").write_text(APP.replace("{schedules}", schedules))


@pytest.mark.slow
def test_a_deploy_registers_changes_and_stops(process: Run, database_url: str, tmp_path: Path) -> None:
    command = ("--app", "deployed:app", "init", "--json")
    deploy(tmp_path, "a", "b")
    first = process(*command, cwd=tmp_path)
    assert first.json["schedules"] == {"added": ["effects.prune", "a", "b"], "changed": [], "retired": []}
    assert effects("--database-url", database_url, "schedules", "pause", "a").exit_code == 0

    deploy(tmp_path, "a")
    answer = process("--app", "deployed:app", "init", cwd=tmp_path)
    assert "schedules removed from the app's code, stopped: b" in answer.out
    listed = effects("--database-url", database_url, "schedules", "list", "--json").json
    assert {schedule["name"]: schedule["state"] for schedule in listed} == {
        "a": "paused",
        "b": "retired",
        "effects.prune": "active",
    }

    bare = effects("--database-url", database_url, "init", "--json").json  # knows nothing of the app's
    assert bare["schedules"] == {"added": [], "changed": [], "retired": []}


@pytest.mark.slow
def test_a_manual_run_is_followed_by_a_workers(process: Run, app: Effects, tmp_path: Path) -> None:
    deploy(tmp_path, "a")
    process("--app", "deployed:app", "init", cwd=tmp_path)
    process("--app", "deployed:app", "schedules", "run", "a", "--slot", "2026-01-14T02:00", cwd=tmp_path)
    done = process("--app", "deployed:app", "work", "--drain", cwd=tmp_path)
    assert (done.exit_code, done.out) == (0, "tidied 2026-01-14\n"), done.err
    assert row(app, "job_history", "job_type = 'tidy.up'")["idempotency_key"] == "a:2026-01-14"


@pytest.mark.slow
def test_init_refuses_a_schedule_whose_job_would_be_refused(process: Run, app: Effects, tmp_path: Path) -> None:
    nightly = 'Schedule("nightly", "report.request", {"report": "sales"}, "0 3 * * *")'
    (tmp_path / "deployed.py").write_text(APP.replace("{schedules}", nightly))
    answer = process("--app", "deployed:app", "init", cwd=tmp_path)
    assert answer.exit_code != 0
    assert "schedule 'nightly': no report 'sales' is known" in answer.err
    assert rows(app, "job_definitions") == []
