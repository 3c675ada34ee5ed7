"""Retry-After by RFC 9110 §10.2.3: whole seconds, or a date. What cannot be read is as if it were not there."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from effects_webhooks.budgets import HINT_MAX_SECONDS

_SECONDS = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")  # not \d, which takes the digits of every script
_CHARS_MAX = 64


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header; None where it is absent, negative, past or malformed.

    Args:
        value: `120`, or `Fri, 31 Dec 2027 23:59:59 GMT` in any of the three forms of HTTP dates. Fractions,
            which the standard does not know, are rounded up.
        now: seconds since 1970, by which a date is turned into a wait.

    0 is an answer too: there is no need to wait. At most 24 hours: a peer cannot put an event off for ever.
    """
    text = (value or "").strip()
    if not text or len(text) > _CHARS_MAX:
        return None
    wait = math.ceil(float(text)) if _SECONDS.fullmatch(text) else _until(text, now)
    return min(float(wait), HINT_MAX_SECONDS) if wait is not None and wait >= 0 else None


def http_date(value: str | None) -> float | None:
    """An HTTP date as seconds since 1970; None where it is absent or malformed."""
    text = (value or "").strip()
    if not text or len(text) > _CHARS_MAX or not text.isascii():
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return _asctime(text)


def _asctime(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _until(text: str, now: float) -> float | None:
    moment = http_date(text)
    return None if moment is None else moment - now
