"""What a schedule, an alert or a notice declares is checked before its job runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import Alert, ConfigurationError, DeadLetters, Effects, Schedule
from effects.keys.encryption import generate_key
from effects.operate.doctor import examine
from effects.store import schedules
from effects.worker import Worker
from effects_reports import Notify, ReportInvalid, report, request_report
from tests.conftest import AppFactory
from tests.support.manual_workers import rows
from tests.support.scripted import Scripted


@report("sales", consistency="single", formats=("csv", "xlsx"))
def sales(params: dict[str, Any]) -> sa.Select[Any]:
    return sa.select(sa.literal(params["night"]).label("night"))


@pytest.fixture
def shop_factory(app_factory: AppFactory, tmp_path: Path) -> AppFactory:
    def make(**options: Any) -> Effects:
        own: dict[str, Any] = {
            "reports": [sales],
            "templates": tmp_path / "emails",
            "storage_url": str(tmp_path / "files"),
        }
        own["keys"] = f"test={generate_key()},digest={generate_key()}"
        return app_factory(job_types=[Scripted()], **own, **options)

    (tmp_path / "emails").mkdir()
    return make


def nightly(payload: dict[str, Any], job_type: str = "report.request") -> Schedule:
    return Schedule("nightly", job_type, payload, "0 3 * * *")


EVENT = {"job_type": "webhook.compose", "payload": {"type": "a b"}}
WRONG = [
    ({"report": "rapport"}, "no report 'rapport' is known"),
    ({"report": "sales", "params": {"nigth": "{slot_date}"}}, "looks for the param 'night'"),
    ({"report": "sales", "params": {"night": "x"}, "format": "pdf"}, "no format 'pdf'"),
    (
        {"report": "sales", "params": {"night": "x"}, "notify": [EVENT]},
        "notify: type is 'a b'",
    ),
    (
        {
            "report": "sales", "params": {"night": "x"},
            "notify": [{"job_type": "email.compose", "payload": {"template": "none", "to": "a@shop.example"}}],
        },
        "notify: there is no template 'none'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "says"), WRONG)
def test_a_schedule_whose_job_would_be_refused_is_found_before_its_slot(
    shop_factory: AppFactory, payload: dict[str, Any], says: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = shop_factory(schedules=[nightly(payload)])
    with pytest.raises(ConfigurationError, match=f"schedule 'nightly': .*{says}"):
        app.job_types.check_declared(app.schedules["nightly"])
    schedules.register(app.store, list(app.schedules.values()))
    [finding] = [finding for finding in examine(app) if finding.check == "schedules" and finding.level == "error"]
    assert says in finding.text
    with caplog.at_level(logging.ERROR, "effects.schedules"):
        assert Worker(app).drain().finished
    [record] = [record for record in caplog.records if record.getMessage() == "schedule.invalid"]
    assert (record.__dict__["schedule"], says in record.__dict__["reason"]) == ("nightly", True)


def test_doctor_checks_what_an_operator_added(shop_factory: AppFactory) -> None:
    app = shop_factory()
    schedules.add(app.store, nightly(WRONG[0][0]), actor="ann")
    assert [finding.text for finding in examine(app) if finding.level == "error"] == [
        "schedule 'nightly': no report 'rapport' is known (known: sales)"
    ]


def test_a_correct_schedule_passes(shop_factory: AppFactory) -> None:
    notify = {"job_type": "webhook.compose", "payload": {"type": "sales.{state}", "data": {"rows": "{rows}"}}}
    payload = {"report": "sales", "params": {"night": "{slot_date}"}, "notify": [notify]}
    app = shop_factory(schedules=[nightly(payload)])
    app.job_types.check_declared(app.schedules["nightly"])
    assert [finding for finding in examine(app) if "nightly" in finding.text and finding.level == "error"] == []


def test_an_error_of_the_apps_own_code_names_its_place_and_no_value(shop_factory: AppFactory) -> None:
    app = shop_factory(schedules=[nightly({"report": "sales", "params": {"night": "{slot_date}"}, "format": "csv"})])
    definition = report("sales", consistency="single", formats=("csv",))(_raise)
    broken = app_with(app, definition)
    with pytest.raises(ConfigurationError, match=r"the check of its payload raised ValueError at .*_raise") as raised:
        broken.job_types.check_declared(app.schedules["nightly"])
    assert "rosebud" not in str(raised.value)


def _raise(params: dict[str, Any]) -> sa.Select[Any]:
    if params:
        raise ValueError("rosebud")
    return sa.select(sa.literal(1).label("n"))


def app_with(app: Effects, definition: Any) -> Effects:
    return Effects(settings=app.settings, engine=app.engine, reports=[definition])


def test_a_placeholder_that_nothing_fills_in_is_refused(shop_factory: AppFactory) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing fills in \{slot_day\} .*there are \{slot\}, \{slot_date\}"):
        shop_factory(schedules=[nightly({"name": "{slot_day}"}, "scripted")])
    with pytest.raises(ConfigurationError, match=r"alert 'dead': nothing fills in \{count\} .*\{summary\}"):
        shop_factory(alerts=[Alert("dead", DeadLetters(), "scripted", {"name": "{count}"})])
    app = shop_factory()
    notify = Notify(job_type="scripted", payload={"name": ["{download_url}"]})
    with pytest.raises(ReportInvalid, match=r"nothing fills in \{download_url\} .*\{run_id\}, .*\{error\}"):
        request_report("sales", {"night": "x"}, notify=notify, effects=app)
    assert rows(app, "report_runs") == []


def test_an_unknown_field_is_named_and_one_that_may_be_personal_is_not(shop_factory: AppFactory) -> None:
    app = shop_factory()
    for field, says in (("foramt", "there is no field `foramt`"), ("ann@shop.example", "a field is unknown")):
        with pytest.raises(ConfigurationError, match=f"the payload is not valid: {says}") as raised:
            app.add_schedules(nightly({"report": "sales", field: "csv"}))
        assert "ann@" not in str(raised.value)
