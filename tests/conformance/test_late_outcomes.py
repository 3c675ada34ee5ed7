"""What a worker learns after it has lost its lease: kept with its attempt, and never more than that changes, but for an
effect that is held as unknown."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection

from effects import Cancelled, Done, Effects, NewJob, Refused, Retry, Unknown, enqueue, enqueue_many
from effects.model.outcome import Outcome
from effects.model.settlement import Execution
from effects.operate.evidence import find_evidence
from effects.operate.sentences import sentence
from effects.operate.tables.audit import audit
from effects.store.effects.requeue import Resolution, ignore, requeue, resolve_unknown
from effects.store.queue.cancellation import cancel
from effects.store.queue.settle import settle
from effects_email import send_templated_email
from effects_email.tables.ledger import SendRecord
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from effects_webhooks.tables.ledger import DeliveryRecord
from tests.conftest import AppFactory
from tests.support.effect_states import effects_app
from tests.support.manual_workers import LostAttempt, ManualWorker, all_but_late, everything, row, rows, run_sql
from tests.support.sampling import sample
from tests.support.scripted import Scripted

LATE: dict[str, Outcome] = {
    "done": Done(), "failed": Retry("not now", code="busy"), "refused": Refused("no"), "cancelled": Cancelled(),
    "unknown": Unknown("no reply"),
}  # fmt: skip


class Scene(LostAttempt):
    """What has become since of the job whose attempt was lost."""

    def ends_again(self, outcome: Outcome) -> None:
        self.next.settle((self.again(), outcome))

    def resolve(self, resolution: Resolution) -> None:
        app = self.app
        resolve_unknown(app.store, app.job_types, app.ledgers, self.job.id, resolution, actor="cli:ann")

    def comes_late(self, outcome: Outcome) -> None:
        settled = self.gone.settle((self.job, outcome), released=True)
        assert [settlement.job.id for settlement in settled.stale] == [self.job.id]

    @property
    def first(self) -> dict[str, Any]:
        return rows(self.app, "job_attempts", "job_id = :id", id=self.job.id)[0]


# Kept as it is, whatever comes late.
CLOSED: dict[str, tuple[str, Callable[[Scene], object]]] = {
    "waits": ("scripted", lambda scene: None),
    "runs": ("scripted", Scene.again),
    "was done": ("scripted", lambda scene: scene.ends_again(Done())),
    "marked done": ("held", lambda scene: scene.resolve("mark-done")),
    "given up": ("held", lambda scene: scene.resolve("give-up")),
    "requeued": ("held", lambda scene: scene.resolve("requeue")),
    "ignored": ("held", lambda scene: ignore(scene.app.store, scene.app.ledgers, scene.job.id, actor="a", reason="b")),
}
# Held as unknown.
OPEN: dict[str, tuple[str, Callable[[Scene], object]]] = {
    "held": ("held", lambda scene: None),
    "refused since": ("scripted", lambda scene: scene.ends_again(Refused("no"))),
    "cancelled since": (
        "scripted", lambda scene: cancel(scene.app.store, scene.app.ledgers, scene.job.id, actor="cli:ann"),
    ),
}  # fmt: skip
# With what comes late after its job is held, or before; with a key and without one.
HELD = [
    (fate, early, key) for fate, early, key in product(OPEN, (False, True), ("k", None)) if fate != "held" or not early
]
SAMPLE_SIZE = 4


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[Scripted(), Scripted("held", on_unknown="hold")])


@pytest.mark.parametrize(("fate", "late"), sample(list(product(CLOSED, ["done", "failed", "refused"])), SAMPLE_SIZE))
def test_it_is_kept_with_its_attempt_and_changes_nothing_else(fate: str, late: str, app: Effects) -> None:
    job_type, come_to = CLOSED[fate]
    scene = Scene(app, job_type, "k")
    come_to(scene)
    before = _without_late(app)
    scene.comes_late(LATE[late])
    assert _without_late(app) == before
    assert scene.first["late_outcome"] == {"done": "succeeded"}.get(late, late)
    assert scene.first["late_verdict"] == ("done" if late == "done" else "not_done")
    words = sentence(find_evidence(app, "k")[0])
    if fate == "requeued":
        assert f"of job {scene.job.id} was lost" in words
    assert f": {scene.first['late_outcome']}" in words.partition("its worker reported later, at ")[2]
    assert audit(app.store, app.ledgers) == []
    kept = scene.first
    scene.comes_late(LATE["refused" if late == "done" else "done"])  # it was said once
    assert scene.first == kept


@pytest.mark.parametrize("late", ["cancelled", "unknown"])
@pytest.mark.parametrize("fate", ["waits", "held"])
def test_what_says_nothing_of_the_effect_is_not_kept(fate: str, late: str, app: Effects) -> None:
    scene = Scene(app, {**CLOSED, **OPEN}[fate][0], "k")
    before = everything(app)
    scene.comes_late(LATE[late])
    assert everything(app) == before


@pytest.mark.parametrize(("fate", "early", "key"), sample(HELD, SAMPLE_SIZE))
def test_a_late_success_resolves_a_held_unknown(fate: str, early: bool, key: str | None, app: Effects) -> None:
    scene = _held_with(app, fate, "done", key, early=early)
    actions = {action["action"]: action for action in rows(app, "job_actions")}
    assert (actions["mark_done"]["actor"], actions["mark_done"]["reason"]) == (
        "worker:gone", "late outcome of attempt 1",
    )  # fmt: skip
    assert row(app, "audit_log", "action = 'mark_done'")["actor"] == "worker:gone"
    assert rows(app, "unresolved") == []
    assert audit(app.store, app.ledgers) == []
    [evidence] = find_evidence(app, key or str(scene.job.id))
    assert (evidence.state, evidence.standing and evidence.standing.effect) == ("done", "done")
    with pytest.raises(Exception, match="is done; only --even-if-done"):
        requeue(app.store, app.job_types, scene.job.id, actor="cli:ann")


@pytest.mark.parametrize("late", ["failed", "refused"])
@pytest.mark.parametrize(("fate", "early", "key"), sample(HELD, SAMPLE_SIZE))
def test_a_late_failure_proves_that_the_effect_did_not_happen(
    fate: str, early: bool, key: str | None, late: str, app: Effects
) -> None:
    """It stays a dead letter, which may be requeued without a word about what is unknown."""
    scene = _held_with(app, fate, late, key, early=early)
    assert row(app, "audit_log", "action = 'not_done'")["actor"] == "worker:gone"
    assert [bool(letter["unknown"]) for letter in rows(app, "unresolved")] == (
        [] if fate == "cancelled since" else [False]
    )
    assert [effect["state"] for effect in rows(app, "effect_ledger")] == (["refused"] if key else [])
    assert audit(app.store, app.ledgers) == []
    requeue(app.store, app.job_types, scene.job.id, actor="cli:ann")
    assert audit(app.store, app.ledgers) == []


@pytest.mark.parametrize("second", ["lost", "requeued"])
def test_a_late_failure_of_one_attempt_proves_nothing_of_another(second: str, app: Effects) -> None:
    scene = Scene(app, "scripted" if second == "lost" else "held", "k")
    if second == "lost":
        scene.ends_again(Unknown("no reply", on_unknown="hold"))
    else:
        scene.resolve("requeue")
        scene.job = scene.next.claim_one()
        scene.next.release(scene.job)
        second_worker, scene.next = scene.next, ManualWorker(app, "third")
        scene.lose(second_worker)
    scene.comes_late(LATE["refused"])
    assert [bool(letter["unknown"]) for letter in rows(app, "unresolved")] == [True]
    assert row(app, "effect_ledger")["state"] == "unknown"
    assert audit(app.store, app.ledgers) == []


@pytest.mark.parametrize("fails", [False, True])
def test_what_is_recorded_with_a_late_success_is_recorded_or_the_effect_stays_held(fails: bool, app: Effects) -> None:
    scene = Scene(app, "held", "k")

    def apply(connection: Connection) -> None:
        enqueue("scripted", {}, key="follows", session=connection, effects=app)
        if fails:
            raise ZeroDivisionError

    scene.comes_late(Done(apply=apply))
    assert scene.first["late_verdict"] == "done"
    assert len(rows(app, "jobs")) == (0 if fails else 1)
    assert len(rows(app, "unresolved")) == (1 if fails else 0)
    assert audit(app.store, app.ledgers) == []


def test_the_ledgers_of_mail_and_webhooks_take_it_as_any_success(app_factory: AppFactory, tmp_path: Any) -> None:
    app = effects_app(app_factory, tmp_path)
    send_templated_email("hello", to="ann@example.com", context={}, key="mail", on_unknown="hold", effects=app)
    endpoint = add_endpoint("https://partner.example/in", ["order.paid"], effects=app).id
    event = deliver_webhook(WebhookEvent("order.paid", {}), effects=app)
    run_sql(app, "UPDATE effects_jobs SET on_unknown = 'hold', unknown_count = 1")  # a maildir is asked only once
    late = {
        "emails": SendRecord(sha256="0" * 64, transport="default", outcome="sent", took=True, reply_code=250,
                             reply="queued as 4711", provider_id="p-1"),
        "webhooks": DeliveryRecord(event.event_id, endpoint, status=204),
    }  # fmt: skip
    for queue, private in late.items():
        gone = ManualWorker(app, f"gone {queue}", queue=queue)
        job = gone.claim_one()
        gone.release(job)
        run_sql(app, "DELETE FROM effects_workers WHERE id = :id", id=gone.name)
        assert len(ManualWorker(app, "rescuer").rescue().accepted) == 1
        settlement = replace(gone.decide(job, Done()), execution=Execution(job, private=private))
        assert settle(app.store, [settlement], app.ledgers).stale == [settlement]
    mail = row(app, "sent_emails")
    assert (mail["state"], mail["tries"], mail["reply_code"], mail["provider_id"]) == ("done", 1, 250, "p-1")
    delivery = row(app, "delivered_webhooks")
    assert (delivery["state"], delivery["tries"], delivery["status_code"]) == ("done", 1, 204)
    assert rows(app, "unresolved") == []
    assert audit(app.store, app.ledgers) == []


def test_many_come_in_one_batch_with_others(app: Effects) -> None:
    enqueue_many([NewJob(job_type="held", payload={}, key=f"k{number}") for number in range(6)], effects=app)
    gone = ManualWorker(app, "gone")
    jobs = gone.claim()
    gone.release(*jobs)
    alive = ManualWorker(app, "alive")
    run_sql(app, "UPDATE effects_jobs SET locked_by = 'alive' WHERE id > :id", id=jobs[2].id)
    run_sql(app, "DELETE FROM effects_workers WHERE id = 'gone'")
    assert len(alive.rescue().accepted) == 3
    settled = gone.settle(*((job, Done()) for job in jobs), released=True)
    assert (len(settled.accepted), len(settled.stale)) == (3, 3)
    assert [effect["state"] for effect in rows(app, "effect_ledger")] == ["done"] * 6
    assert audit(app.store, app.ledgers) == []


def _held_with(app: Effects, fate: str, late: str, key: str | None, *, early: bool) -> Scene:
    job_type, come_to = OPEN[fate]
    scene = Scene(app, job_type, key)
    for step in (scene.comes_late, None) if early else (None, scene.comes_late):
        if step is None:
            come_to(scene)
        else:
            step(LATE[late])
    return scene


def _without_late(app: Effects) -> dict[str, Any]:
    return {**all_but_late(app), **{table: rows(app, table) for table in ("unresolved", "job_actions", "audit_log")}}
