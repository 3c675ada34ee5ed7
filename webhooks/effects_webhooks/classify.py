"""From what happened to what it means: the one place where an exchange becomes an outcome. Pure."""

from __future__ import annotations

import unicodedata
from typing import Any

from effects.outcome import Done, Outcome, Refused, Retry, Unknown
from effects_webhooks.exchange import Exchange

_REFUSED = ("blocked_address", "bad_url")
_SUCCESS_EXCERPT_CHARS = 512
_EXCERPT_CHARS = 16 * 1024


def classify(exchange: Exchange, *, host: str) -> Outcome:
    """2xx is done. Any other answer, and whatever failed before the request left, is tried again. A request
    that left, even in part, and has no answer is unknown.

    Redirects are answers like any other and are never followed: the body is signed for this address alone.
    """
    detail = describe(exchange, host=host)
    if exchange.status is not None:
        if 200 <= exchange.status <= 299:
            return Done(detail=detail)
        return Retry(f"the endpoint answered {exchange.status}", code=f"http_{exchange.status}", detail=detail)
    code, reason = exchange.failure or "no_answer", exchange.reason or "no answer"
    if exchange.wrote:
        return Unknown(reason, code=code, detail=detail)
    if code in _REFUSED:
        return Refused(reason, code=code, detail=detail)
    return Retry(reason, code=code, detail=detail)


def describe(exchange: Exchange, *, host: str) -> dict[str, Any]:
    """What the attempt log keeps: no path, no query, no header, nothing of our own body.

    `sent` is `not_sent`, `sent_no_answer` or `answered`; `ms` has the time of each phase.
    """
    answered = exchange.status is not None
    detail: dict[str, Any] = {
        "sent": "answered" if answered else "sent_no_answer" if exchange.wrote else "not_sent",
        "host": host,
        "ms": {phase: round(seconds * 1000, 1) for phase, seconds in exchange.took.items()},
    }
    if answered:
        success = 200 <= (exchange.status or 0) <= 299
        detail["status"] = exchange.status
        detail["connection"] = "new" if exchange.connected else "reused"
        detail["response"] = excerpt(exchange.body, _SUCCESS_EXCERPT_CHARS if success else _EXCERPT_CHARS)
        if exchange.body_end != "whole":
            detail["response_end"] = exchange.body_end
    return detail


def excerpt(body: bytes, chars_max: int = _EXCERPT_CHARS) -> str:
    """A stranger's bytes as text that is safe to show: whatever is not printable comes as an escape.

    That covers control characters (a terminal would obey them), bidirectional ones (they reorder what is
    read) and NUL (PostgreSQL does not store it).
    """
    text = body.decode("utf-8", errors="backslashreplace")
    shown = "".join(char if _plain(char) else char.encode("unicode_escape").decode() for char in text[:chars_max])
    return shown[:chars_max]


def _plain(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "\n" or (category[0] != "C" and category not in ("Zl", "Zp"))
