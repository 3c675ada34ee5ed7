"""`effects demo`: what it prints while it runs and when it is done."""

from __future__ import annotations

import logging
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from effects.cli.output import print_value
from effects.demo.partners import partners, require_reference_library
from effects.demo.run import Account, Board, account, demo_app, send_events, worker_beside

REFRESH_SECONDS = 0.1
LIMIT_SECONDS = 300.0  # far more than it takes; a demo that hangs is a defect to be seen

_STORY = {
    "good": "accepts",
    "shaky": "503 twice first",
    "gone": "nobody listens",
}


@click.command()
@click.option("--events", "limit", type=click.IntRange(min=1), metavar="N", help="Send the first N only. Default: all.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON.")
def demo(*, limit: int | None, as_json: bool) -> int:
    """Send real events to three partners on this machine and account for every one.

    An app on a temporary SQLite file delivers the bundled GitHub events, signed, to a partner that accepts,
    one that answers 503 twice first, and one that is gone. Takes less than a minute; needs no network.
    """
    require_reference_library()
    logging.getLogger("effects").setLevel(logging.CRITICAL)  # the account at the end says it all
    with partners() as three:
        board = Board(three)
        with demo_app(three, board) as app:
            with worker_beside(app, board), _shown(board, quiet=as_json):
                send_events(app, board, limit)
                _wait_for_all(board)
            result = account(app, board)
    if as_json:
        print_value(result, as_json=True)
    else:
        _print_account(result)
    return 0 if result.complete else 1


@contextmanager
def _shown(board: Board, *, quiet: bool) -> Iterator[None]:
    """The live view, redrawn from a thread of its own: each partner's deliveries as they end."""
    console = Console(quiet=quiet)
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("{task.fields[words]}"),
        console=console, refresh_per_second=10,
    )  # fmt: skip
    bars = {partner.name: progress.add_task(f"{partner.name:<5}", total=None, words="") for partner in board.partners}
    over = threading.Event()

    def draw() -> None:
        while True:
            last = over.wait(REFRESH_SECONDS)
            for name, bar in bars.items():
                done, retried, dead = board.delivered[name], len(board.retried[name]), board.dead[name]
                words = f"{done} delivered, {retried} retried, {dead} dead"
                progress.update(bar, completed=done + dead, total=board.sent, words=words)
            if last:
                return

    console.print("Signed webhooks, from an app's transactions, to three partners on this machine:\n")
    with progress:
        drawer = threading.Thread(target=draw, name="demo-view", daemon=True)
        drawer.start()
        try:
            yield
        finally:
            over.set()
            drawer.join()


def _wait_for_all(board: Board) -> None:
    """Until every delivery has ended, or the time is up; then the account says what is missing."""
    tick = threading.Event()
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while not board.all_ended and time.monotonic() < give_up_at:
        tick.wait(REFRESH_SECONDS)


def _print_account(result: Account) -> None:
    console = Console()
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
        "standardwebhooks found good; a retried delivery is several requests."
    )
    for finding in result.findings:
        console.print(f"[red]audit:[/red] {finding}")
    verdict = "Every event is accounted for." if result.complete else "Not every event is accounted for."
    console.print(f"\n[bold]{verdict}[/bold]\n")
    _print_next_steps(result)


def _print_next_steps(result: Account) -> None:
    """Commands to try, as they can be pasted here. Not wrapped: a broken line would not run."""
    command = Path(sys.argv[0])
    shown = "effects" if command.parent == Path() else shlex.quote(str(_relative(command)))
    effects = f"{shown} --database-url {result.database_url}"
    click.echo("A dead delivery is kept with every attempt. Have a look:")
    click.echo(f"  {effects} jobs list --status dead --limit 5")
    if result.dead_job is not None:
        click.echo(f"  {effects} jobs show {result.dead_job}")
    click.echo(f"  {effects} status")


def _relative(command: Path) -> Path:
    try:
        return command.relative_to(Path.cwd())
    except ValueError:
        return command
