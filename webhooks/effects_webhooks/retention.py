"""Deletion of events that no delivery needs any more; from then on an event's key may be used again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from effects.extend import Store, walk
from effects_webhooks.tables.retention import prune_page


def prune_events(store: Store, *, keep_seconds: float, dry_run: bool, go_on: Callable[[], bool]) -> int:
    """Delete events older than `keep_seconds` all of whose deliveries are gone, page after page.

    Returns:
        How many were deleted, or would be.
    """
    step = partial(prune_page, store, keep_seconds=keep_seconds, dry_run=dry_run)
    return walk(step, go_on=go_on, dry_run=dry_run)
