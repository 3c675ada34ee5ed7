"""A job for each reason to wait: what makes it, and how `effects why` says it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from effects import Effects, Retry, enqueue, enqueue_many
from effects.model.limits import Breaker, Rate
from effects.operate.evidence import Wait, job_evidence
from effects.store.limits import key_limits as limit_rows
from effects.store.limits import queue_pauses
from tests.support.limited_jobs import answered, limited
from tests.support.manual_workers import ManualWorker, run_sql


def waits(app: Effects, job_id: int) -> Wait:
    wait = job_evidence(app, job_id).waits
    assert wait is not None
    return wait


def live(app: Effects, **options: object) -> int:
    return enqueue("scripted", {}, effects=app, **options).job_id  # type: ignore[arg-type]


def pause_queue(app: Effects, seconds: float | None = None) -> None:
    with app.store.begin() as connection:
        queue_pauses.pause(
            app.store, connection, "default", actor="ann", seconds=seconds, reason="a release", create=True
        )


def pause_key(app: Effects, key: str, seconds: float = 600.0) -> None:
    with app.store.begin() as connection:
        limit_rows.pause(app.store, connection, key, actor="ann", seconds=seconds, reason="they asked", create=True)


def limit(app: Effects, key: str, **limits: object) -> None:
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, key, **limits)  # type: ignore[arg-type]


def of_paused_queue(app: Effects) -> int:
    ManualWorker(app)
    pause_queue(app)
    return live(app)


def of_paused_key(app: Effects) -> int:
    ManualWorker(app)
    pause_key(app, "k")
    return live(app, limit_key="k")


def of_paused_parent(app: Effects) -> int:
    ManualWorker(app)
    limit(app, "k", parent="above")
    pause_key(app, "above")
    return live(app, limit_key="k")


def behind_a_breaker(app: Effects) -> int:
    limit(app, "k", breaker=Breaker(1, 600.0))
    enqueue_many(limited("k", 2), effects=app)
    worker = ManualWorker(app)
    answered(worker, (worker.claim(1)[0], Retry("busy", after_seconds=7200)))
    return live(app, limit_key="k")


def behind_a_trial(app: Effects) -> int:
    job_id = behind_a_breaker(app)
    app.store.shift_clock(601)
    ManualWorker(app, "second").claim_one()
    return job_id


def in_a_blocked_group(app: Effects) -> int:
    ManualWorker(app)
    job_id = live(app, group_key="g")
    run_sql(app, "UPDATE effects_job_groups SET blocked = true WHERE group_key = 'g'")
    return job_id


def behind_a_group_head(app: Effects) -> int:
    ManualWorker(app)
    live(app, group_key="g")
    return live(app, group_key="g")


def with_a_draining_worker(app: Effects) -> int:
    ManualWorker(app)
    run_sql(app, f"UPDATE effects_workers SET drain_requested_at = {app.store.sql.now}")
    return live(app)


def with_a_silent_worker(app: Effects) -> int:
    ManualWorker(app)
    app.store.shift_clock(app.settings.lease_seconds + 1)
    return live(app)


def with_another_queues_worker(app: Effects) -> int:
    ManualWorker(app, queue="others")
    return live(app)


def of_a_missing_type(app: Effects) -> int:
    ManualWorker(app)
    run_sql(app, "INSERT INTO effects_jobs (job_type) VALUES ('no.such')")
    with app.store.read() as connection:
        return int(connection.exec_driver_sql("SELECT max(id) FROM effects_jobs").scalar_one())


def of_a_full_key(app: Effects) -> int:
    limit(app, "k", max_in_flight=1)
    live(app, limit_key="k")
    ManualWorker(app).claim_one()
    return live(app, limit_key="k")


def of_a_key_without_a_token(app: Effects) -> int:
    limit(app, "k", rate=Rate(1, 3600.0, 1))
    live(app, limit_key="k")
    ManualWorker(app).claim_one()
    return live(app, limit_key="k")


def due_later(app: Effects) -> int:
    ManualWorker(app)
    return live(app, run_at=datetime.now(UTC) + timedelta(hours=1))


def due(app: Effects) -> int:
    ManualWorker(app)
    return live(app)


REASONS: list[tuple[Callable[[Effects], int], str, str, str]] = [
    (
        of_paused_queue,
        "queue_paused",
        "default",
        r"^Its queue default is paused by ann until it is resumed \(a release\)",
    ),
    (of_paused_key, "limit_paused", "k", r"^Its limit key k is paused until 20.{17}Z \(they asked\)"),
    (of_paused_parent, "limit_paused", "above", r"^Its limit key above is paused until 20.{17}Z \(they asked\)"),
    (
        behind_a_breaker,
        "breaker",
        "k",
        r"^The breaker of its limit key k is open, and pauses it until .*after 1 failures",
    ),
    (behind_a_trial, "trial", "k", r"due .* and waits for the one trial that the open breaker of its limit key k"),
    (in_a_blocked_group, "group_blocked", "g", r"due .* because its group g is blocked"),
    (
        behind_a_group_head,
        "group_head",
        "g",
        r"due .* and waits behind job \d+ of its group g\. Of job \d+: it has been due for .* for a free worker",
    ),
    (with_a_draining_worker, "no_worker", "default", r"due .* waits for a worker on queue default: none is alive"),
    (with_a_silent_worker, "no_worker", "default", r"due .* waits for a worker on queue default: none is alive"),
    (with_another_queues_worker, "no_worker_for_queue", "default", r"due .* no worker serves it"),
    (of_a_missing_type, "type_not_registered", "no.such", r"with its job type no\.such, which is not registered here"),
    (of_a_full_key, "cap", "k", r"due .* waits for its limit key k: 1 of at most 1 are running"),
    (of_a_key_without_a_token, "rate", "k", r"due .* waits for the rate of its limit key k: the next start is at 20"),
    (due_later, "due_later", "", r"next attempt is due at 20.*, in ((59|60) min|1 h)"),
    (due, "free_worker", "default", r"due .* and waits for a free worker on queue default"),
]
