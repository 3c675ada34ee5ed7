"""Calendar invitations: an iCalendar object (RFC 5545) that mail programs offer to answer (iTIP, RFC 5546; RFC 6047).

Times are written in UTC, so that no description of a time zone is needed; whole days have no zone. Lines end with CRLF
and are folded at 75 bytes, between characters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Literal, TypeAlias, get_args
from urllib.parse import quote, unquote, urlsplit

from effects.extend.arguments import optional, printable, require
from effects.extend.text import described, without_unsafe
from effects_email.errors import EmailInvalid
from effects_email.message.address import Recipient, is_utf8, normal_form, recipient
from effects_email.message.source import Address

Method: TypeAlias = Literal["REQUEST", "CANCEL", "PUBLISH"]
CALENDAR = "text/calendar; method="  # begins the content type of an invitation, and of no file of a caller's
FILENAME = "invite.ics"
TEXT_CHARS_MAX = 10_000
SEQUENCE_MAX = 2**31 - 1
REMINDER_MINUTES_MAX = 4 * 7 * 24 * 60
_LINE_BYTES = 75
_SPECIAL = re.compile(r"([\\;,])")
_PARAMETER = str.maketrans({"^": "^^", '"': "^'", "\n": " "})  # RFC 6868
_IN_MAILTO = "@!$'*+-/=^_`{|}~."  # RFC 6068, and what stands in addresses
_URL = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite:
    """One event, not a series, that recipients may put into their calendars.

    Args:
        uid: which event it is, the same forever: an update and a cancellation name it again. At most 255 characters,
            such as `booking-17@shop.example`.
        summary: its title, one line.
        start, end: two aware datetimes, or two dates for whole days (`end` is then the day after the last one).
        sequence: 0 at first; each update and the cancellation have a higher one, or calendars ignore them.
        method: `REQUEST` asks for an answer, `CANCEL` takes the event back, `PUBLISH` merely shows it.
        location, description, url: shown with it; 10,000 characters at most, an http or https URL.
        organizer: who gets the answers. Default the message's sender.
        attendees: who is invited, 100 at most. Default those in To and Cc; none with `PUBLISH`.
        reminder_minutes: an alarm so long before the start, 4 weeks at most. Default none of ours.
    """

    uid: str
    summary: str = field(repr=False)
    start: datetime | date
    end: datetime | date
    sequence: int = 0
    method: Method = "REQUEST"
    location: str | None = field(default=None, repr=False)
    description: str | None = field(default=None, repr=False)
    url: str | None = field(default=None, repr=False)
    organizer: Recipient | None = field(default=None, repr=False)
    attendees: Sequence[Recipient] | None = field(default=None, repr=False)
    reminder_minutes: int | None = None


def calendar_of(invite: Invite, *, sender: Address, people: Sequence[Address], stamp: datetime) -> bytes:
    """The iCalendar object.

    Args:
        sender: the organizer where it names none.
        people: who is invited where it names none.
        stamp: aware; when this was written.

    Raises:
        EmailInvalid, AddressInvalid: a field cannot be; the message names it.
    """
    _check(invite)
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//effects//effects_email//EN", f"METHOD:{invite.method}"]
    lines += _event(invite, sender, people, stamp)
    lines.append("END:VCALENDAR")
    return b"".join(_folded(line) for line in lines)


def without_attendees(calendar: bytes, addresses: Collection[str]) -> bytes:
    """An iCalendar object of ours that does not name these people.

    Args:
        addresses: in normal form.
    """
    lines = calendar.replace(b"\r\n ", b"").decode().split("\r\n")[:-1]
    return b"".join(_folded(line) for line in lines if _attendee_of(line) not in addresses)


def _attendee_of(line: str) -> str | None:
    return normal_form(unquote(line.rpartition(":mailto:")[2])) if line.startswith("ATTENDEE;") else None


def content_type_of(invite: Invite) -> str:
    """The type of its MIME part, which says what it is for."""
    return f"{CALENDAR}{invite.method}; charset=utf-8"


def _event(invite: Invite, sender: Address, people: Sequence[Address], stamp: datetime) -> Iterator[str]:
    yield "BEGIN:VEVENT"
    yield f"UID:{_text(invite.uid)}"
    yield f"DTSTAMP:{_utc(stamp)}"
    yield _moment("DTSTART", invite.start)
    yield _moment("DTEND", invite.end)
    yield f"SEQUENCE:{invite.sequence}"
    yield f"STATUS:{'CANCELLED' if invite.method == 'CANCEL' else 'CONFIRMED'}"
    for name in ("summary", "location", "description"):
        if value := getattr(invite, name):
            yield f"{name.upper()}:{_text(value)}"
    if invite.url is not None:
        yield f"URL:{invite.url}"
    organizer = sender if invite.organizer is None else recipient(invite.organizer, where="invite: organizer")
    yield _person("ORGANIZER", organizer)
    for attendee in _attendees(invite, people):
        yield _person("ATTENDEE;ROLE=REQ-PARTICIPANT;PARTSTAT=NEEDS-ACTION;RSVP=TRUE", attendee)
    if invite.reminder_minutes is not None and invite.method != "CANCEL":
        yield from (
            "BEGIN:VALARM", "ACTION:DISPLAY", f"DESCRIPTION:{_text(invite.summary)}",
            f"TRIGGER:-PT{invite.reminder_minutes}M", "END:VALARM",
        )  # fmt: skip
    yield "END:VEVENT"


def _attendees(invite: Invite, people: Sequence[Address]) -> Sequence[Address]:
    if invite.method == "PUBLISH":
        return ()
    if invite.attendees is None:
        return people
    return [recipient(attendee, where="invite: attendees") for attendee in invite.attendees]


def _moment(name: str, value: datetime | date) -> str:
    return f"{name}:{_utc(value)}" if isinstance(value, datetime) else f"{name};VALUE=DATE:{value:%Y%m%d}"


def _instant(value: Any) -> Any:
    """Two of one zone would be compared by their clocks, which jump where summer time begins and ends."""
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def _utc(value: datetime) -> str:
    return f"{value.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _person(name: str, address: Address) -> str:
    shown = f';CN="{address.name.translate(_PARAMETER)}"' if address.name else ""
    return f"{name}{shown}:mailto:{quote(address.spec, safe=_IN_MAILTO)}"


def _text(value: str) -> str:
    """A value of type TEXT."""
    lines = value.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return r"\n".join(_SPECIAL.sub(r"\\\1", without_unsafe(line)) for line in lines)


def _folded(line: str) -> bytes:
    pieces: list[bytes] = []
    piece = b""
    for letter in line:
        encoded = letter.encode()
        if len(piece) + len(encoded) > _LINE_BYTES:
            pieces.append(piece)
            piece = b" "
        piece += encoded
    return b"\r\n".join([*pieces, piece, b""])


# -- what cannot be --------------------------------------------------------------------------------------------------


def _check(invite: Invite) -> None:
    if not isinstance(invite, Invite):
        raise EmailInvalid(f"invite is {described(invite)}; give an Invite")
    require("invite: uid", invite.uid, printable(255), EmailInvalid)
    for name in ("summary", "location"):
        rule = printable(TEXT_CHARS_MAX) if name == "summary" else optional(printable(TEXT_CHARS_MAX))
        require(f"invite: {name}", getattr(invite, name), rule, EmailInvalid)
    _check_text(invite.description)
    _check_times(invite.start, invite.end)
    _check_numbers(invite)
    if invite.method not in get_args(Method):
        raise EmailInvalid(f"invite: method is {described(invite.method)}; give one of {', '.join(get_args(Method))}")
    if invite.url is not None and not _is_url(invite.url):
        raise EmailInvalid("invite: url is no http or https URL in ASCII")
    if isinstance(invite.attendees, str | Address) or not isinstance(invite.attendees, Sequence | None):
        raise EmailInvalid("invite: attendees is one address; give a list")
    if invite.attendees is not None and not 1 <= len(invite.attendees) <= 100:
        raise EmailInvalid(f"invite: {len(invite.attendees)} attendees; give 1 to 100")


def _check_text(description: object) -> None:
    if description is None:
        return
    if not isinstance(description, str):
        raise EmailInvalid(f"invite: description is {described(description)}; give a text")
    if len(description) > TEXT_CHARS_MAX or not is_utf8(description):
        raise EmailInvalid(
            f"invite: description has at most {TEXT_CHARS_MAX:,} characters, and none that UTF-8 has not"
        )


def _check_times(start: object, end: object) -> None:
    for name, value in (("start", start), ("end", end)):
        if not isinstance(value, date):
            raise EmailInvalid(f"invite: {name} is {described(value)}; give an aware datetime, or a date")
        if isinstance(value, datetime) and value.utcoffset() is None:
            raise EmailInvalid(f"invite: {name} has no time zone; give an aware datetime")
        if not 1900 <= value.year <= 9000:
            raise EmailInvalid(f"invite: {name} is in the year {value.year}; give one of 1900 to 9000")
    if isinstance(start, datetime) != isinstance(end, datetime):
        raise EmailInvalid("invite: start and end are two datetimes, or two dates")
    if not _instant(start) < _instant(end):
        raise EmailInvalid("invite: end is not after start")


def _check_numbers(invite: Invite) -> None:
    for name, most in (("sequence", SEQUENCE_MAX), ("reminder_minutes", REMINDER_MINUTES_MAX)):
        value = getattr(invite, name)
        if value is None and name == "reminder_minutes":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise EmailInvalid(f"invite: {name} is {described(value)}; give 0 to {most:,}")


def _is_url(url: object) -> bool:
    if not isinstance(url, str) or not _URL.fullmatch(url) or len(url) > 2000:
        return False
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
