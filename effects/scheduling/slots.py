"""When a schedule is due: cron text in a time zone → instants. Pure.

`cronsim` reads the text (Vixie cron's five fields, with `L`, `LW` and `#`) and walks the wall clock; what
happens where the wall clock jumps is decided here, in the way of Debian's cron:

- A **fixed** time (neither the minute nor the hour begins with `*`) runs once a day. In the hour that is
  skipped in spring it runs at the first minute after the jump, and several such times run there together,
  once. In the hour that is repeated in autumn it runs the first time only.
- A **wildcard** time (`*/15 * * * *`, `0 * * * *`, `30 */2 * * *`) goes by elapsed time: it runs at every
  instant whose wall clock matches, so not at all in the skipped hour and twice in the repeated one.

A slot is named by its instant, in UTC, a whole minute.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from effects.errors import ConfigurationError

_FIELDS = {
    "minute": "0 to 59", "hour": "0 to 23", "day-of-month": "1 to 31", "month": "1 to 12, or JAN to DEC",
    "day-of-week": "0 to 7, or SUN to SAT",
}  # fmt: skip

_MINUTE = timedelta(minutes=1)
_EARLIEST = datetime(2, 1, 1, tzinfo=UTC)  # no slot is looked for before: there would be no time to go back
_SHIFT_MAX = timedelta(hours=3)  # no zone has turned its clock back by more since zones have rules
_WINDOWS = tuple(timedelta(hours=1) * 4**power for power in range(11))  # 1 h … 120 years


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
