"""From what happened to what it means: the one place where an exchange becomes an outcome. Pure."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effects.outcome import Done, Outcome, Pause, Refused, Retry, Unknown
from effects.retry import RetryPolicy
from effects_webhooks.budgets import FULL, SHORT, Rule, pause_seconds, rule_of, rule_of_code
from effects_webhooks.exchange import WebhookExchange
from effects_webhooks.retry_after import http_date, retry_after

OURS_SECONDS = 60.0  # until a look at whether our own side is mended
SKEW_SECONDS = 240.0  # verifiers refuse 300; a clock that is so far off is about to refuse everything
_SUCCESS_EXCERPT_CHARS = 512
_EXCERPT_CHARS = 16 * 1024
_HEAD_CHARS = 4 * 1024
CONTROL_HEADER = "webhook-delivery"  # proposed for Standard Webhooks: what the receiver wants, beside its status
CONTROLS = ("abort-message", "disable")
_HIDDEN_HEADERS = (b"set-cookie", b"www-authenticate", b"authorization")


class Terms(msgspec.Struct, frozen=True):
    """How an endpoint's failures are judged: its profile and overrides, and the codes of this job's earlier tries."""

    profile: str = "default"
    overrides: Mapping[str, str] = {}
    earlier: Sequence[str] = ()
    full: RetryPolicy = FULL
    short: RetryPolicy = SHORT


def classify(exchange: WebhookExchange, *, host: str, terms: Terms | None = None) -> Outcome:
    """2xx is done; what follows anything else is in the table of `budgets`. A request that left, even in part,
    and has no answer is unknown, and sent again within the same budgets.

    Tries count against the budget of their own kind: a day of 503 leaves a 404 its whole short budget, and the other
    way round. Redirects are never followed: the body is signed for this address alone.
    """
    terms = terms or Terms()
    detail = describe(exchange, host=host)
    hint = retry_after(exchange.header("retry-after"), exchange.answered_at)
    rule = rule_of(
        exchange.status, exchange.failure, profile=terms.profile, overrides=terms.overrides, hinted=hint is not None
    )
    if rule.budget == "done":
        return Done(detail=detail)
    if (control := _control(exchange)) is not None:
        rule, detail["control"] = _ASKED_TO_STOP, control
    code, reason = _said(exchange)
    if rule.budget == "ours":
        return Pause(OURS_SECONDS, reason, code=code, detail=detail)
    detail["budget"] = rule.budget
    if rule.budget == "none":
        return Unknown(reason, code=code, detail=detail, policy=_ONCE) if _unsure(exchange) else Refused(
            reason, code=code, detail=detail
        )  # fmt: skip
    kind = Unknown if _unsure(exchange) else Retry
    return kind(
        reason,
        code=code,
        detail=detail,
        after_seconds=hint if rule.hint else None,
        pause_seconds=pause_seconds(exchange.status, rule, hint),
        policy=terms.full if rule.budget == "full" else terms.short,
        tries=1 + _counted(rule, terms),
    )


def _unsure(exchange: WebhookExchange) -> bool:
    return exchange.status is None and exchange.wrote


_ONCE = RetryPolicy(max_attempts=1)
_ASKED_TO_STOP = Rule("none", f"the receiver's {CONTROL_HEADER} asks not to try again")


def _control(exchange: WebhookExchange) -> str | None:
    """What a failed answer's `webhook-delivery` asks for: `abort-message`, or `disable` for the whole endpoint.

    Of verified TLS only: anybody between us could write it into a plain answer.
    """
    said = (exchange.header(CONTROL_HEADER) or "").strip().lower()
    return said if exchange.secure and said in CONTROLS else None


def _counted(rule: Rule, terms: Terms) -> int:
    """How many of the earlier tries were of this budget."""
    found = (rule_of_code(code, profile=terms.profile, overrides=terms.overrides) for code in terms.earlier)
    return sum(one.budget == rule.budget for one in found)


def _said(exchange: WebhookExchange) -> tuple[str, str]:
    """Code and words."""
    if exchange.status is not None:
        return f"http_{exchange.status}", f"the endpoint answered {exchange.status}"
    return exchange.failure or "no_answer", exchange.reason or "no answer"


def describe(exchange: WebhookExchange, *, host: str) -> dict[str, Any]:
    """What the attempt log keeps: no path, no query, nothing of our own headers and body.

    `sent` is `not_sent`, `sent_no_answer` or `answered`; `ms` has the time of each phase and of all (`answer` is until
    the first byte of the answer's head and on to its last); `head` and `response` are the answer's, as inert text. A
    receiver whose clock is off by more than 4 minutes gets a `warning`: it refuses signatures at 5.
    """
    answered = exchange.status is not None
    milliseconds = {phase: round(seconds * 1000, 1) for phase, seconds in exchange.took.items()}
    detail: dict[str, Any] = {
        "sent": "answered" if answered else "sent_no_answer" if exchange.wrote else "not_sent",
        "host": host,
        "ms": {**milliseconds, "total": round(sum(exchange.took.values()) * 1000, 1)},
    }
    if answered:
        success = 200 <= (exchange.status or 0) <= 299
        detail["status"] = exchange.status
        detail["connection"] = "new" if exchange.connected else "reused"
        detail["head"] = _head(exchange, _SUCCESS_EXCERPT_CHARS if success else _HEAD_CHARS)
        detail["response"] = excerpt(exchange.body, _SUCCESS_EXCERPT_CHARS if success else _EXCERPT_CHARS)
        if exchange.body_end != "whole":
            detail["response_end"] = exchange.body_end
        detail.update(_skew(exchange))
    return detail


def _head(exchange: WebhookExchange, chars_max: int) -> str:
    """The answer's header lines, without those that are secrets of the receiver's."""
    lines = [
        name.lower() + b": " + (b"(hidden)" if name.lower() in _HIDDEN_HEADERS else _shown(name, value))
        for name, value in exchange.head
    ]
    return excerpt(b"\n".join(lines), chars_max)


def _shown(name: bytes, value: bytes) -> bytes:
    """A Location loses its query: it may hold a token."""
    return value.partition(b"?")[0] if name.lower() == b"location" else value


def _skew(exchange: WebhookExchange) -> dict[str, Any]:
    theirs = http_date(exchange.header("date"))
    if theirs is None or abs(skew := theirs - exchange.answered_at) <= SKEW_SECONDS:
        return {}
    side = "ahead of" if skew > 0 else "behind"
    return {
        "skew_seconds": round(skew),
        "warning": f"the receiver's clock is {abs(skew):.0f} s {side} ours; it may refuse every signature",
    }


def excerpt(body: bytes, chars_max: int = _EXCERPT_CHARS) -> str:
    """A stranger's bytes as text that is safe to show: whatever is not printable comes as an escape.

    That covers control characters (a terminal would obey them), bidirectional ones (they reorder what is
    read) and NUL (PostgreSQL does not store it).
    """
    if not body:
        return ""
    text = body.decode("utf-8", errors="backslashreplace")
    if text.isascii() and text.replace("\n", "").isprintable():  # most are: no look at each character
        return text[:chars_max]
    shown = "".join(char if _plain(char) else char.encode("unicode_escape").decode() for char in text[:chars_max])
    return shown[:chars_max]


def _plain(char: str) -> bool:
    category = unicodedata.category(char)
    return char == "\n" or (category[0] != "C" and category not in ("Zl", "Zp"))
