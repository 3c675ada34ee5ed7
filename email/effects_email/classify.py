"""From a transport's verdicts to the job's outcome. The transport's own tables classify replies.

    verdict             outcome                                        costs an attempt
    accepted            done, whatever bounces later                   yes
    retry               tried again: 1, 5, 15, 30, 60, 120, 240 min,   yes
                        then every 4 h, for 48 h, at most 25 times
    refused_recipient   dead; added to the suppression list            yes
    refused_message     dead; the address is not to blame              yes
    throttle            its limit key pauses, then others come first   no
    transport_down      the whole transport pauses: 15 s to 5 min      no
    config, of a login  the whole transport pauses 1, 2, 5, then       no
    or a certificate    15 min; after each, one message tries it
    config, other       it waits 1 min and others are tried; the       no
                        second in a row: the transport pauses 5 min
    unknown             by the message's `on_unknown`                yes

In a message to a group each recipient has its own verdict. Those that were accepted are never written to again; those
that may be served later are tried again, with the same bytes; the message is done when none of these is left.

Whose fault a refusal is shows what else the transport does: one is its message's, many alike are the transport's.

    verdict                              alike in a row, nothing taken between     then
    our login or a certificate           1 message, to whomever                    the transport rests
    another fault of ours (config)       1 message                                 it waits; others are tried
                                         2 messages                                the transport rests
    refused, whatever the words say      5 messages                                the transport rests
    refused, known to be the address's   20 messages                               the transport rests

Who rests the transport and who waits uses up no try. A message that was held back and is refused again after the
transport has taken another one is at fault itself: that counts as a try. Before there is a message, and where a
provider refuses our key, others that pass only show that this worker's configuration is wrong and another's is not:
that costs no try. When refusals become the transport's fault, what they had put on the suppression list is taken back.

Counted in the database, for all workers (`tables.transports`), in its own transaction before the outcome is known:
a crash between leaves one refusal counted, which costs nothing. What this process's transport took before it counts at
once (`registry.Takings`), what that of another took with its outcome.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from effects import (
    Done,
    Effects,
    Fixed,
    FixedSchedule,
    Outcome,
    Pause,
    Refused,
    Retry,
    RetryPolicy,
    StoreRejected,
    StoreUnavailable,
    Unknown,
)
from effects.extend.arguments import DAY_SECONDS
from effects.extend.process import own_logger
from effects.extend.text import phases_ms
from effects_email.message.address import address_digest
from effects_email.suppression import take_back
from effects_email.tables import transports as table
from effects_email.transport.base import Kind, Reply, SendResult, Stage, Verdict
from effects_email.transport.replies.verdicts import reply_text, words_of

OURS_MESSAGES, ALIKE_MESSAGES, ADDRESS_MESSAGES = 2, 5, 20
# A refusal of one of these stages concerns a message; before them there is no message.
STAGES: tuple[Stage, ...] = ("mail", "rcpt", "data", "body", "dot", "request")
HELD: tuple[Kind, ...] = ("config", "throttle")
_REFUSED: tuple[Kind, ...] = ("refused_recipient", "refused_message")
# Of a mail server and of a provider: the login, the key or what it may do; of the last two, whatever the message.
_LOGIN_CODES = (525, 530, 534, 535, 538, 403, 401, 407)
_KEY_CODES = (401, 407)
_VARIABLE = re.compile(r"\S*[\d*]\S*|[\[(]\S+[\])]")  # ids, numbers, hosts with numbers, and what stood for a name
_log = own_logger("effects.email")

# `as_said`: what the verdict says. `hold`: it waits, others are tried. `rest`: the transport does. `own`: others pass.
Weight: TypeAlias = Literal["as_said", "hold", "rest", "own"]
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
LOGIN_SECONDS = (60.0, 120.0, 300.0, 900.0)  # a login or certificate that is refused, once and again
HOLD_SECONDS = 60.0  # a message that waits for another to be tried
BEHIND_SECONDS = 5.0  # after a throttle others come first
PASSED_ON = "passed_on"  # the outcome's word where the next transport of a list is tried
FINAL: tuple[Kind, ...] = ("accepted", "refused_recipient", "refused_message")
# Of several recipients' verdicts, the first of these that occurs is the message's: what is open comes before what is
# settled, and what may have happened before all.
_ORDER: tuple[Kind, ...] = (
    "unknown", "config", "transport_down", "throttle", "retry", "accepted", "refused_message", "refused_recipient",
)  # fmt: skip


class RefusalRun(msgspec.Struct, frozen=True):
    """What a transport has refused since it last took a message: `messages` in a row, and alike."""

    name: str
    messages: int


def likeness(reply: Reply) -> str:
    """The same for two replies that differ by names, addresses, numbers and ids alone."""
    words = " ".join(_VARIABLE.sub("*", words_of(reply.text)).lower().split())
    return hashlib.sha256(f"{reply.stage} {reply.code} {reply.enhanced} {words}".encode()).hexdigest()[:32]


def enough(verdict: Verdict) -> int:
    """How many messages in a row make such a refusal the transport's."""
    if verdict.kind == "config":
        return OURS_MESSAGES
    return ADDRESS_MESSAGES if verdict.suppress == "hard" else ALIKE_MESSAGES


def weigh(verdict: Verdict, run: RefusalRun, held_in: str | None) -> Weight:
    """Whose fault it is.

    Args:
        held_in: the run in which this message was last held back.
    """
    if is_of_message(verdict) and verdict.kind in HELD and held_in is not None and held_in != run.name:
        return "own"
    if verdict.kind == "throttle" or is_of_login(verdict):
        return "as_said"
    if run.messages >= enough(verdict):
        return "rest"
    return "hold" if verdict.kind == "config" else "as_said"


def is_of_login(verdict: Verdict) -> bool:
    """Whether a fault of ours is one that every message meets: before there is any, or in the login itself."""
    code = verdict.reply.code if verdict.reply is not None else None
    return verdict.kind == "config" and (not is_of_message(verdict) or code in _LOGIN_CODES)


def is_of_message(verdict: Verdict) -> bool:
    """Whether a server said it about a message."""
    reply = verdict.reply
    return reply is not None and reply.code is not None and reply.stage in STAGES and reply.code not in _KEY_CODES


def is_weighed(verdict: Verdict) -> bool:
    """Whether others may show whose fault it is: a server's word on a message that lasts, or a fault of ours."""
    return is_of_message(verdict) and verdict.kind in (*HELD, *_REFUSED)


def count(
    app: Effects, transport: str, verdict: Verdict, recipient: str, held_in: str | None, *, took: bool = False
) -> RefusalRun:
    """Count a weighed verdict. If the database does not take it, take it at face value: the answer is known.

    Args:
        took: the transport took a message since it last refused one: this is the first of a run.
    """
    assert verdict.reply is not None
    name = uuid.uuid4().hex
    try:
        with app.store.begin() as connection:
            if took:
                table.clear_refusals(app.store, connection, [transport])
            if verdict.kind == "throttle":
                return RefusalRun(table.current_run(app.store, connection, transport, run=name), 0)
            row = table.count_refusal(
                app.store, connection, transport, run=name, refusal=likeness(verdict.reply), code=verdict.code,
                recipient=address_digest(app, recipient),
            )  # fmt: skip
            if verdict.kind in _REFUSED and row.messages >= enough(verdict):
                table.overrule(app.store, connection, transport)
                take_back(app, connection, row.recipients.split(), code=verdict.code, since=row.began_at)
            return RefusalRun(row.run, row.messages)
    except (StoreUnavailable, StoreRejected):
        _log.warning("email.refusal_uncounted", extra={"fields": {"transport": transport, "code": verdict.code}})
        return RefusalRun(held_in or name, 1)


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
            first, *then = LOGIN_SECONDS
            behind = BEHIND_SECONDS if is_of_message(verdict) else None
            return Pause(
                first, verdict.reason, code=verdict.code, detail=said, parent=True, after_seconds=behind, then=then
            )
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
        return Pause(0.0, verdict.reason, code=verdict.code, detail=said, after_seconds=HOLD_SECONDS)
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


def took_one(send_result: SendResult) -> bool:
    """Whether the transport took the message, for any of its recipients."""
    verdicts = send_result.recipients.values() or [send_result.verdict]
    return any(verdict.kind == "accepted" for verdict in verdicts)


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
