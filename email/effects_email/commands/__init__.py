"""`effects email`: the entry point `effects.commands`."""

from __future__ import annotations

import click

from effects_email.commands.bounces import bounces
from effects_email.commands.check import check, explain_, login
from effects_email.commands.messages import export, forget, list_, resend, show, test
from effects_email.commands.suppressions import suppressions
from effects_email.commands.templates import gallery, preview, templates

__all__ = ["email"]


@click.group()
def email() -> None:
    """Manage templates, messages, suppressions and transports."""


for _command in (
    bounces,
    check,
    explain_,
    export,
    forget,
    gallery,
    list_,
    login,
    preview,
    resend,
    show,
    suppressions,
    templates,
    test,
):
    email.add_command(_command)
