"""`effects email bounces`: take in what came back, from a maildir, a mailbox or a pipe."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import click

from effects import EffectsError
from effects.cli import CommandResult, Context, command
from effects.extend import ExitCode
from effects_email.returned.imap import ImapMailbox
from effects_email.returned.maildir import ReportMaildir
from effects_email.returned.parts import BYTES_MAX
from effects_email.returned.taking import ReportFate, take_report

_FATES: tuple[ReportFate, ...] = ("taken", "known", "not_ours", "left_alone")
_URL_VARIABLE = "EFFECTS_EMAIL_BOUNCES_URL"


class _Source(Protocol):
    def unread(self) -> Iterable[tuple[Any, bytes]]: ...

    def mark_read(self, name: Any) -> None: ...


@click.command()
@click.option("--maildir", type=click.Path(path_type=Path), metavar="FOLDER", help="Unread messages of a maildir.")
@click.option(
    "--imap",
    metavar="URL",
    help=f"Unread messages of imaps://user:password@host/MAILBOX. `-`: the URL is in {_URL_VARIABLE}.",
)
@click.option("--ca-file", type=click.Path(), metavar="FILE", help="Private certificate authority of the IMAP server.")
@click.option("--stdin", "from_stdin", is_flag=True, help="One message from standard input, as a mail server pipes it.")
@click.option("--recipient", default="", metavar="ADDRESS", help="Where the piped message came to.")
@command
def bounces(
    context: Context, *, maildir: Path | None, imap: str | None, ca_file: str | None, from_stdin: bool, recipient: str
) -> CommandResult:
    """Take in bounces, delivery reports and complaints.

    Give one of --maildir, --imap and --stdin. What was taken is marked as read, and so is what is no report, or of no
    message of this database. The same report again changes nothing. Exit code 2 if the mailbox cannot be read; 75 if
    what --stdin gave could not be taken, upon which a mail server keeps it and pipes it again.
    """
    if sum((maildir is not None, imap is not None, from_stdin)) != 1:
        raise click.UsageError("give one of --maildir, --imap and --stdin")
    if from_stdin:
        return _taken_from_pipe(context, recipient)
    if maildir is not None:
        return _taken(context, ReportMaildir(maildir))
    url = os.environ.get(_URL_VARIABLE, "") if imap == "-" else imap or ""
    with ImapMailbox(url, ca_file=ca_file) as mailbox:
        return _taken(context, mailbox)


def _taken_from_pipe(context: Context, recipient: str) -> CommandResult:
    """Any exit code but 0 and EX_TEMPFAIL is final for a mail server: it would drop the report."""
    data = sys.stdin.buffer.read(BYTES_MAX)
    try:
        report = take_report(data, came_to=recipient, effects=context.app)
    except EffectsError as error:
        return CommandResult({"error": str(error)}, note=f"error: {error}", exit_code=os.EX_TEMPFAIL)
    return _result(Counter([report.fate]), Counter(report.kinds))


def _taken(context: Context, source: _Source) -> CommandResult:
    fates: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for name, data in source.unread():
        report = take_report(data, effects=context.app)
        source.mark_read(name)
        fates[report.fate] += 1
        if report.fate == "taken":
            kinds.update(report.kinds)
    return _result(fates, kinds)


def _result(fates: Counter[str], kinds: Counter[str]) -> CommandResult:
    facts: dict[str, Any] = {**{fate: fates[fate] for fate in _FATES}, "events": dict(sorted(kinds.items()))}
    return CommandResult(facts, exit_code=ExitCode.DONE)
