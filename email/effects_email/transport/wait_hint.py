"""How long a reply's text asks to wait."""

from __future__ import annotations

import re

HINT_MAX_SECONDS = 6 * 3600.0
_UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT = r"(\d{1,6})\s*(s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b"
_HINT = re.compile(
    rf"(?:try|retry|again|wait|come back|resume|defer(?:red)?|delay(?:ed)?|greylist(?:ed|ing)?|back ?off)"
    rf"[^.;\d]{{0,40}}?{_AMOUNT}|in {_AMOUNT}",
    re.IGNORECASE,
)


def wait_hint(text: str) -> float | None:
    """Seconds that a text such as `please try again in 5 minutes` names, at most 6 hours; None where it names none."""
    found = _HINT.search(text)
    if found is None:
        return None
    amount, unit = [group for group in found.groups() if group is not None]
    return min(float(amount) * _UNIT_SECONDS[unit[0].lower()], HINT_MAX_SECONDS)
