"""`effects reports …` as a person and a script use it."""

from __future__ import annotations

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects.worker import Worker
from tests.cli.conftest import Answer
from tests.cli.conftest import effects as command
from tests.reports.conftest import ReportWorker
from tests.reports.shop import csv_rows, fill
from tests.support.manual_workers import run_sql
from tests.support.running import running


@pytest.fixture
def shop(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Effects]:
    """The app of `tests.reports.crash_app`, created on the test's database again for every command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFFECTS_DATABASE_URL", database_url)
    monkeypatch.setenv("EFFECTS_STORAGE_URL", str(tmp_path / "files"))
    monkeypatch.delitem(sys.modules, "tests.reports.crash_app", raising=False)
    from tests.reports.crash_app import app  # noqa: PLC0415 - it reads the environment

    fill(app, 250)
    yield app
    app.dispose()


def reports(*arguments: object) -> Answer:
    return of_app("reports", *arguments)


def of_app(*arguments: object) -> Answer:
    sys.modules.pop("tests.reports.crash_app", None)  # what a command was given is closed at its end
    return command("--app", "tests.reports.crash_app:app", *arguments)


def finish_report(app: Effects, *arguments: object) -> Any:
    """A report, requested and made; what `show` says of it."""
    run_id = reports("request", "orders", *arguments).out.strip()
    Worker(app).drain(60)
    return reports("show", run_id, "--json").json


@pytest.mark.slow
def test_from_request_to_download(shop: Effects, tmp_path: Path) -> None:
    status = finish_report(shop, "--param", "above=30", "--format", "csv.gz", "--key", "k")
    assert (status["state"], status["rows"], status["filename"]) == ("ready", 240, "k.csv.gz")
    assert status["progress"]["total_kind"] == "exact"
    assert "params" not in status
    answer = reports("download", status["run_id"])
    assert answer.out == f"k.csv.gz: {status['bytes']:,} bytes\n"
    assert (tmp_path / "k.csv.gz").stat().st_size == status["bytes"]
    assert stat.S_IMODE((tmp_path / "k.csv.gz").stat().st_mode) == 0o600
    assert reports("download", status["run_id"], "--to", tmp_path / "other").exit_code == 0
    assert (tmp_path / "other").read_bytes() == (tmp_path / "k.csv.gz").read_bytes()
    listed = reports("list")
    assert listed.out.splitlines()[1].split()[:6] == [status["run_id"], "orders", "k", "ready", "100%", "240"]
    assert reports("list", "--status", "failed").out == "no reports\n"


@pytest.mark.slow
def test_an_operator_makes_a_link_which_the_audit_log_does_not_hold(
    shop: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", f"k={generate_key()}")
    run_id = finish_report(shop)["run_id"]
    terms = ("--for", "1h", "--uses", "2", "--principal", "ann", "--reason", "she asked again")
    url = reports("link", run_id, "--at", "https://shop.example/files", *terms).out.strip()
    assert url.startswith(f"https://shop.example/files/{run_id}.")
    [entry] = [entry for entry in command("log", "--json").json if entry["reason"] == "she asked again"]
    assert (entry["action"], entry["subject"]) == ("link", run_id)
    assert entry["detail"] == {"seconds": 3600.0, "uses": 2, "personal": True}
    assert reports("link", run_id, "--at", "https://shop.example", "--for", "8d").exit_code == 2


def test_why_names_the_run_by_a_command_that_works(shop: Effects) -> None:
    status = finish_report(shop, "--key", "orders:2026-11-23")
    for name in ("orders:2026-11-23", status["run_id"]):
        sys.modules.pop("tests.reports.crash_app", None)
        answer = command("--app", "tests.reports.crash_app:app", "why", name)
        [run_id] = re.findall(r"`effects --app tests.reports.crash_app:app reports show (\S+)`", answer.out)
        assert reports("show", run_id).exit_code == 0
        assert [run_id, status["filename"]] == re.findall(r"^(?:run|file) +(\S+)$", answer.out, re.MULTILINE)


def test_a_download_stays_in_this_folder(shop: Effects, tmp_path: Path) -> None:
    """Whatever file name the row has, which anyone may have written."""
    run_id = finish_report(shop, "--params", '{"above": 700}')["run_id"]
    run_sql(shop, "UPDATE effects_generated_reports SET filename = :name", name=str(tmp_path.parent / "taken.csv"))
    assert reports("download", run_id).out.startswith("taken.csv: ")
    assert (tmp_path / "taken.csv").exists()


def test_download_to_standard_output(shop: Effects) -> None:
    status = finish_report(shop, "--params", '{"above": 700}')
    assert len(csv_rows(reports("download", status["run_id"], "--to", "-").out.encode())) == 1 + 250 - 233


@pytest.mark.slow
def test_wait_until_it_is_ready(shop: Effects) -> None:
    with running(Worker(shop)):
        answer = reports("request", "orders", "--wait", "--json")
    assert answer.exit_code == 0
    assert (answer.json["state"], answer.json["progress"]["fraction"]) == ("ready", 1.0)


@pytest.mark.slow
def test_wait_without_a_worker_reports_it_and_ends_in_time(shop: Effects) -> None:
    answer = reports("request", "orders", "--wait", "--timeout", "1s")
    assert answer.exit_code == 3
    assert "status       requested" in answer.out
    waiting, ended = answer.err.splitlines()
    run_id = waiting.partition(":")[0]
    assert "waits        no worker is running: start one with `" in reports("show", run_id).out
    assert (
        ": no worker is running: start one with `effects --app tests.reports.crash_app:app work`; waiting up to"
        in waiting
    )
    assert (
        ended == f"{run_id} is still requested: see `effects --app tests.reports.crash_app:app reports show {run_id}`"
    )


def test_a_step_that_is_tried_again_is_shown(shop: Effects) -> None:
    run_id = reports("request", "orders").out.strip()
    failing = "UPDATE effects_jobs SET status = 'failed', error_code = 'disk_full', last_error = 'their disk is full'"
    run_sql(shop, f"{failing} WHERE job_type = 'report.plan'")
    waits = reports("show", run_id, "--json").json["waits"]
    step = (
        r"job (\d+) is tried again after: their disk is full \(`effects --app tests.reports.crash_app:app why \1`\); "
        "no worker is running: start one with"
    )
    assert re.match(step, waits)


@pytest.mark.slow
def test_wait_until_it_has_failed(shop: Effects) -> None:
    Path("files").write_text("in the way")
    with running(Worker(shop)):
        answer = reports("request", "orders", "--wait")
    assert answer.exit_code == 1
    assert "status       failed" in answer.out
    assert "failed" in answer.out


@pytest.mark.slow
def test_cancel_and_resume(shop: Effects) -> None:
    run_id = reports("request", "orders").out.strip()
    ReportWorker(shop).do_next()
    assert of_app("cancel", run_id).out == f"{run_id} cancelled\n"
    refusal = of_app("cancel", run_id)
    assert (refusal.exit_code, refusal.err) == (
        1, f"error: run {run_id} is cancelled: only a run that is under way can be cancelled\n",
    )  # fmt: skip
    resumed = f"{run_id} running: what is missing is made, finished chunks are kept"
    assert of_app("retry", run_id).out == f"{resumed}\n"
    Worker(shop).drain(60)
    assert reports("show", run_id, "--json").json["state"] == "ready"


def test_a_key_of_an_existing_run(shop: Effects) -> None:
    first = reports("request", "orders", "--key", "k").out.strip()
    assert reports("request", "orders", "--key", "k").out == f"{first} (it was known, and is requested)\n"


def test_explain(shop: Effects) -> None:
    explanation = reports("explain", "orders", "--json").json
    assert (explanation["key"], explanation["chunks_estimated"] is None) == (
        "id (proved)",
        not shop.store.is_postgresql,
    )
    answer = reports("explain", "orders")
    assert answer.exit_code == 0
    assert "bounds            half-open ranges of the key, 100 rows each" in answer.out


def test_explain_shows_what_would_refuse_it(shop: Effects) -> None:
    Path("files").write_text("in the way")
    refused = reports("explain", "orders")
    assert refused.exit_code == 1
    assert "refusals" in refused.out


@pytest.mark.slow
def test_repair(shop: Effects) -> None:
    assert reports("repair").out == "no runs to repair\n"
    counts = ("restarted", "failed", "chunks", "closed", "copies", "unrepaired")
    assert reports("repair", "--json").json == dict.fromkeys(counts, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("request", "nope"), "no report 'nope' is known"),
        (("request", "orders", "--param", "above"), "--param is 'above'; give NAME=VALUE"),
        (("request", "orders", "--params", "[]"), "--params must be a JSON object"),
        (("request", "orders", "--params", "{"), "--params is not JSON"),
        (("request", "orders", "--params", "[" * 100_000), "--params is nested too deeply"),
        (("request", "orders", "--params", "{}", "--param", "a=1"), "give --param or --params, not both"),
        (("show", "rep_1"), "there is no run 'rep_1' of a report"),
        (("download", "rep_1"), "there is no run 'rep_1' of a report"),
    ],
)
def test_an_error_is_one_line_that_names_the_remedy(arguments: tuple[str, ...], message: str, shop: Effects) -> None:
    answer = reports(*arguments)
    assert answer.exit_code == 2
    assert answer.err.startswith("error: ")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_without_the_app_the_error_is_that_no_report_is_known(shop: Effects) -> None:
    assert "no report 'orders' is known (known: none: give yours to" in command("reports", "request", "orders").err


def test_a_status_of_a_run_under_way_that_no_run_has_names_the_others(shop: Effects) -> None:
    reports("request", "orders")
    answer = reports("list", "--status", "running")
    assert "a run under way may also be requested, planning, assembling" in answer.out + answer.err
    assert reports("list", "--status", "requested").err == ""
    assert "under way" not in reports("list", "--status", "failed").err


def test_subscriptions_are_added_listed_paused_and_removed(
    shop: Effects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    template = tmp_path / "emails" / "ready"
    template.mkdir(parents=True)
    for part in ("subject.txt", "body.txt"):
        (template / part).write_text("{{ link }}")
    for name, value in {
        "EFFECTS_KEYS": f"k={generate_key()}", "EFFECTS_EMAIL_TEMPLATES": str(tmp_path / "emails"),
        "EFFECTS_EMAIL_FROM": "shop@example.com", "EFFECTS_SMTP_URL": f"maildir:{tmp_path / 'mail'}",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    where = ("--template", "ready", "--cron", "0 2 * * *", "--link-to", "https://shop.example/files")
    added = reports("subscriptions", "add", "orders", "--params", '{"above": 3}', "--to", "ann@example.com", *where)
    assert added.exit_code == 0, added.err
    row = added.out.strip()
    [listed] = reports("subscriptions", "list", "--to", "ann@example.com", "--json").json
    assert (listed["id"], listed["report"], listed["paused"]) == (row, "orders", False)
    assert "ann@" not in reports("subscriptions", "list", "--json").out
    assert reports("subscriptions", "pause", row, "--reason", "on leave").out == f"{row} paused\n"
    assert reports("subscriptions", "pause", row).out == f"{row} was paused\n"
    assert "paused" in reports("subscriptions", "list").out
    reports("subscriptions", "add", "orders", "--to", "bob@example.com", *where)
    assert "There are more than 1: use --limit." in reports("subscriptions", "list", "--limit", 1).err
    reports("subscriptions", "remove", reports("subscriptions", "list", "--json").json[1]["id"])
    assert reports("subscriptions", "resume", row).out == f"{row} resumed\n"
    monkeypatch.setenv("EFFECTS_KEYS", f"n={generate_key()}")
    assert "active, does not open" in reports("subscriptions", "list").out
    assert reports("subscriptions", "remove", row).out == f"{row} removed\n"
    assert reports("subscriptions", "list").out == "no subscriptions\n"
    assert reports("subscriptions", "remove", row).exit_code == 2
    assert reports("subscriptions", "add", "orders", "--params", "{", "--to", "a@example.com", *where).exit_code == 2


def test_buckets_are_added_listed_rotated_and_removed(
    shop: Effects, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EFFECTS_KEYS", f"k={generate_key()}")
    file = tmp_path / "acme.json"
    file.write_text('{"access_key_id": "AKIA", "secret_access_key": "of the customer"}')
    url = "s3://acme-files/from-shop?region=eu-central-1"
    assert reports("buckets", "list").out == "no buckets\n"
    assert reports("buckets", "add", "acme", url, "--credentials", file).out == "acme added\n"
    [listed] = reports("buckets", "list", "--json").json
    assert (listed["name"], listed["url"]) == ("acme", url)
    assert reports("buckets", "rotate", "acme", "--credentials", file, "--reason", "leaked").out == "acme rotated\n"
    again = reports("buckets", "add", "acme", url, "--credentials", file)
    assert (again.exit_code, again.err.count("\n")) == (2, 1)
    inside = reports("buckets", "add", "b", "s3://files?endpoint=https://10.0.0.1", "--credentials", file)
    assert "EFFECTS_BUCKET_PRIVATE_NETWORKS allows private networks" in inside.err
    file.write_text('{"access_key_id": "AKIA", "secret": "of the customer"}')
    wrong = reports("buckets", "rotate", "acme", "--credentials", file)
    assert wrong.exit_code == 2
    assert "of the customer" not in wrong.out + wrong.err
    nightly = reports("subscriptions", "add", "orders", "--bucket", "acme", "--cron", "0 2 * * *")
    assert nightly.exit_code == 0, nightly.err
    [listed] = reports("subscriptions", "list", "--bucket", "acme", "--json").json
    assert (listed["id"], listed["bucket"], listed["template"]) == (nightly.out.strip(), "acme", None)
    unknown = reports("subscriptions", "add", "orders", "--bucket", "acne", "--cron", "0 2 * * *")
    assert (unknown.exit_code, unknown.err.count("\n")) == (2, 1)
    assert reports("subscriptions", "add", "orders", "--cron", "0 2 * * *").exit_code == 2
    gone = reports("buckets", "remove", "acme")
    assert gone.out == "acme removed; subscriptions that still deliver into it: 1\n"
    missing = reports("buckets", "remove", "acme")
    assert missing.exit_code == 2
    assert "reports buckets list" in missing.err
