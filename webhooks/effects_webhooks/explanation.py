"""Explain what would follow a response or a fault, from the table of `retry_rules`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from effects import RetryPolicy
from effects.extend import Explanation, arguments, optional, whole_number
from effects_webhooks.classify import retry_after
from effects_webhooks.errors import EventInvalid
from effects_webhooks.retry_rules import FAULT_RULES, FULL, SHORT, Overrides, pause_seconds, rule_of


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
