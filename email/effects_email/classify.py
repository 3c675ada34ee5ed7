"""From a transport's verdicts to the job's outcome. The transport's own tables classify replies.

    verdict             outcome                                        costs an attempt
    accepted            done, whatever bounces later                   yes
    retry               tried again: 1, 5, 15, 30, 60, 120, 240 min,   yes
                        then every 4 h, for 48 h, at most 25 times
    refused_recipient   dead; added to the suppression list            yes
    refused_message     dead; the address is not to blame              yes
    throttle            its limit key pauses, then others come first   no
    transport_down      the whole transport pauses: 15 s to 5 min      no
    config              it waits 1 min (5 at the login) and others     no
                        are tried; the second in a row: the whole
                        transport pauses 5 min
    unknown             by the message's `on_unknown`                yes

In a message to a group each recipient has its own verdict. Those that were accepted are never written to again; those
that may be served later are tried again, with the same bytes; the message is done when none of these is left.

What a refusal of a message weighs beside the transport's others is decided by `refusals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from effects import Done, Fixed, FixedSchedule, Outcome, Pause, Refused, Retry, RetryPolicy, Unknown
from effects.extend import DAY_SECONDS, phases_ms
from effects_email.refusals import Weight, is_of_message
from effects_email.transport.base import Kind, SendResult, Verdict
from effects_email.transport.replies.verdicts import reply_text

RETRY = RetryPolicy(
    backoff=FixedSchedule((60, 300, 900, 1800, 3600, 7200, 14_400)),
    max_attempts=25,
    max_age_seconds=48 * 3600.0,
    max_delay_seconds=6 * 3600.0,
    jitter=0.2,
)
# With a key the provider recognises repeats, for half of the key's life.
KEYED = RetryPolicy(
    backoff=FixedSchedule((60, 120, 300, 600, 1800, 3600)), max_attempts=25, max_age_seconds=48 * 3600.0
)
# A provider's search knows a message some minutes after it took it.
ASK_AGAIN = RetryPolicy(backoff=Fixed(600), max_attempts=25, max_age_seconds=7 * DAY_SECONDS)
UNKNOWN_AFTER_SECONDS = 900.0  # time for a receiver that recognises duplicates by Message-ID to see the first
THROTTLE_SECONDS = 60.0
CONFIG_SECONDS = 300.0
HOLD_SECONDS = 60.0  # a message that waits for another to be tried
BEHIND_SECONDS = 5.0  # after a throttle others come first
PASSED_ON = "passed_on"  # the outcome's word where the next transport of a list is tried
FINAL: tuple[Kind, ...] = ("accepted", "refused_recipient", "refused_message")


def outcome_of(
    send_result: SendResult,
    *,
    down_seconds: float,
    others_accepted: bool,
    keyed: bool,
    detail: Mapping[str, Any],
    weight: Weight = "as_said",
) -> Outcome:
    """What follows from a send.

    Args:
        weight: of a refusal, beside what else the transport does.
        down_seconds: how long a transport that is down should rest.
        others_accepted: an earlier try served recipients of this message.
        keyed: the transport knows idempotency keys, and this message's is still good.
    """
    verdict = leading(send_result)
    said = {**detail, "outcome": outcome_word(verdict, weight)}
    if weight != "as_said":
        return _weighed(verdict, weight, said)
    match verdict.kind:
        case "accepted":
            return Done(detail=said)
        case "retry":
            return Retry(verdict.reason, code=verdict.code, after_seconds=verdict.after_seconds, detail=said)
        case "throttle":
            seconds = verdict.after_seconds or THROTTLE_SECONDS
            return Pause(seconds, verdict.reason, code=verdict.code, detail=said, after_seconds=BEHIND_SECONDS)
        case "transport_down":
            seconds = max(down_seconds, verdict.after_seconds or 0.0)
            return Pause(seconds, verdict.reason, code=verdict.code, detail=said, parent=True)
        case "config":
            return Pause(CONFIG_SECONDS, verdict.reason, code=verdict.code, detail=said, parent=True)
        case "unknown":
            if keyed:  # the same key again is safe under any policy
                return Unknown(
                    verdict.reason, code=verdict.code, after_seconds=0.0, detail=said, on_unknown="repeat",
                    policy=KEYED,
                )  # fmt: skip
            return Unknown(verdict.reason, code=verdict.code, detail=said)
        case "refused_recipient" | "refused_message":
            if others_accepted:  # some have it: the message is sent, and each recipient's record tells to whom
                return Done(detail=said)
            return Refused(verdict.reason, code=verdict.code, detail=said)


def outcome_word(verdict: Verdict, weight: Weight) -> str:
    """What `effects_sent_emails.outcome` and the attempt log call it."""
    return "config" if weight == "rest" else verdict.kind


def _weighed(verdict: Verdict, weight: Weight, said: Mapping[str, Any]) -> Outcome:
    """The outcome of a refusal that is not the message's fault."""
    if weight == "own":
        reason = f"{verdict.reason}; other messages pass, so this one is at fault"
        return Retry(reason, code=verdict.code, after_seconds=verdict.after_seconds, detail=said)
    if weight == "hold":
        wait = HOLD_SECONDS if is_of_message(verdict) else CONFIG_SECONDS
        return Pause(0.0, verdict.reason, code=verdict.code, detail=said, after_seconds=wait)
    reason = f"{verdict.reason}; several messages in a row, and none accepted between"
    return Pause(CONFIG_SECONDS, reason, code=verdict.code, detail=said, parent=True, after_seconds=HOLD_SECONDS)


def without_strangers(send_result: SendResult) -> SendResult:
    """A fault of ours that met one recipient, where the same message was taken for another, is that recipient's."""
    verdicts = send_result.recipients
    if not any(verdict.kind == "accepted" for verdict in verdicts.values()):
        return send_result
    own = {
        address: msgspec.structs.replace(verdict, kind="refused_recipient", after_seconds=None)
        if verdict.kind == "config" else verdict
        for address, verdict in verdicts.items()
    }  # fmt: skip
    return msgspec.structs.replace(send_result, recipients=own)


# Of several recipients' verdicts, the first of these that occurs is the message's: what is open comes before what is
# settled, and what may have happened before all.
_ORDER: tuple[Kind, ...] = (
    "unknown", "config", "transport_down", "throttle", "retry", "accepted", "refused_message", "refused_recipient",
)  # fmt: skip


def leading(send_result: SendResult) -> Verdict:
    """The message's verdict, of those of its recipients."""
    if len(send_result.recipients) <= 1:
        return send_result.verdict
    return min(send_result.recipients.values(), key=lambda verdict: _ORDER.index(verdict.kind))


def detail_of(send_result: SendResult, transport: str) -> dict[str, Any]:
    """What the attempt log keeps: stage, codes, the peer's words without addresses, phases."""
    verdict = leading(send_result)
    reply = verdict.reply
    detail: dict[str, Any] = {"transport": transport, "provider_id": send_result.provider_id, "peer": send_result.peer,
                             "tls": send_result.tls}  # fmt: skip
    if send_result.phases:
        detail["ms"] = phases_ms(send_result.phases)
    if reply is not None:
        detail |= {"stage": reply.stage, "reply_code": reply.code, "enhanced": reply.enhanced, "about": verdict.about}
        detail["reply"] = reply_text(reply)
    return {name: value for name, value in detail.items() if value not in (None, {})}
