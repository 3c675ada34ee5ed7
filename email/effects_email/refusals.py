"""Whose fault a refusal is, by what else the transport does: one is its message's, many alike are the transport's.

    verdict                              alike in a row, nothing taken between     then
    a fault of ours (config)             1 message                                 it waits; others are tried
                                         2 messages                                the transport rests
    refused, whatever the words say      5 messages                                the transport rests
    refused, known to be the address's   20 messages                               the transport rests

Who rests the transport and who waits uses up no try. A message that was held back and is refused again after the
transport has taken another one is at fault itself: that counts as a try. Before there is a message, at the login for
one, others that pass only show that this worker's configuration is wrong and another's is not: that costs no try.
When refusals become the transport's fault, what they had put on the suppression list is taken back.

Counted in the database, for all workers (`tables.refusals`), in a transaction of its own before the outcome is known:
a crash between leaves one refusal counted, which costs nothing.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from typing import Literal, TypeAlias

import msgspec

from effects import Effects, StoreRejected, StoreUnavailable
from effects_email.message.address import address_digest
from effects_email.suppressions.bounces import take_back
from effects_email.tables import refusals as table
from effects_email.transport.base import Kind, Reply, Stage, Verdict
from effects_email.transport.replies.verdicts import words_of

OURS_MESSAGES, ALIKE_MESSAGES, ADDRESS_MESSAGES = 2, 5, 20
# A refusal of one of these stages concerns a message; before them there is no message.
STAGES: tuple[Stage, ...] = ("mail", "rcpt", "data", "body", "dot", "request")
HELD: tuple[Kind, ...] = ("config", "throttle")
_REFUSED: tuple[Kind, ...] = ("refused_recipient", "refused_message")
_VARIABLE = re.compile(r"\S*[\d*]\S*|[\[(]\S+[\])]")  # ids, numbers, hosts with numbers, and what stood for a name
_log = logging.getLogger("effects.email")

# `as_said`: what the verdict says. `hold`: it waits, others are tried. `rest`: the transport does. `own`: others pass.
Weight: TypeAlias = Literal["as_said", "hold", "rest", "own"]


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
    if verdict.kind == "throttle":
        return "as_said"
    if run.messages >= enough(verdict):
        return "rest"
    return "hold" if verdict.kind == "config" else "as_said"


def is_of_message(verdict: Verdict) -> bool:
    """Whether a server said it about a message."""
    return verdict.reply is not None and verdict.reply.code is not None and verdict.reply.stage in STAGES


def is_weighed(verdict: Verdict) -> bool:
    """Whether others may show whose fault it is: a fault of ours, or a server's word on a message that lasts."""
    if verdict.kind == "config":
        return verdict.reply is not None
    return is_of_message(verdict) and verdict.kind in (*HELD, *_REFUSED)


def count(app: Effects, transport: str, verdict: Verdict, recipient: str, held_in: str | None) -> RefusalRun:
    """Count a weighed verdict. If the database does not take it, take it at face value: the answer is known."""
    assert verdict.reply is not None
    name = uuid.uuid4().hex
    try:
        with app.store.begin() as connection:
            if verdict.kind == "throttle":
                return RefusalRun(table.hold(app.store, connection, transport, run=name), 0)
            row = table.count(
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
