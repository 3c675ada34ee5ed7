"""The delay that a reply's text requests."""

from __future__ import annotations

import re

HINT_MAX_SECONDS = 6 * 3600.0
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT = r"(\d{1,6})\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b"
_HINT = re.compile(
    rf"(?:try|retry|again|wait|come back|resume|defer(?:red)?|delay(?:ed)?|greylist(?:ed|ing)?|back ?off)"
    rf"[^.;\d]{{0,40}}?{_AMOUNT}|in {_AMOUNT}",
    re.IGNORECASE | re.ASCII,
)


def wait_hint(text: str) -> float | None:
    """Seconds in a text such as `please try again in 5 minutes`, at most 6 hours; None if there are none."""
    hint_match = _HINT.search(text)
    if hint_match is None:
        return None
    amount, unit = [group for group in hint_match.groups() if group is not None]
    return min(float(amount) * _UNIT_SECONDS[unit[0].lower()], HINT_MAX_SECONDS)
