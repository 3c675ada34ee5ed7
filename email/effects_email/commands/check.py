"""`effects email check`, `explain` and `login`: what the DNS says of a domain that sends, what an SMTP reply means, and
the tokens of a transport that logs in by OAuth.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

import click

from effects.cli import CommandResult, Context, Table, actor, cell, command, reason_option
from effects.extend.process import ExitCode
from effects_email.domain import (
    CHECK_SECONDS,
    Demand,
    DomainFinding,
    Lookup,
    demands,
    examine_domain,
    sending_domain,
)
from effects_email.explanation import SMTP_STAGES, ReplyExplanation, explain
from effects_email.oauth.logins import await_device_login, begin_device_login, client_of, redeem, save_login
from effects_email.oauth.registration import OAuthClient, Tokens
from effects_email.state import state_of
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
_CHARS_MAX = 16_384


@click.command()
@click.argument("domain")
@click.option(
    "--selector", "selectors", multiple=True, metavar="NAME", help="Selector of a relay that signs. Repeatable."
)
@command
def check(context: Context, *, domain: str, selectors: tuple[str, ...]) -> CommandResult:
    """Check SPF, DKIM, DMARC and MX of DOMAIN.

    Says what Gmail, Yahoo and Microsoft demand, and what of it is missing. Our DKIM keys are compared with what is
    published. Takes 20 seconds at most. Exit code 1 for a warning, an error or a name server that did not answer.
    """
    state = state_of(context.app)
    sending = sending_domain(state.settings, domain, state.signer, selectors)
    findings = examine_domain(Lookup(seconds=CHECK_SECONDS, nameserver=state.settings.email_nameserver), sending)
    demanded = demands(findings)
    clean = all(finding.level == "ok" for finding in findings)
    blocks: list[Any] = [_findings(findings), _demands(demanded)]
    document = {"domain": sending.name, "findings": findings, "demands": demanded}
    return CommandResult(document, blocks, exit_code=ExitCode.DONE if clean else ExitCode.FINDINGS)


def _findings(findings: list[DomainFinding]) -> Table:
    rows = [(finding.level, finding.matter, finding.text, finding.advice) for finding in findings]
    return Table(("level", "about", "finding", "advice"), rows, empty="no findings")


def _demands(demanded: list[Demand]) -> Table:
    rows = [(demand.provider, demand.whom, demand.demand, demand.met, ", ".join(demand.missing)) for demand in demanded]
    return Table(("provider", "asks", "for", "met", "missing"), rows, title="demands", empty="no demands")


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


@click.command()
@click.argument("transport")
@click.option(
    "--refresh-token", "from_stdin", is_flag=True, help="Read a refresh token from standard input; no device flow."
)
@reason_option
@command
def login(context: Context, *, transport: str, from_stdin: bool, reason: str | None) -> CommandResult:
    """Log in TRANSPORT by OAuth.

    Prints a link and a code, and waits until you have typed the code there. The tokens are encrypted with EFFECTS_KEYS
    and stored for all workers, which renew them. A pause of the transport ends.
    """
    client = client_of(context.app, transport)
    tokens = _redeemed(client) if from_stdin else _by_device(client)
    save_login(context.app, transport, client, tokens, actor=actor(), reason=reason)
    return CommandResult({"transport": transport, "user": client.user}, f"{cell(transport)} logged in")


def _redeemed(client: OAuthClient) -> Tokens:
    token = sys.stdin.read(_CHARS_MAX + 1).strip()
    if not 0 < len(token) <= _CHARS_MAX or len(token.splitlines()) > 1:
        raise click.UsageError("--refresh-token reads one line with the token from standard input, which holds none")
    return redeem(client, token)


def _by_device(client: OAuthClient) -> Tokens:
    code = begin_device_login(client)
    click.echo(
        f"Open {cell(code.address)} and type the code {cell(code.user_code)}; log in as {cell(client.user)}.", err=True
    )
    return await_device_login(client, code, threading.Event().wait)
