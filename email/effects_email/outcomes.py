"""From what a transport says to what becomes of the job. The transport's own tables say what a reply means.

    verdict             outcome                                        costs an attempt
    accepted            done, whatever happens later                   yes
    retry               tried again: 1, 5, 15, 30, 60, 120, 240 min,   yes
                        then every 4 h, for 48 h, at most 25 times
    refused_recipient   dead; the suppression list learns of it        yes
    refused_message     dead; the address is not to blame              yes
    throttle            its limit key rests                            no
    transport_down      the whole transport rests: 15 s to 5 min       no
    config              the whole transport rests: 5 min               no
    unknown             as the message's `on_unknown` says             yes

In a message to a group each recipient has its own verdict. Those that were accepted are never written to again; those
that may be served later are tried again, with the same bytes; the message is done when none of these is left.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from effects.outcome import Done, Outcome, Pause, Refused, Retry, Unknown
from effects.redact import HIDDEN
from effects.retry import DAY_SECONDS, Fixed, Listed, RetryPolicy
from effects_email.transport.base import Dispatch, Kind, Verdict

RETRY = RetryPolicy(
    backoff=Listed((60, 300, 900, 1800, 3600, 7200, 14_400)),
    max_attempts=25,
    max_age_seconds=48 * 3600.0,
    max_delay_seconds=6 * 3600.0,
    jitter=0.2,
)
# With a key the provider tells doubles apart; half of the key's life ends it.
KEYED = RetryPolicy(backoff=Listed((60, 120, 300, 600, 1800, 3600)), max_attempts=25, max_age_seconds=48 * 3600.0)
# A provider's search knows a message some minutes after it took it.
ASK_AGAIN = RetryPolicy(backoff=Fixed(600), max_attempts=25, max_age_seconds=7 * DAY_SECONDS)
UNKNOWN_AFTER_SECONDS = 900.0  # a receiver that tells doubles apart by their Message-ID gets time to see the first
THROTTLE_SECONDS = 60.0
CONFIG_SECONDS = 300.0
REPLY_CHARS_MAX = 512
FINAL: tuple[Kind, ...] = ("accepted", "refused_recipient", "refused_message")
_ADDRESS = re.compile(r"[^\s<>@,;:\"']+@[^\s<>@,;:\"']+")


def outcome_of(
    dispatch: Dispatch, *, down_seconds: float, others_accepted: bool, keyed: bool, detail: Mapping[str, Any]
) -> Outcome:
    """What follows from a send.

    Args:
        down_seconds: how long a transport that is down should rest.
        others_accepted: an earlier try served recipients of this message.
        keyed: the transport knows idempotency keys, and this message's is still good.
    """
    verdict = _leading(dispatch)
    said = {**detail, "outcome": verdict.kind}
    match verdict.kind:
        case "accepted":
            return Done(detail=said)
        case "retry":
            return Retry(verdict.reason, code=verdict.code, after_seconds=verdict.after_seconds, detail=said)
        case "throttle":
            seconds = verdict.after_seconds or THROTTLE_SECONDS
            return Pause(seconds, verdict.reason, code=verdict.code, detail=said)
        case "transport_down":
            seconds = max(down_seconds, verdict.after_seconds or 0.0)
            return Pause(seconds, verdict.reason, code=verdict.code, detail=said, parent=True)
        case "config":
            return Pause(CONFIG_SECONDS, verdict.reason, code=verdict.code, detail=said, parent=True)
        case "unknown":
            if keyed:  # the same key again is safe, whatever the message's policy
                return Unknown(
                    verdict.reason, code=verdict.code, after_seconds=0.0, detail=said, on_unknown="repeat",
                    policy=KEYED,
                )  # fmt: skip
            return Unknown(verdict.reason, code=verdict.code, detail=said)
        case "refused_recipient" | "refused_message":
            if others_accepted:  # some have it: the message is out, and the record of each recipient says who
                return Done(detail=said)
            return Refused(verdict.reason, code=verdict.code, detail=said)


# Of several recipients' verdicts, the first of these that occurs is the message's: what is open comes before what is
# settled, and what may have happened before all.
_ORDER: tuple[Kind, ...] = (
    "unknown", "config", "transport_down", "throttle", "retry", "accepted", "refused_message", "refused_recipient",
)  # fmt: skip


def _leading(dispatch: Dispatch) -> Verdict:
    if len(dispatch.recipients) <= 1:
        return dispatch.verdict
    return min(dispatch.recipients.values(), key=lambda verdict: _ORDER.index(verdict.kind))


def detail_of(dispatch: Dispatch, transport: str) -> dict[str, Any]:
    """What the attempt log keeps: stage, codes, the peer's words without addresses, phases."""
    verdict = _leading(dispatch)
    reply = verdict.reply
    found: dict[str, Any] = {"transport": transport, "provider_id": dispatch.provider_id, "peer": dispatch.peer,
                             "tls": dispatch.tls, "phases": dict(dispatch.phases)}  # fmt: skip
    if reply is not None:
        found |= {"stage": reply.stage, "reply_code": reply.code, "enhanced": reply.enhanced}
        found["reply"] = _ADDRESS.sub(HIDDEN, reply.text[:REPLY_CHARS_MAX]) or None
    return {name: value for name, value in found.items() if value not in (None, {})}
