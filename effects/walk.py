"""Walking a table a page at a time, as every deletion by age does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

PAUSE_SECONDS_MAX = 0.05


class Page(msgspec.Struct, frozen=True):
    """The result of one step. `cursor` is where the next continues; None at the end of the walk."""

    taken: int
    cursor: Any = None


def walk(step: Callable[[Any], Page], *, go_on: Callable[[], bool], dry_run: bool = False) -> int:
    """Take page after page until the last, or until `go_on` returns False, which is called before each.

    After a page from which something was deleted, others have the database for as long as it took (at most 50 ms).

    Args:
        step: given the cursor (None for the first page), deletes or counts one page.
        dry_run: `step` only counts.

    Returns:
        How many rows the steps took.
    """
    taken, cursor = 0, None
    while go_on():
        began = time.monotonic()
        page = step(cursor)
        taken += page.taken
        if page.cursor is None:
            break
        cursor = page.cursor
        if page.taken and not dry_run:
            threading.Event().wait(min(PAUSE_SECONDS_MAX, time.monotonic() - began))
    return taken
