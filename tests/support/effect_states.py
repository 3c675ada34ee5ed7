"""Effects of every kind in every state that an operator may find them in, made by hand on one database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from effects import Done, Effects, Refused, Retry, Unknown, enqueue
from effects.keys.encryption import generate_key
from effects.model.settlement import AttemptEnd
from effects.store.effects.requeue import Resolution, ignore, requeue, resolve_unknown
from effects.store.queue.cancellation import cancel
from effects_email import send_templated_email
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.conftest import AppFactory
from tests.support.manual_workers import ManualWorker, rows, run_sql
from tests.support.scripted import Scripted

QUEUES = {"held": "default", "scripted": "default", "keyless": "default", "email": "emails", "webhook": "webhooks"}
KINDS = tuple(QUEUES)
REPEATING = ("scripted", "webhook")  # kinds whose policy is `repeat`

KEYS = f"k1={generate_key()},digest={generate_key()}"
HELD, REPEATED = Unknown("no reply", on_unknown="hold"), Unknown("no reply", on_unknown="repeat")


def effects_app(app_factory: AppFactory, folder: Path) -> Effects:
    """An app that has effects of every kind; its mail goes to a maildir, and nothing reads its templates but it."""
    template = folder / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello\n")
    return app_factory(
        job_types=[Scripted(), Scripted("held", on_unknown="hold")], keys=KEYS, templates=folder / "emails",
        email_from="Shop <hello@shop.example>", smtp_url=f"maildir:{folder}/mail",
    )  # fmt: skip


class Effect(NamedTuple):
    """One effect: its first job, its newest, and the name that `effects why` knows it by (None without a key)."""

    kind: str
    state: str
    first: int
    newest: int
    name: str | None
    endpoint: str | None


class EffectStates:
    """Makes effects in a given state. Each begins with no live job: a claim finds its own alone."""

    def __init__(self, app: Effects) -> None:
        self.app = app
        self.count = 0
        self.workers = {queue: ManualWorker(app, f"worker of {queue}", queue=queue) for queue in set(QUEUES.values())}

    def make(self, kind: str, state: str) -> Effect:
        run_sql(self.app, "DELETE FROM effects_jobs")
        self.count += 1
        first, name, endpoint = self._enqueue(kind, f"{kind} {self.count}")
        newest = _STATES[state](self, kind, first) or first
        return Effect(kind, state, first, newest, name, endpoint)

    def _enqueue(self, kind: str, key: str) -> tuple[int, str | None, str | None]:
        """The job's id, the effect's name, and the endpoint of a webhook."""
        app = self.app
        if kind == "email":
            sent = send_templated_email("hello", to="ann@example.com", context={}, key=key, effects=app)
            return sent.job_id, key, None
        if kind == "webhook":
            event_type = f"order.paid{self.count}"
            endpoint = add_endpoint("https://partner.example/in", [event_type], effects=app).id
            receipt = deliver_webhook(WebhookEvent(event_type, {}, key=key), effects=app)
            [job] = rows(app, "jobs")
            return job["id"], f"{receipt.event_id}:{endpoint}", endpoint
        job_type, name = ("held", None) if kind == "keyless" else (kind, key)
        return enqueue(job_type, {}, key=name, effects=app).job_id, name, None

    def end(self, kind: str, ending: AttemptEnd) -> None:
        worker = self.workers[QUEUES[kind]]
        worker.settle((worker.claim_one(), ending))

    def requeued(self, kind: str, job_id: int, ending: AttemptEnd | None = None) -> int:
        """Refused, requeued, and perhaps ended again; the new job's id."""
        self.end(kind, Refused("no"))
        newest = requeue(self.app.store, self.app.job_types, job_id, actor="bob").job_id
        if ending is not None:
            self.end(kind, ending)
        return newest

    def resolved(self, kind: str, job_id: int, resolution: Resolution) -> None:
        self.end(kind, HELD)
        resolve_unknown(self.app.store, self.app.job_types, self.app.ledgers, job_id, resolution, actor="bob")

    def ignored(self, kind: str, job_id: int) -> None:
        self.end(kind, Refused("no"))
        ignore(self.app.store, self.app.ledgers, job_id, actor="bob", reason="a test")

    def cancelled(self, kind: str, job_id: int, *earlier: AttemptEnd) -> None:
        for ending in earlier:
            self.end(kind, ending)
        cancel(self.app.store, self.app.ledgers, job_id, actor="bob")


_STATES: dict[str, Callable[[EffectStates, str, int], int | None]] = {
    "waiting": lambda states, kind, job: None,
    "running": lambda states, kind, job: states.workers[QUEUES[kind]].claim_one().id,
    "retrying": lambda states, kind, job: states.end(kind, Retry("busy")),
    "refused": lambda states, kind, job: states.end(kind, Refused("no")),
    "ignored": lambda states, kind, job: states.ignored(kind, job),
    "abandoned": lambda states, kind, job: states.cancelled(kind, job),
    "done": lambda states, kind, job: states.end(kind, Done()),
    "unknown": lambda states, kind, job: states.end(kind, HELD),
    "unknown and cancelled": lambda states, kind, job: states.cancelled(kind, job, REPEATED),
    "given up": lambda states, kind, job: states.resolved(kind, job, "give-up"),
    "marked done": lambda states, kind, job: states.resolved(kind, job, "mark-done"),
    "requeued": lambda states, kind, job: states.requeued(kind, job),
    "requeued and refused": lambda states, kind, job: states.requeued(kind, job, Refused("no")),
    "requeued and unknown": lambda states, kind, job: states.requeued(kind, job, HELD),
    "requeued and done": lambda states, kind, job: states.requeued(kind, job, Done()),
}
STATES = tuple(_STATES)
