"""`effects email check`: what the DNS says of a domain that sends."""

from __future__ import annotations

from typing import Any

import click

from effects.cli import CommandResult, Context, Table, command
from effects.extend import ExitCode
from effects_email.domain.checks import DomainFinding, examine_domain
from effects_email.domain.demands import Demand, demands
from effects_email.domain.lookup import Lookup
from effects_email.domain.own import CHECK_SECONDS, sending_domain
from effects_email.state import state_of


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
