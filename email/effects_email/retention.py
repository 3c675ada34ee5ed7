"""Deletion of messages' contents some days after their end, and of rows past their retention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from effects.extend.arguments import DAY_SECONDS
from effects.extend.rows import delete_page, walk
from effects.extend.sql import Store
from effects_email.tables import retention as table

SET_ASIDE_DAYS = 7  # `effects doctor` warns of a bounce that cannot be read
SIGNED_REQUEST_DAYS = 2  # no request with a token as old as that is taken
LOG_DAYS = 730  # messages sent despite a suppression may be questioned later than the rest


def forget_contents(store: Store, *, keep_seconds: float, dry_run: bool, go_on: Callable[[], bool]) -> int:
    """Forget the content of messages that ended so long ago, page after page, while `go_on()` is true.

    Returns:
        How many messages were forgotten, or would be.
    """
    step = partial(table.forget_content, store, keep_seconds=keep_seconds, dry_run=dry_run)
    return walk(step, go_on=go_on, dry_run=dry_run)


def delete_old_rows(
    store: Store, *, keep_seconds: float, window_days: int, dry_run: bool, go_on: Callable[[], bool]
) -> int:
    """Delete old events of providers, suppressions that are over, soft failures that count no more, old log lines,
    what was set aside unread so long ago, and tokens of requests that are too old to be taken again.

    Args:
        keep_seconds: age of the events that go.
        window_days: soft failures of earlier days count no more, and go.

    Returns:
        How many rows were deleted, or would be (500 of each table at most, then).
    """
    ages = (
        (table.OLD_EVENTS, keep_seconds),
        (table.ENDED_SUPPRESSIONS, 0.0),
        (table.OLD_SOFT_FAILURES, window_days * DAY_SECONDS),
        (table.OLD_SET_ASIDE, SET_ASIDE_DAYS * DAY_SECONDS),
        (table.OLD_SIGNED_REQUESTS, SIGNED_REQUEST_DAYS * DAY_SECONDS),
        (table.OLD_LOG_LINES, LOG_DAYS * DAY_SECONDS),
    )
    steps = (partial(delete_page, store, rows, age_seconds, dry_run=dry_run) for rows, age_seconds in ages)
    return sum(walk(step, go_on=go_on, dry_run=dry_run) for step in steps)
