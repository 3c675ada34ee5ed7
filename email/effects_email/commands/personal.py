"""`effects email export` and `forget`: what is kept of one address."""

from __future__ import annotations

from pathlib import Path

import click

from effects.cli import CommandResult, Context, actor, command, output_file, reason_option, required_reason_option
from effects.extend import ExitCode
from effects_email.personal.export import export_address
from effects_email.personal.forget import forget_address


@click.command()
@click.argument("address")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@reason_option
@command
def export(context: Context, *, address: str, file: Path, reason: str | None) -> CommandResult:
    """Write what is kept of ADDRESS into FILE, as ZIP.

    It has index.json and each message as .eml. An existing FILE is replaced.
    """
    with output_file(file) as out:
        exported = export_address(address, out, actor=actor(), reason=reason, effects=context.app)
    text = f"{file}: {exported.messages} messages, {exported.contents} of them with their words"
    return CommandResult(exported, text)


@click.command()
@click.argument("address")
@required_reason_option
@command
def forget(context: Context, *, address: str, reason: str) -> CommandResult:
    """Forget what is kept of ADDRESS.

    Messages to it that wait are cancelled; suppressions stay, by digest. Exit code 1 if messages are left that are
    still to be sent: forget again when they have ended.
    """
    forgotten = forget_address(address, actor=actor(), reason=reason, effects=context.app)
    facts = {
        "messages": forgotten.messages, "cancelled": forgotten.cancelled, "files": forgotten.files,
        "events": forgotten.events, "suppressions kept": forgotten.suppressions,
        "still to be sent": ", ".join(forgotten.waiting) or None,
    }  # fmt: skip
    exit_code = ExitCode.FINDINGS if forgotten.waiting else ExitCode.DONE
    return CommandResult(forgotten, facts, exit_code=exit_code)
