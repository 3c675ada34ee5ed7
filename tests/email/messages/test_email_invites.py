"""Calendar invitations, read back by the library `icalendar`."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any
from zoneinfo import ZoneInfo

import icalendar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effects import Effects, IdempotencyConflict
from effects_email import (
    AddressInvalid,
    AttachmentInvalid,
    EmailInvalid,
    File,
    Invite,
    send_email,
    send_templated_email,
)
from effects_email.message.invite import calendar_of
from effects_email.message.source import Address
from tests.email.messages.conftest import CONTEXT, MakeShop, drain
from tests.email.messages.post import Post, verdict

BERLIN = ZoneInfo("Europe/Berlin")
EVENT: dict[str, Any] = {
    "uid": "booking-17@shop.example", "summary": "Tea, with Ann; and \\ Bób",
    "start": datetime(2027, 3, 28, 10, tzinfo=BERLIN), "end": datetime(2027, 3, 28, 11, tzinfo=BERLIN),
}  # fmt: skip
SENDER, ANN = Address("hello", "shop.example", "Shop"), Address("ann", "example.com", 'Ann "the, first"; ^ : x')


def event_of(**changes: Any) -> Any:
    data = calendar_of(
        Invite(**{**EVENT, **changes}), sender=SENDER, people=[ANN], stamp=datetime(2027, 1, 1, tzinfo=UTC)
    )
    [event] = icalendar.Calendar.from_ical(data).walk("VEVENT")
    return event


def send(shop: Effects, key: str = "k", **changes: Any) -> Any:
    invite = Invite(**{**EVENT, **changes})
    return send_email(to="Ann <ann@example.com>", subject="Tea", text="Come!", invite=invite, key=key, effects=shop)


def read(post: Post) -> EmailMessage:
    message = message_from_bytes(post.bytes[-1], policy=policy.default)
    assert isinstance(message, EmailMessage)
    return message


def test_an_invitation_is_in_the_body_and_attached(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()
    invite = Invite(**EVENT, location="Here", reminder_minutes=15)
    send_templated_email(
        "welcome", to="Ann <ann@example.com>", context=CONTEXT, invite=invite, effects=shop,
        attachments=[File(b"x", filename="x.txt")],
    )  # fmt: skip
    drain(shop)
    message = read(post)
    assert [part.get_content_type() for part in message.walk()] == [
        "multipart/mixed", "multipart/alternative", "text/plain", "text/html", "text/calendar", "text/plain",
        "application/ics",
    ]  # fmt: skip
    *_, calendar, _, attached = message.walk()
    assert calendar["Content-Type"].params == {"method": "REQUEST", "charset": "utf-8"}
    assert attached.get_filename() == "invite.ics"
    assert calendar.get_payload(decode=True) == attached.get_payload(decode=True)
    parsed = icalendar.Calendar.from_ical(calendar.get_payload(decode=True))
    assert (parsed["METHOD"], parsed["VERSION"]) == ("REQUEST", "2.0")
    [event] = parsed.walk("VEVENT")
    assert event["ORGANIZER"] == "mailto:hello@shop.example"
    assert event["ATTENDEE"] == "mailto:ann@example.com"
    assert event["ATTENDEE"].params["RSVP"] == "TRUE"
    assert event.walk("VALARM")[0]["TRIGGER"].dt == timedelta(minutes=-15)


def test_every_try_has_the_same_bytes(make_shop: MakeShop, post: Post) -> None:
    post.moves = [verdict("retry"), verdict("accepted")]
    shop = make_shop()
    send(shop)
    drain(shop)
    shop.store.shift_clock(3600.0)
    drain(shop)
    assert len(post.bytes) == 2
    assert post.bytes[0] == post.bytes[1]
    assert b"BEGIN:VCALENDAR" in b"".join(
        part.get_payload(decode=True) for part in read(post).walk() if part.get_content_type() == "text/calendar"
    )


def test_the_same_call_is_the_same_message_and_an_update_is_another(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()
    assert not send(shop).existing
    assert send(shop).existing  # whatever the time
    for changes in ({"sequence": 1}, {"summary": "Coffee"}, {"end": datetime(2027, 3, 28, 12, tzinfo=BERLIN)}):
        with pytest.raises(IdempotencyConflict):
            send(shop, **changes)
    assert send(shop, start=EVENT["start"].astimezone(UTC)).existing  # the same moment
    send(shop, "update", sequence=1, summary="Coffee")
    send(shop, "cancel", sequence=2, method="CANCEL")
    drain(shop)
    calendars = [
        icalendar.Calendar.from_ical(part.get_payload(decode=True))
        for data in post.bytes
        for part in message_from_bytes(data, policy=policy.default).walk()
        if part.get_content_type() == "text/calendar"
    ]
    calendars.sort(key=lambda calendar: calendar.walk("VEVENT")[0]["SEQUENCE"])  # they leave at once
    assert [(calendar["METHOD"], calendar.walk("VEVENT")[0]["SEQUENCE"]) for calendar in calendars] == [
        ("REQUEST", 0), ("REQUEST", 1), ("CANCEL", 2),
    ]  # fmt: skip
    assert {str(calendar.walk("VEVENT")[0]["UID"]) for calendar in calendars} == {EVENT["uid"]}
    assert calendars[-1].walk("VEVENT")[0]["STATUS"] == "CANCELLED"


@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=200),
    st.text(alphabet=st.sampled_from('a,;:\\\n"ü🎂 \u2028^'), max_size=200),
)
def test_words_come_back_as_they_are_and_begin_no_property(summary: str, description: str) -> None:
    if not summary.strip() or not summary.isprintable():
        return
    invite = Invite(**{**EVENT, "summary": summary, "description": f"x{description}\r\nBEGIN:VALARM"})
    data = calendar_of(invite, sender=SENDER, people=[ANN], stamp=datetime(2027, 1, 1, tzinfo=UTC))
    lines = data.split(b"\r\n")
    assert lines[-1] == b""
    assert max(map(len, lines)) <= 75
    assert b"\n" not in data.replace(b"\r\n", b"")
    [event] = icalendar.Calendar.from_ical(data).walk("VEVENT")
    assert event["SUMMARY"] == summary
    assert event["DESCRIPTION"].endswith("\nBEGIN:VALARM")
    assert event.walk("VALARM") == []


def test_times_are_those_of_every_zone() -> None:
    event = event_of()
    assert (event["DTSTART"].dt, event["DTEND"].dt) == (EVENT["start"], EVENT["end"])
    assert event["DTSTART"].to_ical() == b"20270328T080000Z"  # summer time has begun that night
    odd = timezone(timedelta(hours=5, minutes=45))
    assert event_of(start=datetime(2027, 1, 1, 0, 15, tzinfo=odd))["DTSTART"].to_ical() == b"20261231T183000Z"
    twice = datetime(2027, 10, 31, 2, 30, tzinfo=BERLIN)  # summer time ends: it is half past two once more
    hour = event_of(start=twice, end=twice.replace(fold=1))
    assert (hour["DTSTART"].to_ical(), hour["DTEND"].to_ical()) == (b"20271031T003000Z", b"20271031T013000Z")
    days = event_of(start=date(2027, 3, 1), end=date(2027, 3, 3))
    assert (days["DTSTART"].dt, days["DTEND"].dt) == (date(2027, 3, 1), date(2027, 3, 3))


def test_people_come_back_as_they_are() -> None:
    event = event_of()
    assert event["ATTENDEE"] == "mailto:ann@example.com"
    assert event["ATTENDEE"].params["CN"] == ANN.name
    assert "ATTENDEE" not in event_of(method="PUBLISH")
    named = event_of(organizer="Desk <desk@shop.example>", attendees=["Bob <bob+x%1@example.com>", "eve@example.com"])
    assert named["ORGANIZER"].params["CN"] == "Desk"
    assert [str(attendee) for attendee in named["ATTENDEE"]] == [
        "mailto:bob+x%251@example.com",
        "mailto:eve@example.com",
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"uid": ""}, "invite: uid"), ({"uid": "a\r\nb"}, "invite: uid"), ({"summary": 5}, "invite: summary"),
        ({"summary": "a\nb"}, "invite: summary"), ({"start": datetime(2027, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"start": "tomorrow"}, "invite: start is a str"), ({"end": date(2027, 3, 29)}, "two datetimes, or two dates"),
        ({"end": EVENT["start"]}, "end is not after start"), ({"sequence": -1}, "sequence"),
        ({"sequence": True}, "sequence"), ({"url": "https://a b"}, "url"), ({"reminder_minutes": 1.5}, "reminder"),
        ({"method": "REPLY"}, "REQUEST, CANCEL, PUBLISH"), ({"url": "javascript:x"}, "url"),
        ({"url": "https:///x"}, "url"), ({"attendees": "ann@example.com"}, "give a list"),
        ({"attendees": []}, "0 attendees"),
        ({"description": "\ud800"}, "description"), ({"description": 1}, "description"),
        ({"start": datetime(1, 1, 1, tzinfo=BERLIN)}, "in the year 1"),
        # 2:30 does not exist on that day: it is the same moment.
        ({"start": datetime(2027, 3, 28, 2, 30, tzinfo=BERLIN), "end": datetime(2027, 3, 28, 3, 30, tzinfo=BERLIN)},
         "end is not after start"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error_of_the_call(make_shop: MakeShop, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EmailInvalid, match=reason):
        send(make_shop(), **changes)


def test_other_errors_of_the_call(make_shop: MakeShop) -> None:
    shop = make_shop()
    with pytest.raises(AddressInvalid, match="invite: organizer"):
        send(shop, organizer="nobody")
    with pytest.raises(EmailInvalid, match="invite is a dict; give an Invite"):
        send_email(to="ann@example.com", subject="s", text="t", invite={}, effects=shop)  # type: ignore[arg-type]
    for forged in ("text/calendar; method=REQUEST", "text/calendar;method=CANCEL"):
        with pytest.raises(AttachmentInvalid, match="type/subtype"):
            send_email(
                to="ann@example.com", subject="s", text="t", effects=shop,
                attachments=[File(b"x", filename="x.ics", content_type=forged)],
            )  # fmt: skip
