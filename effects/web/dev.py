"""What `effects dev` adds to the dashboard: a clock that is moved, and the inboxes of packages.

A package offers its inbox by an entry point `effects.dev`: a function of the app and a private folder of its own. It
replaces all by which its jobs would leave this machine, whatever the settings say, and returns the pages that show what
has come instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from effects.app.effects import Effects
from effects.errors import EnqueueError
from effects.kit.importing import entry_points
from effects.kit.moments import moment
from effects.kit.process import private_file
from effects.kit.text.unsafe import whole_number
from effects.kit.text.wording import duration
from effects.web.exchange import PageAnswer
from effects.web.pages import Pages, notice
from effects.web.routes import NavigationEntry, PageRoute
from effects.web.visit import Visit

GROUP = "effects.dev"
HOUR_SECONDS, DAY_SECONDS = 3_600, 86_400
AHEAD_MAX_SECONDS = 3_650 * DAY_SECONDS
STEPS = {"1 hour": HOUR_SECONDS, "6 hours": 6 * HOUR_SECONDS, "1 day": DAY_SECONDS, "3 days": 3 * DAY_SECONDS,
         "7 days": 7 * DAY_SECONDS}  # fmt: skip
Inbox: TypeAlias = Callable[[Effects, Path], Pages]


class DevClock:
    """How far the dev worker's clock is ahead of the database's: kept in a file, so that it never goes back."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def ahead_seconds(self) -> int:
        """0 until it is moved."""
        try:
            return whole_number(self.file.read_text(encoding="ascii").strip()) or 0
        except (OSError, ValueError):
            return 0

    def move(self, seconds: int) -> None:
        """Move it forward. The worker that runs has to start again by it.

        Raises:
            EnqueueError: not forward, or further than ten years in all.
        """
        ahead = self.ahead_seconds + seconds
        if seconds <= 0 or ahead > AHEAD_MAX_SECONDS:
            raise EnqueueError("the clock goes forward only, and ten years at most")
        with private_file(self.file) as file:
            file.write(f"{ahead}\n".encode())


def dev_pages(app: Effects, folder: Path, clock: DevClock) -> list[Pages]:
    """The page of the clock and the inboxes of installed packages, all under one heading.

    From here on no job of theirs leaves this machine.
    """
    inboxes = []
    for entry in entry_points(GROUP):
        own = folder / entry.name
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        inboxes.append(entry.load()(app, own))
    entries = list(chain.from_iterable(pages.navigation for pages in inboxes))
    desk = Pages(
        name="dev", label="Development", package="effects.web",
        navigation=(NavigationEntry("dev", "Clock", "k"), *entries),
        routes=(
            PageRoute("dev", ("GET",), "/dev", partial(_desk, clock, entries), role="admin", personal=False),
            PageRoute("dev_move", ("POST",), "/dev/clock", partial(_move, clock), role="admin", personal=False,
                      acts=True),
        ),
        notices={"dev_move": "The clock is moved. The worker starts again by it."},
    )  # fmt: skip
    return [desk, *(replace(pages, navigation=()) for pages in inboxes)]


def _desk(clock: DevClock, entries: Sequence[NavigationEntry], visit: Visit) -> PageAnswer:
    """What the clock says, how it is moved, and what there is to look at."""
    with visit.app.store.read() as connection:
        clock_time = moment(visit.app.store.now(connection))
    return visit.page(
        "dev.html", clock_time=clock_time, ahead=words_ahead(clock), steps=STEPS, entries=entries, notice=notice(visit)
    )


def _move(clock: DevClock, visit: Visit) -> PageAnswer:
    hours = whole_number(visit.form.get("hours", "")) or 0
    clock.move(STEPS.get(visit.form.get("by", ""), hours * HOUR_SECONDS))
    return visit.redirect("dev", did="dev_move")


def words_ahead(clock: DevClock) -> str:
    """Such as `3 days ahead`."""
    ahead = clock.ahead_seconds
    return f"{duration(ahead)} ahead" if ahead else "as the database's"
