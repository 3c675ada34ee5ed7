"""A message that may have been delivered: what its provider knows of it, asked before it is repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from effects import Attempt, Done, Outcome, Unknown
from effects_email.classify import ASK_AGAIN
from effects_email.jobs.waits import Waits
from effects_email.loading import Message
from effects_email.record import RecipientResult, SendRecord
from effects_email.recording import left_out_results
from effects_email.transport.base import OutgoingMessage, Transport


async def ask_before_repeating(
    waits: Waits, attempt: Attempt, message: Message, outgoing: OutgoingMessage, transport: Transport, *, keyed: bool
) -> Outcome | None:
    """An earlier try may have delivered it. None: continue and repeat."""
    answer = await waits.ask(transport, outgoing)
    if answer:
        return record_as_taken(attempt, message, {"asked": True, "transport": transport.name})
    if message.hold and message.repeats and not keyed:
        return Unknown("the provider does not know it" if answer is False else "no provider can be asked")
    return None


def record_as_taken(attempt: Attempt, message: Message, detail: Mapping[str, Any]) -> Done:
    """The provider has it, according to an event or a search rather than its response."""
    results = [
        RecipientResult(message.key, number, "accepted", "asked")
        for number in (message.open.keys() - message.suppressed if message.group else ())
    ] + left_out_results(message)
    record = attempt.private or SendRecord(sha256=message.sha256, transport=message.last_transport)
    attempt.private = msgspec.structs.replace(record, outcome="accepted", results=results, failures=())
    return Done(detail={**detail, "outcome": "accepted"})


async def ask_after_silence(
    waits: Waits,
    attempt: Attempt,
    message: Message,
    outgoing: OutgoingMessage,
    transport: Transport,
    outcome: Unknown,
) -> Outcome:
    """The body was released and no verdict came: ask at once, and where it is to be held, once more later."""
    answer = await waits.ask(transport, outgoing)
    if answer:
        return record_as_taken(attempt, message, {**(outcome.detail or {}), "asked": True})
    if answer is False and message.hold and outcome.on_unknown is None:
        return replace(outcome, on_unknown="repeat", after_seconds=0.0, policy=ASK_AGAIN)
    return outcome


def key_is_good(message: Message, transport: Transport) -> bool:
    """Whether the provider would still know the message's key again: half of its lifetime is ours to use."""
    lifetime = transport.key_lifetime_seconds
    return lifetime is not None and (message.released_seconds or 0.0) < lifetime / 2
