"""What would follow a reply or a fault, in words: the table of `transport.replies`, asked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import click
import msgspec

from effects.cli.context import Context, json_option, pass_context
from effects.errors import ConfigurationError
from effects_email.transport.base import Kind, Stage, Suppress, Verdict
from effects_email.transport.classify import reply_of, verdict_of_fault, verdict_of_reply
from effects_email.transport.faults import FAULT_CODES, FaultCode

SMTP_STAGES: tuple[Stage, ...] = tuple(stage for stage in get_args(Stage) if stage != "request")
_FOLLOWS: Mapping[Kind, str] = {
    "accepted": "done",
    "retry": "tried again later; counts as an attempt",
    "throttle": "mail by this way rests for a while; costs no attempt",
    "refused_recipient": "this recipient ends refused; the others go on",
    "refused_message": "the message ends dead; the address is not blamed",
    "config": "the transport rests until somebody mends it; costs no attempt",
    "transport_down": "the transport rests for a while; costs no attempt",
    "unknown": "it may have arrived: the message's on_unknown decides (repeat_once, hold or repeat)",
}
_SUPPRESSED: Mapping[Suppress, str] = {
    "hard": "the address at once",
    "soft": "the address, after repeats on several days",
}


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict, and what follows from it."""

    what: str
    stage: Stage
    kind: Kind
    why: str
    follows: str
    not_before_seconds: float | None
    suppress: Suppress | None


def explain(what: str, enhanced: str | None = None, *, stage: Stage = "rcpt", text: str = "") -> Explanation:
    """What a reply or a fault means at a stage.

    Args:
        what: a basic code (`550`) or a fault (`timeout`).
        enhanced: `5.1.1`.
        text: the rest of the reply; some rows look at it, and it may say how long to wait.

    Raises:
        ConfigurationError: `what` is neither, or `enhanced` is no enhanced code.
    """
    verdict = _verdict(what, enhanced, stage, text)
    return Explanation(
        what=verdict.code,
        stage=stage,
        kind=verdict.kind,
        why=verdict.reason,
        follows=_FOLLOWS[verdict.kind],
        not_before_seconds=verdict.after_seconds,
        suppress=verdict.suppress,
    )


def _verdict(what: str, enhanced: str | None, stage: Stage, text: str) -> Verdict:
    if what in FAULT_CODES:
        fault: FaultCode = what
        return verdict_of_fault(stage, fault)
    if not (len(what) == 3 and what.isascii() and what.isdecimal() and what[0] in "2345"):
        raise ConfigurationError(f"{what!r} is no reply code from 200 to 599 and none of {', '.join(FAULT_CODES)}")
    reply = reply_of(stage, int(what), f"{enhanced or ''} {text}".strip())
    if enhanced and reply.enhanced != enhanced:
        raise ConfigurationError(f"{enhanced!r} is no enhanced code; give one such as 5.1.1")
    return verdict_of_reply(reply)


@click.command("explain")
@click.argument("what", metavar="CODE_OR_FAULT")
@click.argument("enhanced", required=False, metavar="ENHANCED_CODE")
@click.option("--stage", type=click.Choice(SMTP_STAGES), default="rcpt", show_default=True, help="When it came.")
@click.option("--text", default="", metavar="TEXT", help="The rest of the reply.")
@json_option
@pass_context
def explain_command(
    context: Context, *, what: str, enhanced: str | None, stage: Stage, text: str, as_json: bool
) -> None:
    """What follows an SMTP reply (550 5.1.1) or a fault of the wire (timeout), and why."""
    found = explain(what, enhanced, stage=stage, text=text)
    context.echo(found if as_json else _facts(found), as_json)


def _facts(found: Explanation) -> dict[str, Any]:
    wait = {} if found.not_before_seconds is None else {"not before": f"{found.not_before_seconds:g} s"}
    suppress = {} if found.suppress is None else {"suppress": _SUPPRESSED[found.suppress]}
    return {"verdict": found.kind, "why": found.why, "then": found.follows, **wait, **suppress}
