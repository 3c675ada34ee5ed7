"""The demo's three acts, and an account of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console

from effects import Effects
from effects.cli.results import print_value
from effects.worker import Worker
from examples.demo import view
from examples.demo.account import Account, account, signups_account
from examples.demo.board import Board
from examples.demo.dashboard import show_dashboard
from examples.demo.events import send_events
from examples.demo.flights import load_flights, request_flights
from examples.demo.mailbox import Mailbox, mailbox, require_mail_server
from examples.demo.partners import partners, require_reference_library
from examples.demo.shop import shop
from examples.demo.signups import NAMES, sign_all_up

LOOK_SECONDS = 0.05
LIMIT_SECONDS = 300.0  # far more than it takes; a demo that hangs is a defect to be seen


@click.command()
@click.option("--events", type=click.IntRange(min=1), metavar="N", help="Events to send. Default: all 273.")
@click.option("--flights", type=click.IntRange(min=1), metavar="N", help="Flights to report. Default: 336,776.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON.")
def demo(*, events: int | None, flights: int | None, as_json: bool) -> int:
    """Send mail, webhooks and a report; account for each.

    An app on a temporary SQLite file signs users up (a mail to a real SMTP server on loopback, a webhook to a CRM
    that is gone), delivers the bundled GitHub events, signed, to three partners (one accepts, one answers 503 twice
    first, one is gone), and makes a CSV file of a year of flights. Takes less than a minute; needs no network.
    """
    require_reference_library()
    require_mail_server()
    logging.getLogger("effects").setLevel(logging.CRITICAL)  # the account at the end says it all
    console = Console(quiet=as_json)
    with mailbox() as mail, partners() as receivers:
        board = Board(receivers)
        with shop(receivers, mail.url) as app:
            result = _play(console, app, board, mail, events, flights)
            if not as_json:
                view.print_account(console, result)
                view.print_next_steps(result)
                show_dashboard(app)
    if as_json:
        print_value(result, as_json=True)
    return 0 if result.complete else 1


def _play(
    console: Console, app: Effects, board: Board, mail: Mailbox, events: int | None, flights: int | None
) -> Account:
    """The three acts. The worker starts after the sign-ups, so that the day's report has all of them."""
    console.print("[bold]1. Sign-ups[/bold]: the user, a mail, a webhook and a report in one commit\n")
    signups = sign_all_up(app)
    with _worker_beside(app, board):
        _wait(lambda: board.crm_ended(len(NAMES)) and len(mail.messages) > len(NAMES))
        view.print_signups(console, signups_account(app, board, mail))

        console.print("\n[bold]2. Signed webhooks[/bold]: real GitHub events to three partners\n")
        with view.deliveries(console, board):
            send_events(app, board, events)
            _wait(lambda: board.all_ended)

        console.print("\n[bold]3. A report[/bold]: a year of flights as a CSV file, in chunks\n")
        loaded = load_flights(app, flights)
        run = request_flights(app)
        view.report_made(console, app, run, LIMIT_SECONDS)
        _wait(lambda: len(mail.messages) > len(NAMES) + 1)
    return account(app, board, mail, {signups: len(NAMES), run: loaded})


@contextmanager
def _worker_beside(app: Effects, board: Board) -> Iterator[None]:
    """A worker in a thread of this process; stopped in order at the end."""
    worker = Worker(app, observers=[board])
    thread = threading.Thread(target=worker.run, name="demo-worker")
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def _wait(done: Callable[[], bool]) -> None:
    """Until it is so, or the time is up; then the account says what is missing."""
    tick = threading.Event()
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while not done() and time.monotonic() < give_up_at:
        tick.wait(LOOK_SECONDS)
