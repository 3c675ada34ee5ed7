"""Whose fault a refusal is, of one attempt; see `effects_email.refusals`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from effects_email.classify import leading
from effects_email.loading import Message
from effects_email.refusals import HELD, Weight, count, weigh
from effects_email.transport.base import SendResult

if TYPE_CHECKING:
    from effects import Effects


def weight_of(app: Effects, message: Message, transport: str, send_result: SendResult) -> tuple[Weight, str | None]:
    """Of a refusal, and the run of refusals that it belongs to, where it holds the message back."""
    verdict = leading(send_result)
    recipient = next(address for address, theirs in send_result.recipients.items() if theirs == verdict)
    held_in = message.held_in if message.last_transport == transport else None
    run = count(app, transport, verdict, recipient, held_in)
    weight = weigh(verdict, run, held_in)
    return weight, run.name if verdict.kind in HELD or weight == "rest" else None
