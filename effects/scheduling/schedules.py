"""A schedule as the app declares it: which job, when, and what happens when a slot was missed or runs long."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from effects.arguments import one_of, optional, printable, require, shown, text, whole
from effects.errors import ConfigurationError
from effects.plain_values import require_json
from effects.scheduling.slots import Cron
from effects.text.placeholders import fill_placeholders

CatchUp: TypeAlias = Literal["none", "latest", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]
CATCH_UP: tuple[CatchUp, ...] = ("none", "latest", "all")
OVERLAP: tuple[Overlap, ...] = ("allow", "skip", "queue")

CATCH_UP_MAX = 1000
ON_TIME_SECONDS = 300.0  # a slot that is picked up within this was not missed

_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,99}")
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
PLACEHOLDERS = ("slot", "slot_date", "previous_slot_date")
_RULES = {
    **dict.fromkeys(("name", "cron", "zone"), text),
    "key": optional(text),
    "catch_up": one_of(CATCH_UP),
    "catch_up_max": whole(1, CATCH_UP_MAX),
    "overlap": one_of(OVERLAP),
    "max_attempts": optional(whole(1, 1000)),
}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job that runs on a schedule.

    Args:
        name: lower case, up to 100 characters; names the schedule in every command.
        job_type: name of a registered job type.
        payload: a mapping that converts to the type's payload class. In its strings `{slot}` (ISO 8601),
            `{slot_date}` and `{previous_slot_date}` (the date of the slot before) stand for the slot by
            the schedule's wall clock; another name in braces is refused, unless the job type fills it in.
        cron: five fields (see `effects.scheduling.slots` for what happens when the clocks change).
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
        named = _PLACEHOLDER.findall(self.key)
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
        local = self.times.local(slot)
        previous = self.times.local(self.times.before(slot))
        return {
            "slot": local.isoformat(),
            "slot_date": local.date().isoformat(),
            "previous_slot_date": previous.date().isoformat(),
        }
