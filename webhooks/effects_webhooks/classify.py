"""From what happened to what it means: the only place where an exchange becomes an outcome, and is explained. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from effects import Done, Outcome, Pause, Refused, Retry, RetryPolicy, Unknown
from effects.extend.actions import Explanation
from effects.extend.arguments import arguments, optional
from effects.extend.text import escape_unprintable, phases_ms, whole_number
from effects_webhooks.errors import EventInvalid
from effects_webhooks.retry_rules import (
    FAULT_RULES,
    FULL,
    HINT_MAX_SECONDS,
    SHORT,
    Overrides,
    Rule,
    pause_seconds,
    rule_of,
    rule_of_code,
)
from effects_webhooks.transport.exchange import WebhookExchange

_OURS_SECONDS = 60.0  # until a look at whether our own side is fixed
_SKEW_SECONDS = 240.0  # verifiers refuse 300; a clock that is so far off is about to refuse everything
_SUCCESS_EXCERPT_CHARS = 512
_EXCERPT_CHARS = 16 * 1024
_HEAD_CHARS = 4 * 1024
_CONTROL_HEADER = "webhook-delivery"  # proposed for Standard Webhooks: what the receiver wants, beside its status
_CONTROLS = ("abort-message", "disable")
_WAIT = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")  # not \d, which takes the digits of every script
_HINT_CHARS_MAX = 64
_HIDDEN_HEADERS = (b"set-cookie", b"www-authenticate", b"authorization")


class RetryContext(msgspec.Struct, frozen=True):
    """How an endpoint's failures are judged: its profile and overrides, and the codes of this job's earlier tries."""

    profile: str = "default"
    overrides: Mapping[str, str] = {}
    earlier: Sequence[str] = ()
    full: RetryPolicy = FULL
    short: RetryPolicy = SHORT


def _as_it_is(answer: bytes, *, is_cut: bool = False) -> bytes:
    return answer


def classify(
    exchange: WebhookExchange,
    *,
    host: str,
    context: RetryContext | None = None,
    strike: Callable[..., bytes] = _as_it_is,
) -> Outcome:
    """2xx is done; what follows anything else is in the table of `retry_rules`. A request that left, even in part,
    and has no answer is unknown, and sent again within the same retry class.

    Each retry class counts its own tries: a day of 503 leaves a 404 all tries of the short class, and the other
    way round. Redirects are never followed: the body is signed for this address alone. `strike` takes out of the answer
    what the request had of secrets (`echoes.striking`).
    """
    context = context or RetryContext()
    detail = describe(exchange, host=host, strike=strike)
    if exchange.status is not None and 200 <= exchange.status <= 299:
        return Done(detail=detail)
    hint = retry_after(exchange.header("retry-after"), exchange.answered_at)
    code, reason = _code_and_reason(exchange)
    rule = rule_of(
        exchange.status,
        code,
        profile=context.profile,
        overrides=context.overrides,
        hinted=hint is not None,
    )
    if (control := control_of(exchange)) is not None:
        rule, detail["control"] = _ASKED_TO_STOP, control
    if rule.retry_class == "ours":
        return Pause(_OURS_SECONDS, reason, code=code, detail=detail)
    detail["retry_class"] = rule.retry_class
    if rule.retry_class == "none":
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
        policy=context.full if rule.retry_class == "full" else context.short,
        tries=1 + _counted(rule, context),
    )


def _unsure(exchange: WebhookExchange) -> bool:
    return exchange.status is None and exchange.wrote


_ONCE = RetryPolicy(max_attempts=1)
_ASKED_TO_STOP = Rule("none", f"the receiver's {_CONTROL_HEADER} requests no retry")


def control_of(exchange: WebhookExchange) -> str | None:
    """The request of a failed response's `webhook-delivery`: `abort-message`, or `disable` for the whole endpoint.

    Of verified TLS only: anybody between us could write it into a plain answer.
    """
    requested = (exchange.header(_CONTROL_HEADER) or "").strip().lower()
    return requested if exchange.secure and requested in _CONTROLS else None


def _counted(rule: Rule, context: RetryContext) -> int:
    """How many of the earlier tries were of this retry class."""
    rules = (rule_of_code(code, profile=context.profile, overrides=context.overrides) for code in context.earlier)
    return sum(earlier_rule.retry_class == rule.retry_class for earlier_rule in rules)


def _code_and_reason(exchange: WebhookExchange) -> tuple[str, str]:
    """Code and words. A fault of ours kept nothing from leaving where something left."""
    if exchange.status is not None:
        return f"http_{exchange.status}", f"the endpoint answered {exchange.status}"
    if exchange.wrote and rule_of(None, exchange.failure).retry_class == "ours":
        return "no_answer", "the request left and has no answer"
    return exchange.failure or "no_answer", exchange.reason or "no answer"


def describe(exchange: WebhookExchange, *, host: str, strike: Callable[..., bytes] = _as_it_is) -> dict[str, Any]:
    """What the attempt log keeps: no path, no query, nothing of our own headers and body.

    `sent` is `not_sent`, `sent_no_answer` or `answered`; `ms` has the time of each phase and of all (`answer` is until
    the first byte of the answer's head and on to its last); `head` and `response` are the answer's, as inert text;
    `unread` is what of its head was dropped because it cannot be read, and how often. A receiver whose clock is off by
    more than 4 minutes gets a `warning`: it refuses signatures at 5.
    """
    answered = exchange.status is not None
    detail: dict[str, Any] = {
        "sent": "answered" if answered else "sent_no_answer" if exchange.wrote else "not_sent",
        "host": host,
        "ms": phases_ms(exchange.took),
    }
    if answered:
        success = 200 <= (exchange.status or 0) <= 299
        detail["status"] = exchange.status
        detail["connection"] = "new" if exchange.connected else "reused"
        is_cut = exchange.body_end != "whole" or len(exchange.body) >= _EXCERPT_CHARS
        body = strike(exchange.body, is_cut=is_cut)
        detail["head"] = excerpt(strike(_head(exchange)), _SUCCESS_EXCERPT_CHARS if success else _HEAD_CHARS)
        detail["response"] = excerpt(body, _SUCCESS_EXCERPT_CHARS if success else _EXCERPT_CHARS)
        if exchange.unread:
            detail["unread"] = dict(exchange.unread)
        if exchange.body_end != "whole":
            detail["response_end"] = exchange.body_end
        detail.update(_skew(exchange))
    return detail


def _head(exchange: WebhookExchange) -> bytes:
    """The answer's header lines, without those that are secrets of the receiver's."""
    lines = [
        name.lower() + b": " + (b"(hidden)" if name.lower() in _HIDDEN_HEADERS else _shown(name, value))
        for name, value in exchange.head
    ]
    return b"\n".join(lines)


def _shown(name: bytes, value: bytes) -> bytes:
    """A Location loses its query: it may hold a token."""
    return value.partition(b"?")[0] if name.lower() == b"location" else value


def _skew(exchange: WebhookExchange) -> dict[str, Any]:
    theirs = http_date(exchange.header("date"))
    if theirs is None or abs(skew := theirs - exchange.answered_at) <= _SKEW_SECONDS:
        return {}
    side = "ahead of" if skew > 0 else "behind"
    return {
        "skew_seconds": round(skew),
        "warning": f"the receiver's clock is {abs(skew):.0f} s {side} ours; it may refuse every signature",
    }


def excerpt(body: bytes, chars_max: int = _EXCERPT_CHARS) -> str:
    """A stranger's bytes as text that is safe to show: whatever is not printable comes as an escape."""
    return escape_unprintable(body.decode("utf-8", errors="backslashreplace"), chars_max)


# -- times in headers -----------------------------------------------------------------------------------------------


def retry_after(value: str | None, now: float) -> float | None:
    """Seconds to wait by a Retry-After header (RFC 9110 §10.2.3); None where it is absent, negative, past or malformed.

    Args:
        value: `120`, or `Fri, 31 Dec 2027 23:59:59 GMT` in any of the three forms of HTTP dates. Fractions,
            which the standard does not know, are rounded up.
        now: seconds since 1970, by which a date is turned into a wait.

    0 is an answer too: there is no need to wait. At most 24 hours: a peer cannot put an event off forever.
    """
    text = (value or "").strip()
    if not text or len(text) > _HINT_CHARS_MAX:
        return None
    wait = math.ceil(float(text)) if _WAIT.fullmatch(text) else _until(text, now)
    return min(float(wait), HINT_MAX_SECONDS) if wait is not None and wait >= 0 else None


def http_date(value: str | None) -> float | None:
    """An HTTP date as seconds since 1970; None where it is absent or malformed."""
    text = (value or "").strip()
    if not text or len(text) > _HINT_CHARS_MAX or not text.isascii():
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


class DeliveryExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """The class of an outcome and what follows. Waits are without jitter, which adds up to 20 %, never less."""

    what: str
    retry_class: str
    why: str
    tries: int
    next_try_seconds: float | None
    endpoint_rests_seconds: float | None
    retry_after_seconds: float | None


_POLICIES: Mapping[str, RetryPolicy] = {"full": FULL, "short": SHORT}


@arguments.checked(
    EventInvalid,
    what=arguments.text,
    hint=optional(arguments.text),
    attempt=arguments.whole(1, 1000),
    profile=arguments.text,
    overrides=optional(arguments.mapping),
)
def explain(
    what: str,
    *,
    hint: str | None = None,
    attempt: int = 1,
    profile: str = "default",
    overrides: Overrides | None = None,
) -> DeliveryExplanation:
    """What follows attempt number `attempt` that ended so.

    Args:
        profile: the endpoint's retry profile; an unknown one counts as default.
        overrides: the endpoint's own rules, by code.
        what: a status (`429`) or a fault's code (`connect_failed`).
        hint: the answer's Retry-After, in seconds or as a date.

    Raises:
        EventInvalid: `what` is neither; lists the codes.
    """
    status = whole_number(what)
    if (status is not None and not 100 <= status <= 599) or (status is None and what not in FAULT_RULES):
        raise EventInvalid(f"{arguments.shown(what)} is no status of 100 to 599 and none of {', '.join(FAULT_RULES)}")
    wait = retry_after(hint, time.time())
    rule = rule_of(status, what, profile=profile, overrides=overrides, hinted=wait is not None)
    obeyed = wait if rule.hint else None
    policy = _POLICIES.get(rule.retry_class)
    again = policy is not None and attempt < policy.max_attempts
    return DeliveryExplanation(
        what=what,
        retry_class=rule.retry_class,
        why=rule.why,
        tries=policy.max_attempts if policy else 1,
        next_try_seconds=policy.delay_seconds(attempt, at_least=obeyed, draw=lambda: 0.0) if policy and again else None,
        endpoint_rests_seconds=pause_seconds(status, rule, wait),
        retry_after_seconds=obeyed,
    )


def explanation_of(error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
    """Explain the response or the fault of a recorded attempt; None where it is neither."""
    status = detail.get("status")
    if status is None and error_code not in FAULT_RULES:
        return None
    explanation = explain(str(status) if status is not None else error_code or "")
    tries = f"up to {explanation.tries} attempts" if explanation.tries > 1 else "no further attempt"
    return Explanation(meaning=explanation.why, follows=f"retry class {explanation.retry_class}: {tries}")
