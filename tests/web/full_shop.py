"""A shop with something on every page: mail, webhooks, a report and numbers, beside jobs in every state."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from sqlalchemy import literal_column, select, text

from effects import Done, Effects, Refused, RetryPolicy, Schedule, Unknown, enqueue
from effects.store import schedules
from effects.store.limits import key_limits as limit_rows
from effects.store.limits import queue_pauses
from effects.store.numbers.rollups import WorkerRollup, write_rollups
from effects.worker import Worker
from effects_email import send_templated_email, suppress
from effects_reports import BucketCredentials, add_bucket, bucket_notice, report, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from effects_webhooks.jobs import WebhookDelivery
from tests.peers.serving import Serving
from tests.support.manual_workers import ManualWorker
from tests.support.scripted import Script, Scripted

HELD = "held"  # a job type whose unknown outcomes wait for a person
TEMPLATES = Path(__file__).parents[2] / "examples" / "emails"
DEAD = 130
KEY = base64.b64encode(bytes(range(32))).decode()  # the same in each process
MINUTES = 50


@report("numbers", key=("id",), formats=("csv",), chunk_rows=1_000)
def numbers(params: dict[str, str]) -> Any:
    """A few rows of text with a comma and a sign that opens a formula."""
    return select(literal_column("1").label("id"), literal_column("'=a, b'").label("name"))


@dataclass(frozen=True)
class FullShop:
    """Ids of what is on its pages."""

    app: Effects
    dead: int
    unknown: int
    mail: int
    event: str
    good: str
    gone: str
    run: str


class _Partner(BaseHTTPRequestHandler):
    """Accepts on `/good`, answers 503 elsewhere."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200 if self.path == "/good" else 503)
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b"<b>!")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def partner() -> Iterator[str]:
    """A receiver on loopback; its address."""
    with Serving(ThreadingHTTPServer(("127.0.0.1", 0), _Partner)) as serving:
        yield f"http://127.0.0.1:{serving.port}"


def full_app(url: str, folder: Path) -> Effects:
    """An app with templates, a report, endpoints on loopback and a schedule."""
    app = Effects(
        url, job_types=[Scripted(), Scripted(HELD, on_unknown="hold")], keys=f"k={KEY}",
        allow_private_addresses=True, bucket_private_networks="127.0.0.0/8",
        email_from="The Shop <hello@shop.example>", templates=TEMPLATES,
        smtp_url=f"maildir:{folder / 'mail'}", storage_url=str(folder / "files"), reports=[numbers],
        schedules=[Schedule("nightly", "scripted", {"moves": ["done"]}, cron="30 3 * * *", zone="Europe/Vienna")],
    )  # fmt: skip
    app.job_types.replace(WebhookDelivery(app, retry=RetryPolicy(max_attempts=1)))
    return app


def fill(app: Effects, receiver: str) -> FullShop:
    """Put something on every page; a worker carries out what is sent."""
    schedules.register(app.store, list(app.schedules.values()))
    good = add_endpoint(f"{receiver}/good", ["*"], description="Good partner", effects=app).id
    gone = add_endpoint(f"{receiver}/gone?token=x", ["order.*"], tenant=None, effects=app).id
    event = deliver_webhook(
        WebhookEvent("order.paid", {"total": "12 €", "to": "ann@example.com"}), effects=app
    ).event_id
    for number in range(8):
        deliver_webhook(WebhookEvent("order.shipped", {"number": number}), effects=app)
    mail = send_templated_email("welcome", to="ann@example.com", context={"name": "Ann"}, effects=app)
    suppress("bob@example.com", reason="hard_bounce", why="550 no such user", effects=app)
    for name in ("acme", "empty"):
        add_bucket(name, f"s3://files?endpoint={receiver}", BucketCredentials("id", "secret"), effects=app)
    run = request_report("numbers", {}, notify=bucket_notice("acme"), effects=app)
    Worker(app).drain(60)
    unknown = _dead_letters(app)
    _numbers(app)
    for number in range(6):
        enqueue("scripted", Script(), key=f"waits:{number}", limit_key="smtp", effects=app)
    with app.store.begin() as connection:
        limit_rows.set_limit(app.store, connection, "smtp", actor="cli:ann", max_in_flight=4)
        queue_pauses.pause(app.store, connection, "default", actor="cli:ann", reason="the bank is down")
    with app.store.read() as connection:
        dead = connection.execute(text(f"SELECT max(job_id) FROM {app.store.sql.unresolved} WHERE NOT unknown"))
        dead_id = int(dead.scalar_one())
    return FullShop(app, dead_id, unknown, int(mail.job_id), event, good, gone, run.run_id)


def _dead_letters(app: Effects) -> int:
    """Many of one cause, and three effects that may have happened; the oldest of these."""
    worker = ManualWorker(app, "w1")
    for number in range(DEAD):
        enqueue("scripted", Script(), key=f"invoice:{number}", effects=app)
    while jobs := worker.claim(DEAD):
        ending = Refused("550 mailbox of eve@example.com is gone", code="gone")
        worker.settle(*((job, ending) for job in jobs))
    done = enqueue("scripted", Script(), key="done:1", effects=app)
    worker.settle((worker.claim_one(), Done()))
    assert done.job_id
    ids = [enqueue(HELD, Script(), key=f"charge:{number}", effects=app).job_id for number in (1, 2, 3)]
    while jobs := worker.claim(3):
        worker.release(*jobs)
        for job in jobs:
            worker.settle((job, Unknown("the connection was cut after 312 bytes")), released=True)
    return int(ids[0])


def _numbers(app: Effects) -> None:
    """An hour of a worker's minutes, with a gap."""
    with app.store.read() as connection:
        now = app.store.now(connection) // 60 * 60
    rollups = []
    for minute in range(MINUTES, 0, -1):
        if 20 < minute < 26:
            continue
        busy = 40 + (minute * 7) % 23
        row = WorkerRollup(
            begins_at=now - minute * 60, seconds=60, job_type="scripted", queue="default", worker="w1", done=busy,
            failed=minute % 5, refused=minute % 3, unknown=int(minute == 30), run_seconds=busy * 0.1,
        )  # fmt: skip
        row.wait_counts[3 + minute % 4] = row.run_counts[9] = busy
        row.run_counts[12 + minute % 3] = 4
        rollups.append(row)
    write_rollups(app.store, rollups)


def pages_of(shop: FullShop) -> list[str]:
    """Every page that needs no form."""
    return [
        "/", "/needs", "/needs?effect=not_done", "/decisions", "/jobs", "/jobs?status=dead", "/numbers",
        "/numbers?newer=1h", "/queues", "/workers", "/schedules", "/limits", "/bulk", "/health", "/audit", "/why",
        "/settings", f"/jobs/{shop.dead}", f"/jobs/{shop.unknown}", "/needs/bulk?do=requeue&effect=not_done",
        f"/jobs/{shop.dead}/requeue", "/email/messages", f"/email/messages/{shop.mail}", "/email/templates",
        "/email/templates/show?name=welcome", "/email/suppressions", "/webhooks", f"/webhooks/endpoints/{shop.good}",
        f"/webhooks/endpoints/{shop.gone}", f"/webhooks/endpoints/{shop.gone}/settings", "/webhooks/deliveries",
        f"/webhooks/deliveries/{shop.event}/{shop.gone}",
        "/webhooks/events", f"/webhooks/events/{shop.event}", f"/webhooks/explain?what=429&endpoint={shop.gone}",
        "/reports", f"/reports/runs/{shop.run}", "/reports/buckets",
    ]  # fmt: skip
