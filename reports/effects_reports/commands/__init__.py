"""`effects reports`: the entry point `effects.commands`."""

from __future__ import annotations

import click

from effects_reports.commands.delivering import buckets, link
from effects_reports.commands.request import explain_, request, rewind
from effects_reports.commands.runs import download, list_, repair_, show
from effects_reports.commands.subscribing import subscriptions

__all__ = ["reports"]


@click.group()
def reports() -> None:
    """Request, watch and download reports."""


for _command in (
    buckets,
    download,
    explain_,
    link,
    list_,
    repair_,
    request,
    rewind,
    show,
    subscriptions,
):
    reports.add_command(_command)
