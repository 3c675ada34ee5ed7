"""`effects email explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from effects.cli import CommandResult, Context, command
from effects_email.explanation import SMTP_STAGES, ReplyExplanation, explain
from effects_email.transport.base import About, Stage, Suppress

_ABOUT: Mapping[About, str] = {
    "recipient": "this recipient",
    "message": "this message",
    "sender": "our sender address or its domain",
    "reputation": "our IP address, its name or its reputation",
    "account": "our account at the server: login, permission or quota",
    "rate": "how fast we send",
    "server": "the server itself, or our commands to it",
}
_SUPPRESSED: Mapping[Suppress, str] = {
    "hard": "the address at once",
    "soft": "the address, after repeats on several days",
}


@click.command("explain")
@click.argument("what", metavar="CODE_OR_FAULT")
@click.argument("enhanced", required=False, metavar="ENHANCED_CODE")
@click.option(
    "--stage", type=click.Choice(SMTP_STAGES), default="rcpt", show_default=True, help="Stage of the SMTP transaction."
)
@click.option("--text", default="", metavar="TEXT", help="Text of the reply.")
@command
def explain_(context: Context, *, what: str, enhanced: str | None, stage: Stage, text: str) -> CommandResult:
    """Explain the verdict on an SMTP reply or a fault.

    CODE_OR_FAULT is a reply code with its enhanced code, such as 550 5.1.1, or a fault such as timeout.
    """
    explanation = explain(what, enhanced, stage=stage, text=text)
    return CommandResult(explanation, _facts(explanation))


def _facts(explanation: ReplyExplanation) -> dict[str, Any]:
    wait = {} if explanation.not_before_seconds is None else {"not before": f"{explanation.not_before_seconds:g} s"}
    suppress = {} if explanation.suppress is None else {"suppress": _SUPPRESSED[explanation.suppress]}
    about = {} if explanation.about is None else {"about": _ABOUT[explanation.about]}
    return {
        "verdict": explanation.kind,
        **about,
        "why": explanation.why,
        "then": explanation.follows,
        **wait,
        **suppress,
    }
