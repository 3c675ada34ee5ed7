"""What would follow an answer or a fault, in words: the table of `budgets`, asked by hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

import msgspec

from effects.retry import RetryPolicy
from effects_webhooks.budgets import FAULT_RULES, FULL, SHORT, Overrides, pause_seconds, rule_of
from effects_webhooks.errors import EventInvalid
from effects_webhooks.retry_after import retry_after


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The class of an outcome and what follows. Waits are without jitter, which adds up to 20 %, never less."""

    what: str
    budget: str
    why: str
    tries: int
    next_try_seconds: float | None
    endpoint_rests_seconds: float | None
    retry_after_seconds: float | None


_POLICIES: Mapping[str, RetryPolicy] = {"full": FULL, "short": SHORT}


def explain(
    what: str,
    *,
    hint: str | None = None,
    attempt: int = 1,
    profile: str = "default",
    overrides: Overrides | None = None,
) -> Explanation:
    """What follows attempt number `attempt` that ended so.

    Args:
        what: a status (`429`) or a fault's code (`connect_failed`).
        hint: the answer's Retry-After, in seconds or as a date.

    Raises:
        EventInvalid: `what` is neither; lists the codes.
    """
    status = int(what) if what.isascii() and what.isdecimal() else None
    if (status is not None and not 100 <= status <= 599) or (status is None and what not in FAULT_RULES):
        raise EventInvalid(f"{what!r} is no status of 100 to 599 and none of {', '.join(FAULT_RULES)}")
    wait = retry_after(hint, time.time())
    rule = rule_of(status, what, profile=profile, overrides=overrides, hinted=wait is not None)
    obeyed = wait if rule.hint else None
    policy = _POLICIES.get(rule.budget)
    again = policy is not None and attempt < policy.max_attempts
    return Explanation(
        what=what,
        budget=rule.budget,
        why=rule.why,
        tries=policy.max_attempts if policy else 1,
        next_try_seconds=policy.delay_seconds(attempt, at_least=obeyed, draw=lambda: 0.0) if policy and again else None,
        endpoint_rests_seconds=pause_seconds(status, rule, wait),
        retry_after_seconds=obeyed,
    )


def parse_since(text: str) -> datetime:
    """A time as people give it: ISO 8601 with a zone.

    Raises:
        EventInvalid: it is none.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise EventInvalid(f"{text!r} is no time with a zone; give one such as 2026-11-21T08:00:00Z")
    return moment
