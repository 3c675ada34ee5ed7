"""The kill loop: processes that enqueue and deliver are killed at random moments; the receivers keep the books."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from effects import Effects
from effects.operate.tables.audit import audit
from effects_webhooks import NewEndpoint, WebhookEvent, deliver_webhook, verify
from tests.peers.http import Answer, Receiver, Request
from tests.support.manual_workers import rows
from tests.support.processes import Child, Fleet
from tests.support.waiting import wait_until

WORKERS = 3
KILL_SECONDS = (0.0, 0.3)  # between two kills
KILLED_WHILE_STARTING = 0.2  # share; the others are given the time to begin their work
ENQUEUE_SECONDS = 0.02  # between two events
ANSWER_SECONDS = 0.02  # the slowest receiver
DRAIN_SECONDS = 100.0
IMPATIENCE = {
    "EFFECTS_LEASE_SECONDS": "1",
    "EFFECTS_HEARTBEAT_SECONDS": "0.2",
    "EFFECTS_ALLOW_PRIVATE_ADDRESSES": "true",
}


def event(number: int) -> WebhookEvent:
    return WebhookEvent("order.paid", {"number": number, "text": "ü" * (number % 50)}, key=f"order:{number}:paid")


def enqueue_for_ever(acknowledged: str) -> None:
    """One event after the other; a line in the file for each whose commit has returned.

    Started again after a kill, it repeats the one that it knows nothing of, with the same key.
    """
    app = Effects()
    file = os.open(acknowledged, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    number = os.fstat(file).st_size // 64
    print("started", flush=True)
    pause = threading.Event()
    while True:
        if number % 2:
            receipt = deliver_webhook(event(number), effects=app)
        else:
            with Session(app.engine) as session, session.begin():
                receipt = deliver_webhook(event(number), session=session, effects=app)
        os.write(file, f"{receipt.event_id}".ljust(63).encode() + b"\n")
        number += 1
        pause.wait(ENQUEUE_SECONDS)


@dataclass
class KillLoop:
    """Runs, kills, drains, and compares.

    Args:
        looker: an app of the test's own process.
        seed: of the moments, the victims and the receivers' slowness.
    """

    looker: Effects
    fleet: Fleet
    folder: Path
    keys: str
    seed: int
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> None:
        draw = random.Random(self.seed)
        pause = threading.Event()
        crew = {"enqueuer": self._start("enqueuer"), **{name: self._start(name) for name in self._names()}}
        wait_until(self.acknowledged)
        while sum(self.killed.values()) < kills:
            victim = draw.choice(list(crew))
            if draw.random() > KILLED_WHILE_STARTING:
                crew[victim].wait_logged("started")
            pause.wait(draw.uniform(*KILL_SECONDS))
            crew[victim].send(signal.SIGKILL)
            assert crew[victim].wait() == -signal.SIGKILL, crew[victim].output
            self.killed[victim] += 1
            crew[victim] = self._start(victim)
        for child in crew.values():
            child.kill()

    def drain(self) -> None:
        """The last drain: one worker, undisturbed, until no job is live."""
        worker = self._start("last")
        worker.wait_logged("started")  # before that SIGTERM would simply end it
        wait_until(lambda: not rows(self.looker, "jobs") or worker.exit_code is not None, seconds=DRAIN_SECONDS)
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0, worker.output

    def acknowledged(self) -> list[str]:
        """The ids of the events whose commit has returned."""
        file = self._acknowledged
        return [line.strip() for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def _acknowledged(self) -> Path:
        return self.folder / "acknowledged"

    def _names(self) -> list[str]:
        return [f"worker-{n}" for n in range(WORKERS)]

    def _start(self, name: str) -> Child:
        env = {**IMPATIENCE, "EFFECTS_KEYS": self.keys}
        if name == "enqueuer":
            return self.fleet.start(enqueue_for_ever, str(self._acknowledged), **env)
        return self.fleet.worker(app="tests.crash.app:app", **env)


def slow_answers(seed: int) -> Any:
    """A receiver's script: every request is accepted, some a little later."""
    draw = random.Random(seed)
    pause = threading.Event()

    def answer(request: Request) -> Answer:
        pause.wait(draw.uniform(0, ANSWER_SECONDS))
        return Answer(200)

    return answer


@dataclass(frozen=True)
class ReceiverRecord:
    """An endpoint and the receiver behind it."""

    endpoint: NewEndpoint
    receiver: Receiver

    @property
    def cut_short(self) -> int:
        """Requests whose sender died before writing their last byte; no receiver takes them for an event."""
        return len(self.receiver.requests) - len(self.requests)

    @property
    def requests(self) -> list[Request]:
        """The whole ones."""
        return [
            request for request in self.receiver.requests if len(request.body) == int(request.headers["content-length"])
        ]

    @property
    def repeats(self) -> int:
        return len(self.requests) - len(self.bodies())

    def bodies(self) -> dict[str, list[bytes]]:
        """webhook-id → the bodies that came under it; every signature is checked."""
        bodies: dict[str, list[bytes]] = {}
        for request in self.requests:
            assert verify(self.endpoint.secret, request.headers, request.body) == request.message_id
            bodies.setdefault(request.message_id, []).append(request.body)
        return bodies


def faults(app: Effects, acknowledged: list[str], receiver_records: list[ReceiverRecord]) -> list[str]:
    """Everything that should not be so."""
    problems: list[str] = [f"stuck: job {job['id']} is {job['status']}" for job in rows(app, "jobs")]
    if len(set(acknowledged)) != len(acknowledged):
        problems.append("two events for one key")
    jobs = {job["id"]: job for job in rows(app, "job_history")}
    losses = Counter(row["job_id"] for row in rows(app, "job_attempts", "outcome IN ('lost', 'unknown')"))
    deliveries = {(row["event_id"], row["endpoint_id"]): row for row in rows(app, "delivered_webhooks")}
    for receiver_record in receiver_records:
        endpoint_id, bodies = receiver_record.endpoint.id, receiver_record.bodies()
        for event_id in acknowledged:
            delivery = deliveries.get((event_id, endpoint_id))
            job = jobs.get(delivery["job_id"]) if delivery else None
            if event_id not in bodies and (job is None or job["status"] != "dead"):
                problems.append(f"lost: {event_id} to {endpoint_id}")
        for event_id, received in bodies.items():
            delivery = deliveries.get((event_id, endpoint_id))
            if delivery is None:
                problems.append(f"invented: {event_id} to {endpoint_id}")
            elif len(received) > 1 + losses[delivery["job_id"]]:
                problems.append(f"unexplained: {event_id} to {endpoint_id}, {len(received)} times")
            if len(set(received)) > 1:
                problems.append(f"changed: {event_id} came with different bytes: {sorted(map(len, received))}")
    return problems + [
        f"audit: {finding.sentence} {finding.count} {finding.job_ids}" for finding in audit(app.store, app.ledgers)
    ]
