"""Act two: real events to three partners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import islice

from sqlalchemy.orm import Session

from effects import Effects
from effects_webhooks import WebhookEvent, deliver_webhook
from examples.demo.board import Board


def bundled_events() -> Iterator[WebhookEvent]:
    """Real GitHub events, from the examples of octokit/webhooks (MIT, © 2018 Gregor Martynus)."""
    with (files("examples.demo") / "github-events.jsonl").open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            event = json.loads(line)
            yield WebhookEvent(f"github.{event['type']}", event["data"], key=f"demo:{number}")


def send_events(app: Effects, board: Board, limit: int | None) -> None:
    """Each event in a transaction of its own, as an app would send it."""
    for event in islice(bundled_events(), limit):
        with Session(app.engine) as session, session.begin():
            deliver_webhook(event, session=session, effects=app)
        board.events += 1
    board.all_sent = True
