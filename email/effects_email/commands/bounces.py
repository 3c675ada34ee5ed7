"""`effects email bounces`: take in what came back, from a maildir, a mailbox or a pipe."""

from __future__ import annotations

import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Protocol

import click

from effects import EffectsError
from effects.cli import CommandResult, Context, command
from effects.extend import ExitCode
from effects_email.returned.imap import ImapMailbox
from effects_email.returned.maildir import ReportMaildir
from effects_email.returned.parts import BYTES_MAX
from effects_email.returned.taking import ReportFate, TakenReport, take_report

_FATES: tuple[ReportFate | Literal["unreadable"], ...] = ("taken", "known", "not_ours", "left_alone", "unreadable")
_URL_VARIABLE = "EFFECTS_EMAIL_BOUNCES_URL"
_log = logging.getLogger("effects.email.bounces")


class _Source(Protocol):
    def unread(self) -> Iterable[tuple[Any, bytes | None]]: ...

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
    message of this database. The same report again changes nothing. Exit code 1 if single messages could not be read:
    they stay unread, and the others are taken. Exit code 2 if the mailbox or the database cannot be read; 75 if what
    --stdin gave could not be taken, upon which a mail server keeps it and pipes it again.
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
        report = _report(context, data, came_to=recipient)
    except EffectsError as error:
        return _kept_by_server(str(error))
    if report is None:
        return _kept_by_server("the message cannot be read")
    return _result(Counter([report.fate]), Counter(report.kinds))


def _kept_by_server(error: str) -> CommandResult:
    return CommandResult({"error": error}, note=f"error: {error}", exit_code=os.EX_TEMPFAIL)


def _taken(context: Context, source: _Source) -> CommandResult:
    fates: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for name, data in source.unread():
        report = _report(context, data)
        if report is None:
            fates["unreadable"] += 1
            continue
        source.mark_read(name)
        fates[report.fate] += 1
        if report.fate == "taken":
            kinds.update(report.kinds)
    return _result(fates, kinds)


def _report(context: Context, data: bytes | None, *, came_to: str = "") -> TakenReport | None:
    """None for a message that cannot be read, so that it stops no other one."""
    try:
        return None if data is None else take_report(data, came_to=came_to, effects=context.app)
    except EffectsError:  # the database, or a setting: of every message
        raise
    except Exception as error:
        _log.error("email.report_failed", extra={"error": type(error).__name__})
        return None


def _result(fates: Counter[str], kinds: Counter[str]) -> CommandResult:
    facts: dict[str, Any] = {**{fate: fates[fate] for fate in _FATES}, "events": dict(sorted(kinds.items()))}
    return CommandResult(facts, exit_code=ExitCode.FINDINGS if fates["unreadable"] else ExitCode.DONE)
