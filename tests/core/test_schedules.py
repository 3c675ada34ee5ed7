"""What a schedule declares: its checks, its placeholders, and which missed slots it wants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, select

from effects import ConfigurationError, Done, Effects, JobType, Schedule, Sensitive, enqueue, enqueue_many
from effects.model.registry import Registry
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.scripted import Scripted

SLOT = datetime(2026, 1, 14, 5, tzinfo=UTC)
DAILY: Any = {"cron": "0 6 * * *", "zone": "Europe/Berlin"}


def schedule(**options: Any) -> Schedule:
    return Schedule("daily", "scripted", **{**DAILY, **options})


def test_the_placeholders_stand_for_the_slot_by_the_schedules_own_clock() -> None:
    daily = schedule(
        payload={
            "day": "{slot_date}",
            "list": ["{previous_slot_date}", 3],
            "deep": {"at": "{slot}"},
            "other": "{name}",
        },
        key="sales_report:{slot_date}",
    )
    assert daily.payload_of(SLOT) == {
        "day": "2026-01-14",
        "list": ["2026-01-13", 3],
        "deep": {"at": "2026-01-14T06:00:00+01:00"},
        "other": "{name}",
    }
    assert daily.key_of(SLOT) == "sales_report:2026-01-14"


def test_the_date_is_that_of_the_zone() -> None:
    late = schedule(cron="0 8 * * *", zone="Asia/Tokyo", payload={"day": "{slot_date}"})
    assert late.payload_of(datetime(2026, 1, 13, 23, tzinfo=UTC)) == {"day": "2026-01-14"}


def test_the_previous_slot_is_the_schedules_not_the_calendars() -> None:
    weekly = schedule(cron="0 6 * * MON", payload={"from": "{previous_slot_date}", "to": "{slot_date}"})
    assert weekly.payload_of(datetime(2026, 1, 19, 5, tzinfo=UTC)) == {"from": "2026-01-12", "to": "2026-01-19"}


def test_months_and_the_slot_before_have_placeholders() -> None:
    monthly = schedule(cron="0 3 1 * *", payload={"of": "{previous_slot_month}", "in": "{slot_month} {previous_slot}"})
    first = datetime(2026, 1, 1, 2, tzinfo=UTC)
    assert monthly.payload_of(first) == {"of": "2025-12", "in": "2026-01 2025-12-01T03:00:00+01:00"}


def test_a_job_of_a_function_is_scheduled(app_factory: AppFactory) -> None:
    app = app_factory(job_types=[])

    @app.job("shop.label")
    def label(order: int, month: str = "") -> None: ...

    job = label.using(key="label:{slot_month}", max_attempts=3).job(order=3, month="{slot_month}")
    app.add_schedules(Schedule.job(job, **DAILY), Schedule.job(label.job(4), name="again", overlap="allow", **DAILY))
    declared = app.schedules["shop.label"]
    assert (declared.key_of(SLOT), declared.max_attempts, declared.zone) == ("label:2026-01", 3, "Europe/Berlin")
    assert declared.payload_of(SLOT) == {"order": 3, "month": "2026-01"}
    assert (app.schedules["again"].overlap, app.schedules["again"].payload) == ("allow", {"order": 4})
    with pytest.raises(ConfigurationError, match=r"schedule 'shop\.label': its job has queue; declare that with"):
        Schedule.job(label.using(queue="fast").job(3), **DAILY)


def test_the_pages_job_for_every_customer_goes_on_page_by_page(app_factory: AppFactory) -> None:
    app, customers = app_factory(job_types=[]), Table("customers", MetaData(), Column("id", Integer, primary_key=True))
    customers.create(app.engine)
    with app.engine.begin() as connection:
        connection.execute(insert(customers), [{"id": number} for number in range(1, 502)])
    written: list[tuple[int, str]] = []

    @app.job("shop.statement")
    def statement(customer: int, month: str) -> None:
        written.append((customer, month))

    page = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
    names = {"app": app, "customers": customers, "statement": statement, "select": select, "Connection": Connection}
    names |= {"Done": Done, "Schedule": Schedule, "enqueue_many": enqueue_many}
    exec(page.partition("```py\n")[2].partition("```")[0], names)
    enqueue("shop.statements", {"month": "2026-01"}, effects=app)
    for _ in range(3):
        Worker(app).drain()
        app.store.shift_clock(61)
    assert sorted(written) == [(number, "2026-01") for number in range(1, 502)]
    assert app.schedules["shop.statements"].payload_of(datetime(2026, 2, 1, 3, tzinfo=UTC)) == {"month": "2026-01"}
    customers.drop(app.engine)


def test_the_key_contains_the_slot_where_none_is_given() -> None:
    assert schedule().key_of(SLOT) == "schedule:daily:2026-01-14T05:00:00Z"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cron": "0 6 * *"}, "schedule 'daily': cron text"),
        ({"cron": ""}, "give five fields"),
        ({"zone": "Mars/Olympus"}, "schedule 'daily': there is no time zone"),
        ({"catch_up": "some"}, "catch_up is 'some'; give one of none, latest, all"),
        ({"overlap": "kill"}, "overlap is 'kill'; give one of allow, skip, queue"),
        ({"catch_up": "all"}, "overlap 'skip' drops"),
        ({"catch_up_max": 0}, "catch_up_max is 0; give 1 to 1000"),
        ({"catch_up_max": 1001}, "catch_up_max is 1001"),
        ({"max_attempts": 0}, "max_attempts is 0; give 1 to 1000"),
        ({"key": "sales_report"}, "must name its slot"),
        ({"key": "sales_report:{date}"}, "must name its slot"),
        ({"key": "{slot}" + "x" * 250}, "must have 1 to 255 printable"),
    ],
)
def test_a_wrong_option_names_the_schedule_and_what_to_give(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        schedule(**options)


@pytest.mark.parametrize("name", ["", "Daily", "a b", "x" * 101, "-x"])
def test_a_name_is_plain(name: str) -> None:
    with pytest.raises(ConfigurationError, match="give a name"):
        Schedule(name, "scripted", cron="0 6 * * *")


class Report(msgspec.Struct):
    day: str
    rows: int = 0


class ReportType(JobType[Report]):
    name = "report"
    payload = Report

    def perform(self, payload: Any, attempt: Any) -> None:
        """Nothing is to be done here."""


def test_the_job_type_and_the_payload_are_checked() -> None:
    types = Registry([ReportType()])
    types.check_schedule(Schedule("r", "report", {"day": "{slot_date}"}, "0 6 * * *"))
    with pytest.raises(
        ConfigurationError, match=r"schedule 'r': no job type 'rapport' is registered \(known: report\)"
    ):
        types.check_schedule(Schedule("r", "rapport", {"day": "x"}, "0 6 * * *"))
    with pytest.raises(ConfigurationError, match="schedule 'r': report: the payload is not valid"):
        types.check_schedule(Schedule("r", "report", {"rows": "{slot_date}"}, "0 6 * * *"))


class Login(msgspec.Struct):
    user: int
    code: Annotated[str, Sensitive] = ""


class LoginType(JobType[Login]):
    name = "login"
    payload = Login

    def perform(self, payload: Any, attempt: Any) -> None:
        """Nothing is to be done here."""


def test_a_schedule_may_hold_no_secret() -> None:
    types = Registry([LoginType()])
    types.check_schedule(Schedule("l", "login", {"user": 7}, "0 6 * * *"))
    with pytest.raises(ConfigurationError, match="schedule 'l': the payload's code is sensitive") as caught:
        types.check_schedule(Schedule("l", "login", {"user": 7, "code": "rosebud"}, "0 6 * * *"))
    assert "rosebud" not in str(caught.value)


def test_an_app_checks_its_schedules_when_it_is_made(tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    daily = schedule()
    with pytest.raises(ConfigurationError, match="no job type 'scripted'"):
        Effects(url, schedules=[daily])
    with pytest.raises(ConfigurationError, match="'daily' is declared twice"):
        Effects(url, job_types=[Scripted()], schedules=[daily, daily])
    slower = Schedule("effects.prune", "effects.prune", cron="0 4 * * *")
    app = Effects(url, job_types=[Scripted()], schedules=[daily, slower])
    assert app.schedules == {"daily": daily, "effects.prune": slower}
    app.dispose()


NOW = SLOT + timedelta(seconds=20)
DAYS = [SLOT - timedelta(days=days) for days in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"catch_up": "none"}, DAYS[-1:]),
        ({"catch_up": "latest"}, DAYS[-1:]),
        ({"catch_up": "all", "overlap": "queue"}, DAYS),
        ({"catch_up": "all", "overlap": "queue", "catch_up_max": 2}, DAYS[-2:]),
    ],
)
def test_slots_missed_by_an_absence_that_ends_just_after_a_slot(
    options: dict[str, Any], expected: list[datetime]
) -> None:
    assert schedule(**options).missed(SLOT - timedelta(days=4), NOW) == expected


def test_slots_missed_by_an_absence_that_ends_between_slots() -> None:
    later = SLOT + timedelta(hours=3)
    since = SLOT - timedelta(days=4)
    assert schedule(catch_up="none").missed(since, later) == []
    assert schedule(catch_up="latest").missed(since, later) == [SLOT]
    assert schedule(catch_up="all", overlap="allow").missed(since, later) == DAYS


@pytest.mark.parametrize(("late", "expected"), [(300, [SLOT]), (301, [])])
def test_a_slot_is_on_time_for_five_minutes(late: int, expected: list[datetime]) -> None:
    assert schedule(catch_up="none").missed(SLOT - timedelta(hours=1), SLOT + timedelta(seconds=late)) == expected


def test_a_clock_set_back_finds_no_slots() -> None:
    assert schedule().missed(SLOT, SLOT - timedelta(days=1)) == []
