"""What a page says after an action led to it: a closed list, by a word in the address, with a number at most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from effects.text.digits import whole_number
from effects.web.pages import Pages
from effects.web.subject_actions import SUBJECT_ACTIONS
from effects.web.visit import Visit

_DIGITS_MAX = 9
_OF_JOBS = {
    "cancelled": "Cancelled.",
    "cancel_requested": "It is running: asked to stop, and will not be tried again.",
    "due": "It is due now.",
    "requeued": "Requeued: this is the new job.",
    "mark-done": "Recorded as done, on your word.",
    "give-up": "Left unknown.",
    "ignored": "Ignored.",
    "settings": "Saved.",
    "bulk_started": "It has started: a worker carries it out. This page can be left.",
}


def notices(packages: Sequence[Pages]) -> Mapping[str, str]:
    """What is said after each action, by its name."""
    words = {name: text for pages in packages for name, text in pages.notices.items()}
    actions = [*SUBJECT_ACTIONS, *(action for pages in packages for action in pages.actions)]
    return {**_OF_JOBS, **words, **{action.name: action.notice for action in actions}}


def notice(visit: Visit) -> str | None:
    """The sentence about what was just done."""
    text = visit.site.notices.get(visit.query.get("did", ""))
    if text is None or "{n}" not in text:
        return text
    count = whole_number(visit.query.get("n", ""), _DIGITS_MAX)
    return text.replace("{n}", "Some" if count is None else f"{count:,}")
