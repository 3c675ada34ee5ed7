"""`effects email bounces`: take in what came back, from a maildir, a mailbox or a pipe."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import click

from effects import EffectsError
from effects.cli import CommandResult, Context, command
from effects.extend.process import ExitCode, own_logger
from effects_email.errors import MailboxUnavailable
from effects_email.oauth.logins import token_login_of
from effects_email.returned.mailboxes import ImapMailbox, ReportMaildir
from effects_email.returned.parts import BYTES_MAX
from effects_email.returned.reading import ReportReader
from effects_email.returned.taking import ReportFate, TakenReport, take_read
from effects_email.tables.events import READINGS_MAX, begin_reading, end_reading, note_unopened

_Unread: TypeAlias = Literal["unreadable", "set_aside"]
_FATES: tuple[ReportFate | _Unread, ...] = ("taken", "known", "not_ours", "left_alone", "unreadable", "set_aside")
_URL_VARIABLE = "EFFECTS_EMAIL_BOUNCES_URL"
_SET_ASIDE = "the reading of this message failed twice; it is not read again"
_log = own_logger("effects.email.bounces")


class _Source(Protocol):
    def unread(self) -> Iterable[tuple[Any, bytes | None]]: ...

    def mark_read(self, name: Any, *, set_aside: bool = False) -> None: ...


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
    they stay unread, and the others are taken. One whose reading failed twice is set aside: marked as read and flagged,
    and `effects doctor` counts it for 7 days. Exit code 2 if the mailbox or the database cannot be read; `effects
    doctor` names such a mailbox until the next success. 75 if what --stdin gave could not be taken, upon which a mail
    server keeps it and pipes it again.
    """
    if sum((maildir is not None, imap is not None, from_stdin)) != 1:
        raise click.UsageError("give one of --maildir, --imap and --stdin")
    if from_stdin:
        return _taken_from_pipe(context, recipient)
    if maildir is not None:
        return _taken(context, ReportMaildir(maildir))
    url = os.environ.get(_URL_VARIABLE, "") if imap == "-" else imap or ""
    login = partial(token_login_of, context.app)
    with _opened(context, ImapMailbox(url, ca_file=ca_file, login=login)) as mailbox:
        return _taken(context, mailbox)


@contextmanager
def _opened(context: Context, mailbox: ImapMailbox) -> Iterator[ImapMailbox]:
    """The mailbox, opened. If it cannot be, that is on record until it can: cron reads it, whose output few see."""
    store = context.app.store
    try:
        mailbox.__enter__()
    except MailboxUnavailable as error:
        with store.begin() as connection:
            note_unopened(store, connection, mailbox.name, str(error))
        raise
    with closing(mailbox):
        with store.begin() as connection:
            end_reading(store, connection, mailbox.name)
        yield mailbox


def _taken_from_pipe(context: Context, recipient: str) -> CommandResult:
    """Any exit code but 0 and EX_TEMPFAIL is final for a mail server: it would drop the report."""
    data = sys.stdin.buffer.read(BYTES_MAX)
    try:
        with closing(ReportReader()) as reader:
            report = _report(context, reader, data, came_to=recipient)
    except EffectsError as error:
        return _kept_by_server(str(error))
    if report == "set_aside":
        return CommandResult({"error": _SET_ASIDE}, note=f"error: {_SET_ASIDE}", exit_code=os.EX_DATAERR)
    if report == "unreadable":
        return _kept_by_server("the message cannot be read")
    return _result(Counter([report.fate]), Counter(report.kinds))


def _kept_by_server(error: str) -> CommandResult:
    return CommandResult({"error": error}, note=f"error: {error}", exit_code=os.EX_TEMPFAIL)


def _taken(context: Context, source: _Source) -> CommandResult:
    fates: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    with closing(ReportReader()) as reader:
        for name, data in source.unread():
            report = _report(context, reader, data)
            if isinstance(report, TakenReport):
                source.mark_read(name)
                kinds.update(report.kinds if report.fate == "taken" else ())
            elif report == "set_aside":
                source.mark_read(name, set_aside=True)
            fates[report.fate if isinstance(report, TakenReport) else report] += 1
    return _result(fates, kinds)


def _report(context: Context, reader: ReportReader, data: bytes | None, *, came_to: str = "") -> TakenReport | _Unread:
    """A message that cannot be read stops no other one. That it is read is on record before it is, so that one which
    takes the process or the machine with it is not read again and again.
    """
    if data is None:
        return "unreadable"
    store, digest = context.app.store, hashlib.sha256(data).hexdigest()
    with store.begin() as connection:
        if begin_reading(store, connection, digest) % (READINGS_MAX + 1) == 0:
            _log.error("email.report_set_aside", extra={"sha256": digest})
            return "set_aside"
    try:
        report = reader.read(data, came_to=came_to)
        with store.begin() as connection:
            end_reading(store, connection, digest)
        return take_read(context.app, report)
    except EffectsError:  # the database, or a setting: of every message
        raise
    except Exception as error:
        _log.error("email.report_failed", extra={"error": type(error).__name__})
        return "unreadable"


def _result(fates: Counter[str], kinds: Counter[str]) -> CommandResult:
    facts: dict[str, Any] = {**{fate: fates[fate] for fate in _FATES}, "events": dict(sorted(kinds.items()))}
    return CommandResult(
        facts, exit_code=ExitCode.FINDINGS if fates["unreadable"] or fates["set_aside"] else ExitCode.DONE
    )
