"""When schedules are due: the clock changes of five zones, both edges, the leap day, and long absences."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from effects import ConfigurationError
from effects.model.schedules import Cron

# Zone, local start, cron text, the slots that follow by the local clock with its offset.
TABLE = {
    # Berlin: 02:00 becomes 03:00 on 29 March 2026; 03:00 becomes 02:00 on 25 October.
    "Berlin, spring, fixed": (
        "Europe/Berlin", "2026-03-28T12:00", "30 2 * * *", ["29T03:00+02:00", "30T02:30+02:00", "31T02:30+02:00"]),
    "Berlin, spring, two fixed become one": (
        "Europe/Berlin", "2026-03-28T12:00", "0,30 2 * * *", ["29T03:00+02:00", "30T02:00+02:00", "30T02:30+02:00"]),
    "Berlin, spring, fixed beside the gap": (
        "Europe/Berlin", "2026-03-28T12:00", "30 1,2,3 * * *", ["29T01:30+01:00", "29T03:00+02:00", "29T03:30+02:00"]),
    "Berlin, spring, interval": (
        "Europe/Berlin", "2026-03-29T01:20", "*/30 * * * *", ["29T01:30+01:00", "29T03:00+02:00", "29T03:30+02:00"]),
    "Berlin, spring, interval within the gap": (
        "Europe/Berlin", "2026-03-28T03:00", "*/30 2 * * *", ["30T02:00+02:00", "30T02:30+02:00"]),
    "Berlin, autumn, fixed": (
        "Europe/Berlin", "2026-10-24T12:00", "30 2 * * *", ["25T02:30+02:00", "26T02:30+01:00"]),
    "Berlin, autumn, interval": (
        "Europe/Berlin", "2026-10-25T01:45", "*/30 * * * *",
        ["25T02:00+02:00", "25T02:30+02:00", "25T02:00+01:00", "25T02:30+01:00", "25T03:00+01:00"]),
    "Berlin, autumn, every hour": (
        "Europe/Berlin", "2026-10-25T01:30", "0 * * * *", ["25T02:00+02:00", "25T02:00+01:00", "25T03:00+01:00"]),
    # New York: 02:00 becomes 03:00 on 8 March 2026; 02:00 becomes 01:00 on 1 November.
    "New York, spring, fixed": (
        "America/New_York", "2026-03-07T12:00", "15 2 * * *", ["08T03:00-04:00", "09T02:15-04:00"]),
    "New York, spring, interval": (
        "America/New_York", "2026-03-08T01:10", "*/20 * * * *", ["08T01:20-05:00", "08T01:40-05:00", "08T03:00-04:00"]),
    "New York, autumn, fixed": (
        "America/New_York", "2026-10-31T12:00", "30 1 * * *", ["01T01:30-04:00", "02T01:30-05:00"]),
    "New York, autumn, interval": (
        "America/New_York", "2026-11-01T00:40", "30 * * * *", ["01T01:30-04:00", "01T01:30-05:00", "01T02:30-05:00"]),
    # Lord Howe moves by half an hour: 02:00 becomes 02:30 on 4 October 2026; 02:00 becomes 01:30 on 5 April.
    "Lord Howe, spring, fixed": (
        "Australia/Lord_Howe", "2026-10-03T12:00", "15 2 * * *", ["04T02:30+11:00", "05T02:15+11:00"]),
    "Lord Howe, spring, interval of the hour after": (
        "Australia/Lord_Howe", "2026-10-04T01:45", "*/10 3 * * *", ["04T03:00+11:00", "04T03:10+11:00"]),
    "Lord Howe, autumn, fixed": (
        "Australia/Lord_Howe", "2026-04-04T12:00", "45 1 * * *", ["05T01:45+11:00", "06T01:45+10:30"]),
    "Lord Howe, autumn, interval": (
        "Australia/Lord_Howe", "2026-04-05T01:10", "*/15 1 * * *",
        ["05T01:15+11:00", "05T01:30+11:00", "05T01:45+11:00", "05T01:30+10:30", "05T01:45+10:30", "06T01:00+10:30"]),
    # Santiago changes at midnight: 6 September 2026 begins at 01:00; 4 April lasts 25 hours.
    "Santiago, spring, midnight": (
        "America/Santiago", "2026-09-05T12:00", "0 0 * * *", ["06T01:00-03:00", "07T00:00-03:00"]),
    "Santiago, spring, every hour of a Sunday": (
        "America/Santiago", "2026-09-05T12:00", "0 * * * SUN", ["06T01:00-03:00", "06T02:00-03:00"]),
    "Santiago, autumn, fixed": (
        "America/Santiago", "2026-04-04T12:00", "30 23 * * *", ["04T23:30-03:00", "05T23:30-04:00"]),
    "Santiago, autumn, interval": (
        "America/Santiago", "2026-04-04T23:10", "*/30 * * * *", ["04T23:30-03:00", "04T23:00-04:00", "04T23:30-04:00"]),
    # London, whose standard time is UTC itself: 29 March and 25 October 2026.
    "London, spring, fixed": (
        "Europe/London", "2026-03-28T12:00", "30 1 * * *", ["29T02:00+01:00", "30T01:30+01:00"]),
    "London, spring, interval": (
        "Europe/London", "2026-03-29T00:40", "0 */1 * * *", ["29T02:00+01:00", "29T03:00+01:00"]),
    "London, autumn, fixed": (
        "Europe/London", "2026-10-24T12:00", "30 1 * * *", ["25T01:30+01:00", "26T01:30+00:00"]),
    "London, autumn, interval": (
        "Europe/London", "2026-10-25T00:40", "0 */1 * * *", ["25T01:00+01:00", "25T01:00+00:00", "25T02:00+00:00"]),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_slots_around_a_clock_change(case: str) -> None:
    zone, start, text, expected = TABLE[case]
    cron = Cron(text, zone)
    begin = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
    slots = list(islice(cron.after(begin), len(expected)))
    assert [_told(cron, slot) for slot in slots] == expected
    assert all(slot.tzinfo is UTC for slot in slots)


def _told(cron: Cron, slot: datetime) -> str:
    return cron.local(slot).isoformat(timespec="minutes")[8:]


@pytest.mark.parametrize("case", TABLE)
def test_slots_do_not_depend_on_when_they_are_read(case: str) -> None:
    """A worker that looks every few minutes, in the repeated hour too, finds each slot once."""
    zone, start, text, _ = TABLE[case]
    cron = Cron(text, zone)
    begin = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end = begin + timedelta(hours=40)
    at_once = cron.newest(end, since=begin, most=10_000)
    seen: list[datetime] = []
    last = now = begin
    while now < end:
        now = min(now + timedelta(minutes=7), end)
        slots = cron.newest(now, since=last, most=10_000)
        seen += slots
        last = slots[-1] if slots else last
    assert seen == at_once
    assert len(set(seen)) == len(seen)


def test_the_leap_day() -> None:
    assert list(islice(Cron("0 0 29 2 *").after(datetime(2026, 1, 1, tzinfo=UTC)), 2)) == [
        datetime(2028, 2, 29, tzinfo=UTC),
        datetime(2032, 2, 29, tzinfo=UTC),
    ]
    assert Cron("0 0 29 2 *").before(datetime(2026, 1, 1, tzinfo=UTC)) == datetime(2024, 2, 29, tzinfo=UTC)
    last = [slot.day for slot in islice(Cron("0 6 L * *").after(datetime(2028, 1, 1, tzinfo=UTC)), 3)]
    assert last == [31, 29, 31]


def test_a_schedules_row_may_hold_the_first_year() -> None:
    """Whoever wrote it stops no other schedule: the worker looks at all of them in one round."""
    slot = next(Cron("0 6 * * *", "America/New_York").after(datetime(1, 1, 1, tzinfo=UTC)))
    assert slot.year == 2


def test_the_slot_before() -> None:
    weekly = Cron("0 6 * * MON")
    assert weekly.before(datetime(2026, 11, 23, 6, tzinfo=UTC)) == datetime(2026, 11, 16, 6, tzinfo=UTC)
    assert weekly.before(datetime(2026, 11, 23, 6, 0, 1, tzinfo=UTC)) == datetime(2026, 11, 23, 6, tzinfo=UTC)


def test_the_newest_of_a_long_absence() -> None:
    now = datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC)
    minutely = Cron("* * * * *", "Europe/Berlin")
    slots = minutely.newest(now, since=now - timedelta(days=3650), most=3)
    assert [slot.minute for slot in slots] == [58, 59, 0]
    assert minutely.newest(now, since=now - timedelta(seconds=20)) == []
    assert Cron("0 0 1 1 *").newest(now, since=now - timedelta(days=3), most=3) == []


@given(
    start=st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 1)),  # noqa: DTZ001 - a wall clock
    text=st.sampled_from(["30 2 * * *", "0 1,2,3 * * *", "15 2 * * SUN", "0 0 1 * *", "*/20 * * * *", "0 */3 * * *"]),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Europe/London", "Asia/Tokyo"]),
)
def test_slots_agree_with_croniters_where_it_keeps_the_contract(start: datetime, text: str, zone: str) -> None:
    """cronsim follows Debian's cron too, but loses slots where a zone moves by half an hour or at midnight."""
    begin = start.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).replace(microsecond=0)
    theirs = (slot.astimezone(UTC) for slot in CronSim(text, begin.astimezone(ZoneInfo(zone))))
    later = (slot for slot in theirs if slot > begin)  # in the repeated hour its first answer may be earlier
    distinct = list(dict.fromkeys(islice(later, 12)))[:8]
    assert list(islice(Cron(text, zone).after(begin), len(distinct))) == distinct


@pytest.mark.parametrize(
    ("text", "zone", "says"),
    [
        ("0 6 * *", "UTC", "give five fields"),
        ("0 0 6 * * *", "UTC", "give five fields"),
        ("60 6 * * *", "UTC", "bad minute"),
        ("0 6 * * FUNDAY", "UTC", "bad day-of-week"),
        ("0 6 30 2 *", "UTC", "bad day-of-month"),
        ("0 6 * * *", "Europe/Atlantis", "no time zone 'Europe/Atlantis'"),
        ("0 6 * * *", "../../etc/passwd", "no time zone"),
        ("0 6 * * *", "", "no time zone"),
    ],
)
def test_what_is_not_valid_is_refused_with_its_reason(text: str, zone: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Cron(text, zone)
