"""What the demo prints: three live bars, a progress bar, and the account."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from effects import Effects
from effects_reports import ReportStatus, report_status
from examples.demo.account import Account, SignupAccount
from examples.demo.board import Board

REFRESH_SECONDS = 0.1

_STORY = {
    "good": "accepts",
    "shaky": "503 twice first",
    "gone": "no one listens",
}


@contextmanager
def deliveries(console: Console, board: Board) -> Iterator[None]:
    """Each partner's deliveries as they end, redrawn from a thread of their own."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
        console=console, refresh_per_second=10,
    )  # fmt: skip
    shown = [partner.name for partner in board.partners if not partner.is_crm]
    bars = {name: progress.add_task(f"{name:<5}", total=None, words="") for name in shown}
    over = threading.Event()

    def draw() -> None:
        while True:
            last = over.wait(REFRESH_SECONDS)
            for name, bar in bars.items():
                done, retried, dead = board.delivered[name], len(board.retried[name]), board.dead[name]
                words = f"{done} delivered, {retried} retried, {dead} dead"
                progress.update(bar, completed=done + dead, total=board.events, words=words)
            if last:
                return

    with progress:
        drawer = threading.Thread(target=draw, name="demo-view", daemon=True)
        drawer.start()
        try:
            yield
        finally:
            over.set()
            drawer.join()


def report_made(console: Console, app: Effects, run_id: str, limit_seconds: float) -> ReportStatus:
    """The report's progress bar, until it has ended."""
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(20), TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[words]}"), console=console, refresh_per_second=10,
    )  # fmt: skip
    tick = threading.Event()
    with progress:
        bar = progress.add_task("flights", total=1.0, words="")
        for _ in range(round(limit_seconds / REFRESH_SECONDS)):
            status = report_status(run_id, effects=app)
            how_far = status.progress
            words = (
                f"{status.state}, {how_far.rows_done:,} rows, {how_far.chunks_done} of {how_far.chunks_total} chunks"
            )
            progress.update(bar, completed=how_far.fraction, words=words)
            if status.ended:
                break
            tick.wait(REFRESH_SECONDS)
    return status


def print_signups(console: Console, signups: SignupAccount) -> None:
    console.print(
        f"{signups.users} users signed up, {signups.welcomed} welcome mails arrived, and one sign-up was rolled back:\n"
        f"no mail. The CRM is gone: of {signups.users} webhooks {signups.crm_retried} were retried and "
        f"{signups.crm_dead} are dead letters."
    )


def print_account(console: Console, result: Account) -> None:
    table = Table(
        title=f"\n{result.events} events, {result.events * len(result.partners)} deliveries", box=SIMPLE, padding=(0, 1)
    )
    for column in ("partner", "delivered", "retried", "dead", "duplicates", "verified"):
        table.add_column(column, justify="left" if column == "partner" else "right", no_wrap=True)
    for row in result.partners:
        figures = (row.delivered, row.retried, row.dead, row.duplicates, row.signatures_verified)
        table.add_row(f"{row.partner} ({_STORY[row.partner]})", *map(str, figures))
    console.print(table)
    console.print(
        "Delivered: the partner accepted it. Duplicates: accepted more than once.\n"
        "Verified: requests whose signature both effects and the library\n"
        "standardwebhooks found good; a retried delivery is several requests.\n"
    )
    for report in result.reports:
        announced = "announced by mail" if report.announced else "not announced"
        console.print(
            f"Report {report.report}: {report.rows_read:,} rows read back, {report.bytes / 1e6:.1f} MB, "
            f"chunks: {report.chunks}, {announced}."
        )
    for finding in result.findings:
        console.print(f"[red]audit:[/red] {finding}")
    verdict = "Every effect is accounted for." if result.complete else "Not every effect is accounted for."
    console.print(f"\n[bold]{verdict}[/bold]\n")


def print_next_steps(result: Account) -> None:
    """Commands to try, as they can be pasted here. Not wrapped: a broken line would not run."""
    effects = effects_command(result.database_url)
    click.echo("A dead delivery is kept with every attempt. Have a look:")
    click.echo(f"  {effects} jobs list --status dead --limit 5")
    if result.dead_job is not None:
        click.echo(f"  {effects} jobs show {result.dead_job}")
    click.echo(f"  {effects} status")
    click.echo(f"  {effects} reports list")


def effects_command(database_url: str) -> str:
    """The command line on this run's data, as it can be pasted here."""
    command = shlex.quote(str(_relative(Path(sys.executable).with_name("effects"))))
    return f"{command} --database-url {database_url}"


def _relative(command: Path) -> Path:
    try:
        return command.relative_to(Path.cwd())
    except ValueError:
        return command
