"""Why an effect waits: of all that can hold up its job, the one reason that counts. Pure."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from effects.store.db.records import JobRecord, Moment
from effects.store.limits.holds import Holds, KeyState

WaitReason: TypeAlias = Literal[
    "due_later", "operator", "queue_paused", "limit_paused", "breaker", "trial", "group_blocked", "group_head",
    "no_worker", "no_worker_for_queue", "type_not_registered", "cap", "rate", "free_worker",
]  # fmt: skip


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Why an effect waits, by what has to happen before it can start.

    Reasons:
        due_later: it is not due yet; `until` says when.
        operator: the last worker lacked what only an operator can give it, such as a sealing key: `cause`. It is
            looked at again at `until`.
        queue_paused, limit_paused: `name` is paused, `by` whom (of a queue), why (`cause`), and `until` when; None:
            until it is resumed.
        breaker: as limit_paused, by the open breaker of the limit key `name`.
        trial: that pause is over, and the one attempt that the open breaker allows is under way.
        group_blocked, group_head: an operator has blocked the group `name`; or its job `job_id` goes first.
        no_worker, no_worker_for_queue: no worker is alive and takes new work; or none of them serves the queue `name`.
        type_not_registered: no code of the job type `name` is registered in this process; a worker needs it.
        cap: `running` of at most `cap` jobs of the limit key `name` run.
        rate: the limit key `name` has no token until `until`.
        free_worker: nothing holds it up; it starts when a worker of the queue `name` has a free thread.

    `due_seconds`: until it falls due; negative: for how long it has been due.
    """

    reason: WaitReason
    due_seconds: float
    name: str = ""
    until: Moment | None = None
    by: str | None = None
    cause: str | None = None
    job_id: int | None = None
    running: int | None = None
    cap: int | None = None


def why_waits(job: JobRecord, holds: Holds, *, registered: bool, lacks: str | None = None) -> Wait:
    """Find the one reason why a job waits.

    Of what ends by a clock (pauses, the due time) it is what ends last. Only without any of these it is another job of
    the group, the workers, or a limit.

    Args:
        registered: whether its job type is registered in this process.
        lacks: what the last worker lacked, if that is why the attempt was put off.
    """
    due = holds.due_seconds
    timed = _pauses(holds)
    if due > 0:
        later: WaitReason = "due_later" if lacks is None else "operator"
        timed.append((due, Wait(reason=later, due_seconds=due, until=job.run_at, cause=lacks)))
    if timed:
        return max(timed, key=lambda pair: pair[0])[1]
    return (
        _behind_group(job, holds)
        or _without_worker(job, holds, registered)
        or _full(holds)
        or Wait(reason="free_worker", due_seconds=due, name=job.queue)
    )


def _pauses(holds: Holds) -> list[tuple[float, Wait]]:
    """The pauses under way, with the seconds until each ends."""
    pauses = [
        (
            pause.left_seconds,
            Wait(
                reason="queue_paused", due_seconds=holds.due_seconds, name=pause.queue, by=pause.actor,
                until=pause.until if pause.ends else None, cause=pause.reason,
            ),
        )
        for pause in holds.queue_pauses
    ]  # fmt: skip
    return pauses + [(key.paused_seconds, _key_pause(key, holds)) for key in holds.keys if key.paused_seconds > 0]


def _key_pause(key: KeyState, holds: Holds) -> Wait:
    return Wait(
        reason="breaker" if key.breaker_open else "limit_paused", due_seconds=holds.due_seconds, name=key.limit_key,
        until=key.paused_until, cause=key.pause_reason,
    )  # fmt: skip


def _behind_group(job: JobRecord, holds: Holds) -> Wait | None:
    group = holds.group
    if group is None:
        return None
    if group.blocked:
        return Wait(reason="group_blocked", due_seconds=holds.due_seconds, name=group.group_key)
    if group.head_id == job.id:
        return None
    return Wait(reason="group_head", due_seconds=holds.due_seconds, name=group.group_key, job_id=group.head_id)


def _without_worker(job: JobRecord, holds: Holds, registered: bool) -> Wait | None:
    due = holds.due_seconds
    if not registered:
        return Wait(reason="type_not_registered", due_seconds=due, name=job.job_type)
    if not holds.worker_queues:
        return Wait(reason="no_worker", due_seconds=due, name=job.queue)
    if not any(job.queue in queues for queues in holds.worker_queues):
        return Wait(reason="no_worker_for_queue", due_seconds=due, name=job.queue)
    return None


def _full(holds: Holds) -> Wait | None:
    due = holds.due_seconds
    for key in holds.keys:
        if key.cap is not None and key.running >= key.cap:
            reason: WaitReason = "trial" if key.breaker_open else "cap"
            return Wait(reason=reason, due_seconds=due, name=key.limit_key, running=key.running, cap=key.cap)
    without_token = max(holds.keys, key=lambda key: key.token_seconds, default=None)
    if without_token is not None and without_token.token_seconds > 0:
        return Wait(reason="rate", due_seconds=due, name=without_token.limit_key)
    return None
