"""A schedule as the app declares it: which job, when, and what happens when a slot was missed or runs long. Pure.

`cronsim` reads the cron text (Vixie cron's five fields, with `L`, `LW` and `#`) and walks the wall clock; what happens
where the wall clock jumps is decided here, in the way of Debian's cron:

- A **fixed** time (neither the minute nor the hour begins with `*`) runs once a day. In the hour that is
  skipped in spring it runs at the first minute after the jump, and several such times run there together,
  once. In the hour that is repeated in autumn it runs the first time only.
- A **wildcard** time (`*/15 * * * *`, `0 * * * *`, `30 */2 * * *`) goes by elapsed time: it runs at every
  instant whose wall clock matches, so not at all in the skipped hour and twice in the repeated one.

A slot is named by its instant, in UTC, a whole minute. Placeholders such as `{slot_date}` in the texts of a
payload stand for it.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol, Required, Self, TypeAlias, TypedDict, Unpack
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from effects.errors import ConfigurationError
from effects.kit.arguments import one_of, optional, printable, require, shown, text, whole
from effects.kit.plain_values import require_json
from effects.kit.text.unsafe import nearest
from effects.model.job import NewJob

CatchUp: TypeAlias = Literal["none", "latest", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]
CATCH_UP: tuple[CatchUp, ...] = ("none", "latest", "all")
OVERLAP: tuple[Overlap, ...] = ("allow", "skip", "queue")

CATCH_UP_MAX = 1000
ON_TIME_SECONDS = 300.0  # a slot that is picked up within this was not missed

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_IN_KEY = re.compile(r"\{([a-z_]+)\}")
PLACEHOLDERS = ("slot", "slot_date", "slot_month", "previous_slot", "previous_slot_date", "previous_slot_month")
_RULES = {
    **dict.fromkeys(("name", "cron", "zone"), text),
    "key": optional(text),
    "catch_up": one_of(CATCH_UP),
    "catch_up_max": whole(1, CATCH_UP_MAX),
    "overlap": one_of(OVERLAP),
    "max_attempts": optional(whole(1, 1000)),
}
_FIELDS = {
    "minute": "0 to 59", "hour": "0 to 23", "day-of-month": "1 to 31", "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7, or SUN to SAT",
}  # fmt: skip
_MINUTE = timedelta(minutes=1)
_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)  # no slot is looked for before: there would be no time to go back
_SHIFT_MAX = timedelta(hours=3)  # no zone has turned its clock back by more since zones have rules
_PLACEHOLDER = re.compile(r"\{([a-z_][a-z0-9_]{0,39})\}")
_WINDOWS = tuple(timedelta(hours=1) * 4**power for power in range(11))  # 1 h … 120 years


class ScheduleOptions(TypedDict, total=False):
    """When a schedule runs, and how; see `Schedule`."""

    cron: Required[str]
    zone: str
    catch_up: CatchUp
    catch_up_max: int
    overlap: Overlap
    max_attempts: int | None
    key: str | None


class ScheduledNotice(Protocol):
    """What a report tells when it has ended: what `mail_notice` and `bucket_notice` make."""

    @property
    def job_type(self) -> str: ...

    @property
    def payload(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job that runs on a schedule.

    Args:
        name: lower case, up to 100 characters; names the schedule in every command.
        job_type: name of a registered job type.
        payload: a mapping that converts to the type's payload class. In its strings `{slot}` (ISO 8601),
            `{slot_date}`, `{slot_month}` (`2026-11`), and with `previous_` those of the slot before, stand for the slot
            by the schedule's wall clock; another name in braces is refused, unless the job type fills it in.
        cron: five fields (see the head of this module for what happens when the clocks change).
        zone: IANA time zone. Default UTC.
        catch_up: how to handle slots missed while no worker ran: `latest` runs the newest of them, once
            (the default); `all` runs them all, oldest first; `none` runs nothing older than 5 minutes.
        catch_up_max: with `all`, the newest so many, 1 to 1000. Default 100.
        overlap: when a job of the schedule is still live: `skip` records the slot as skipped (the default),
            `queue` lets the new job wait for it, `allow` runs both.
        max_attempts: over the job type's.
        key: template of the job's idempotency key, with at least one placeholder, such as
            `sales_report:{slot_date}`. Default `schedule:<name>:<slot in UTC>`.

    Raises:
        ConfigurationError: names the schedule, what is wrong and what it may be.
    """

    name: str
    job_type: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    cron: str = ""
    zone: str = "UTC"
    catch_up: CatchUp = "latest"
    catch_up_max: int = 100
    overlap: Overlap = "skip"
    max_attempts: int | None = None
    key: str | None = None

    @classmethod
    def job(cls, job: NewJob, *, name: str | None = None, **options: Unpack[ScheduleOptions]) -> Self:
        """Schedule a job of a function: `Schedule.job(label.job(order=3), cron="0 3 * * *")`.

        Args:
            job: its key, with a placeholder, and its `max_attempts` are the schedule's.
            name: of the schedule; default that of the job type.
            **options: as of a schedule.

        Raises:
            ConfigurationError: the job has another option; or as a schedule.
        """
        who = f"schedule {shown(name or job.job_type)}"
        kept = ("job_type", "payload", "key", "max_attempts")
        for option in job.__struct_fields__:
            if option not in kept and getattr(job, option) is not None:
                raise ConfigurationError(f"{who}: its job has {option}; declare that with the job type")
        of_job: ScheduleOptions = {"key": job.key, "max_attempts": job.max_attempts, **options}
        return cls(name or job.job_type, job.job_type, job.payload, **of_job)

    @classmethod
    def report(
        cls,
        report: str,
        params: Mapping[str, Any] | None = None,
        *,
        format: str | None = None,  # noqa: A002 - as of `request_report`
        mail: ScheduledNotice | Sequence[ScheduledNotice] = (),
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Self:
        """Schedule a report, and who is told: `Schedule.report("orders", {"since": "{previous_slot_date}"}, cron=…)`.

        Args:
            report: the name of a registered report.
            params: its own; placeholders of the slot in them are filled in.
            format: default that of the report.
            mail: what `mail_notice(…)` and `bucket_notice(…)` make, one or several.
            name: of the schedule; default `report.` and the report's.
            **options: as of a schedule.

        Raises:
            ConfigurationError: as a schedule.
        """
        notices = list(mail) if isinstance(mail, Sequence) else [mail]
        payload = {"report": report, "params": params or {}, "notify": notices}
        payload |= {} if format is None else {"format": format}
        return cls(name or f"report.{report}", "report.request", payload, **options)

    @classmethod
    def email(
        cls,
        template: str,
        to: str | Sequence[str],
        context: Mapping[str, Any] | None = None,
        *,
        locale: str | None = None,
        category: str | None = None,
        name: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Self:
        """Schedule a templated mail: `Schedule.email("digest", "ann@shop.example", {"day": "{slot_date}"}, cron=…)`.

        `to` and `context` are stored in clear with the schedule, and sealed in its jobs: name your own people, and let
        a job of yours write to customers.

        Args:
            template, to, locale, category: as of `send_templated_email`.
            context: the template's variables; placeholders of the slot in them are filled in.
            name: of the schedule; default `email.` and the template's.
            **options: as of a schedule.

        Raises:
            ConfigurationError: as a schedule.
        """
        words = {"template": template, "to": to, "locale": locale, "category": category, "context": context}
        payload = {word: value for word, value in words.items() if value is not None}
        return cls(name or f"email.{template}", "email.compose", payload, **options)

    def __post_init__(self) -> None:
        who = f"schedule {shown(self.name)}"
        for name, rule in _RULES.items():
            require(f"{who}: {name}", getattr(self, name), rule, ConfigurationError)
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(f"{who}: give a name of lower-case letters, digits, dots and dashes")
        try:
            _ = self.times
        except ConfigurationError as error:
            raise ConfigurationError(f"{who}: {error}") from None
        if self.catch_up == "all" and self.overlap == "skip":
            raise ConfigurationError(
                f"{who}: catch_up 'all' would make slots that overlap 'skip' drops; give overlap 'queue' or 'allow'"
            )
        self._check_key(who)
        self.template()  # raises, if the payload has no JSON form

    def _check_key(self, who: str) -> None:
        if self.key is None:
            return
        named = _IN_KEY.findall(self.key)
        if not named or set(named) - set(PLACEHOLDERS):
            raise ConfigurationError(
                f"{who}: key is {self.key!r}; it must name its slot by one or more of "
                f"{', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}, and no other braces"
            )
        require(f"{who}: key", self.key_of(datetime(2000, 1, 1, tzinfo=UTC)), printable(), ConfigurationError)

    @property
    def times(self) -> Cron:
        return Cron(self.cron, self.zone)

    @property
    def group_key(self) -> str | None:
        """With `queue`, the group in which its jobs wait for each other."""
        return f"schedule:{self.name}" if self.overlap == "queue" else None

    def template(self) -> str:
        """The payload as it is stored, placeholders and all."""
        return require_json(f"schedule {shown(self.name)}: payload", self.payload, ConfigurationError)

    def payload_of(self, slot: datetime) -> dict[str, Any]:
        """The payload of one slot."""
        words = self._words(slot)
        filled: dict[str, Any] = fill_placeholders(json.loads(self.template()), words)
        return filled

    def key_of(self, slot: datetime) -> str:
        """The idempotency key of one slot."""
        if self.key is None:
            return f"schedule:{self.name}:{slot.astimezone(UTC).strftime('%Y-%m-%dT%H:%M:%SZ')}"
        return str(fill_placeholders(self.key, self._words(slot)))

    def missed(self, since: datetime, now: datetime) -> list[datetime]:
        """The slots in (`since`, `now`] that are due, oldest first, according to `catch_up`."""
        most = self.catch_up_max if self.catch_up == "all" else 1
        slots = self.times.newest(now, since=since, most=most)
        if self.catch_up == "none":
            return [slot for slot in slots if (now - slot).total_seconds() <= ON_TIME_SECONDS]
        return slots

    def _words(self, slot: datetime) -> dict[str, str]:
        slots = {"slot": self.times.local(slot), "previous_slot": self.times.local(self.times.before(slot))}
        texts = {name: local.isoformat() for name, local in slots.items()}
        dates = {f"{name}_date": local.date().isoformat() for name, local in slots.items()}
        return {**texts, **dates, **{f"{name}_month": f"{local:%Y-%m}" for name, local in slots.items()}}


@dataclass(frozen=True, slots=True)
class Cron:
    """Cron text in a zone.

    Args:
        text: minute, hour, day of month, month, day of week. Where one of the two day fields begins with `*` both
            must match, else either.
        zone: IANA name, such as `Europe/Berlin`.

    Raises:
        ConfigurationError: the text or the zone is not valid, or no day ever matches.
    """

    text: str
    zone: str = "UTC"
    _zone: ZoneInfo = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_zone", _zone_of(self.zone))
        if len(self.text.split()) != 5:
            raise ConfigurationError(f"cron text {self.text!r}: give five fields, such as '30 6 * * MON-FRI'")
        try:
            next(CronSim(self.text, datetime(2000, 1, 1)))  # noqa: DTZ001 - a wall clock
        except CronSimError as error:
            reason = str(error).lower()
            field = reason.removeprefix("bad ")
            cure = f"; {field} is {_FIELDS[field]}" if field in _FIELDS else ""
            raise ConfigurationError(f"cron text {self.text!r}: {reason}{cure}") from None
        except StopIteration:
            raise ConfigurationError(f"cron text {self.text!r}: no day ever matches it") from None

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The slots later than `moment`, oldest first, without end."""
        start = max(moment, _EARLIEST).astimezone(self._zone).replace(tzinfo=None)
        slots = self._fixed(start) if self._is_fixed else self._elapsed(start)
        return (slot for slot in slots if slot > moment)

    def newest(self, until: datetime, *, since: datetime | None = None, most: int = 1) -> list[datetime]:
        """The newest `most` slots in (`since`, `until`], oldest first.

        However long the time and however frequent the slots, it looks at little more than it gives.
        """
        times: list[datetime] = []
        for window in _WINDOWS:
            start = until - window
            times = self._between(start if since is None else max(start, since), until)
            if len(times) >= most or (since is not None and start <= since):
                break
        return times[-most:]

    def before(self, slot: datetime) -> datetime:
        """The slot before this time."""
        return self.newest(slot - timedelta(microseconds=1))[-1]

    def local(self, slot: datetime) -> datetime:
        """The slot by the zone's wall clock."""
        return slot.astimezone(self._zone)

    def _between(self, start: datetime, until: datetime) -> list[datetime]:
        slots = []
        for slot in self.after(start):
            if slot > until:
                break
            slots.append(slot)
        return slots

    @property
    def _is_fixed(self) -> bool:
        return not any(field.startswith("*") for field in self.text.split()[:2])

    def _fixed(self, start: datetime) -> Iterator[datetime]:
        previous = None
        for wall in CronSim(self.text, start - _SHIFT_MAX):
            slot = self._past_the_gap(wall)
            if slot != previous:
                yield slot
            previous = slot

    def _past_the_gap(self, wall: datetime) -> datetime:
        while (slot := self._instant(wall)) is None:
            wall += _MINUTE
        return slot

    def _elapsed(self, start: datetime) -> Iterator[datetime]:
        """In the repeated hour the wall clock gives each time twice: the second ones wait their turn in a heap."""
        second: list[datetime] = []
        for wall in CronSim(self.text, start - _SHIFT_MAX):
            first = self._instant(wall)
            if first is None:
                continue
            while second and second[0] < first:
                yield heapq.heappop(second)
            yield first
            again = self._instant(wall, fold=1)
            if again is not None and again != first:
                heapq.heappush(second, again)

    def _instant(self, wall: datetime, fold: int = 0) -> datetime | None:
        """The instant at which the wall clock shows this; None where it is skipped."""
        slot = wall.replace(tzinfo=self._zone, fold=fold).astimezone(UTC)
        return slot if slot.astimezone(self._zone).replace(tzinfo=None) == wall else None


def _zone_of(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        raise ConfigurationError(f"there is no time zone {name!r}; give an IANA name, such as Europe/Berlin") from None


def why_unfilled(value: object, names: Collection[str]) -> str | None:
    """Why the placeholders in a payload are wrong: the first that is not among `names`, and those there are."""
    unknown = next((name for name in _placeholders(value) if name not in names), None)
    if unknown is None:
        return None
    listed = ", ".join(f"{{{name}}}" for name in names)
    return f"nothing fills in {{{unknown}}} in its payload (there are {listed}){nearest(unknown, names)}"


def fill_placeholders(value: Any, words: Mapping[str, str]) -> Any:
    """The payload, or a part of it, with each `{name}` that `words` has in place of its word; other braces stay."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: words.get(match[1], match[0]), value)
    if isinstance(value, list | tuple):
        return [fill_placeholders(element, words) for element in value]
    if isinstance(value, Mapping):
        return {name: fill_placeholders(element, words) for name, element in value.items()}
    return value


def _placeholders(value: object) -> Iterator[str]:
    """Those in every text, but in no name of a mapping, which nothing fills in."""
    if isinstance(value, str):
        yield from _PLACEHOLDER.findall(value)
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from _placeholders(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _placeholders(element)
