"""The demo itself: an app on a temporary SQLite file, its events, a worker, and the account at the end."""

from __future__ import annotations

import json
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files
from itertools import islice
from pathlib import Path

import msgspec
from sqlalchemy.orm import Session

from effects import Effects, Listed, RetryPolicy, Settings
from effects.demo.partners import Partner
from effects.keys import generate_key
from effects.settlement import Settlement
from effects.store import limits, migrate
from effects.store.audit import audit
from effects.store.lookup import Filters, list_jobs
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from effects_webhooks.endpoints import limit_key
from effects_webhooks.job import WebhookDelivery

# Three waits, so that the partner that is gone is given up within the minute. A real schedule lasts days.
SCHEDULE = RetryPolicy(backoff=Listed((0.5, 1.0, 2.0)), jitter=0.2)


class PartnerAccount(msgspec.Struct, frozen=True):
    """What became of the deliveries to one partner."""

    partner: str
    deliveries: int
    delivered: int
    retried: int  # deliveries that needed more than one try
    dead: int
    duplicates: int
    signatures_verified: int


class Account(msgspec.Struct, frozen=True):
    """The whole demo in figures. `complete` says that every event is accounted for."""

    events: int
    partners: list[PartnerAccount]
    findings: list[str]
    dead_job: int | None
    database_url: str
    complete: bool


class Board:
    """What the live view shows: counted as outcomes are recorded."""

    def __init__(self, partners: Sequence[Partner]) -> None:
        self.partners = partners
        self.endpoints: dict[str, str] = {}  # endpoint id → partner
        self.sent = 0  # events
        self.deliveries = 0
        self.delivered: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()
        self.retried: dict[str, set[int]] = {partner.name: set() for partner in partners}
        self.all_sent = False

    @property
    def all_ended(self) -> bool:
        """Every delivery of every event has succeeded or is dead."""
        return self.all_sent and self.delivered.total() + self.dead.total() >= self.deliveries

    def settled(self, settlement: Settlement) -> None:
        """Count one outcome; called by the worker's settling thread."""
        payload = json.loads(settlement.job.payload)
        partner = self.endpoints[payload["endpoint_id"]]
        if settlement.status == "succeeded":
            self.delivered[partner] += 1
        elif settlement.status == "dead":
            self.dead[partner] += 1
        elif settlement.status == "failed":
            self.retried[partner].add(settlement.job.id)


@contextmanager
def demo_app(partners: Sequence[Partner], board: Board) -> Iterator[Effects]:
    """An app on a new SQLite file, with an endpoint for each partner. The file is left for a look at it."""
    folder = Path(tempfile.mkdtemp(prefix="effects-demo-"))
    settings = Settings(
        database_url=f"sqlite:///{folder / 'effects.db'}",
        keys=f"demo={generate_key()}",
        allow_private_addresses=True,
    )
    app = Effects(settings=settings)
    app.job_types.replace(WebhookDelivery(app, retry=SCHEDULE))
    migrate.init(app.store)
    for partner in partners:
        added = add_endpoint(partner.url, secret=partner.secret, description=partner.name, effects=app)
        board.endpoints[added.id] = partner.name
        with app.store.begin() as connection:  # with its breaker, the partner that is gone would take minutes
            limits.set_limit(app.store, connection, limit_key(added.id), actor="demo", breaker=None)
    try:
        yield app
    finally:
        app.dispose()


def bundled_events() -> Iterator[WebhookEvent]:
    """Real GitHub events, from the examples of octokit/webhooks (MIT, © 2018 Gregor Martynus)."""
    with (files("effects.demo") / "github-events.jsonl").open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            event = json.loads(line)
            yield WebhookEvent(f"github.{event['type']}", event["data"], key=f"demo:{number}")


def send_events(app: Effects, board: Board, limit: int | None) -> None:
    """Each event in a transaction of its own, as an app would send it."""
    for event in islice(bundled_events(), limit):
        with Session(app.engine) as session, session.begin():
            receipt = deliver_webhook(event, session=session, effects=app)
        board.sent += 1
        board.deliveries += len(receipt.deliveries)
    board.all_sent = True


@contextmanager
def worker_beside(app: Effects, board: Board) -> Iterator[Worker]:
    """A worker in a thread of this process; stopped in order at the end."""
    worker = Worker(app, settled=board.settled)
    thread = threading.Thread(target=worker.run, name="demo-worker")
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def account(app: Effects, board: Board) -> Account:
    """Add everything up: the database's account against the partners' own."""
    rows = [
        PartnerAccount(
            partner=partner.name,
            deliveries=board.sent,
            delivered=board.delivered[partner.name],
            retried=len(board.retried[partner.name]),
            dead=board.dead[partner.name],
            duplicates=partner.duplicates,
            signatures_verified=partner.verified,
        )
        for partner in board.partners
    ]
    findings = [finding.sentence for finding in audit(app)]
    return Account(
        events=board.sent,
        partners=rows,
        findings=findings,
        dead_job=_a_dead_job(app),
        database_url=app.settings.database_url,
        complete=not findings and all(_adds_up(row, board) for row in rows),
    )


def _adds_up(row: PartnerAccount, board: Board) -> bool:
    partner = next(one for one in board.partners if one.name == row.partner)
    return (
        row.delivered + row.dead == row.deliveries
        and len(partner.accepted) == row.delivered
        and row.duplicates == 0
        and partner.refuted == 0
    )


def _a_dead_job(app: Effects) -> int | None:
    dead = list_jobs(app.store, Filters(status="dead", limit=1))
    return dead[0].id if dead else None
