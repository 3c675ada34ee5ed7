"""What an app does with an effect after its request, by its key: look at it, cancel it, reschedule it, wait for it.

In async code too.

A key belongs to its job type: `job_type` is needed only where effects of two types have the same key.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.app.default import app_of, in_async
from effects.app.effects import Effects
from effects.errors import EnqueueError
from effects.kit import arguments
from effects.kit.arguments import optional, require
from effects.store.effects import by_key
from effects.store.effects.by_key import EffectStatus
from effects.store.notifier import EndListener
from effects.store.queue import cancellation
from effects.store.sessions.asynchronous import run_in_async
from effects.store.sessions.joining import AnySession

if TYPE_CHECKING:
    from effects.store.sessions.asynchronous import AnyAsyncSession

TIMEOUT_MAX_SECONDS = 7 * 86_400.0
PAUSE_SECONDS = 0.05  # before the second look; each pause is twice the one before it
PAUSE_MAX_SECONDS = 1.0

CancelAnswer: TypeAlias = Literal["cancelled", "stopped", "released", "ended"]
RescheduleAnswer: TypeAlias = Literal["rescheduled", "running", "ended"]


class CancelResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `cancel` came to, and the effect after it.

    `result` is one of:
        cancelled: its job waited, and has ended cancelled.
        stopped: an attempt has begun and not been released. It will not be: the attempt ends without the effect.
        released: an attempt is under way that may make the effect, or has made it. It was asked to stop, and is not
            followed by another.
        ended: it had ended before; `effect` says how.
    """

    result: CancelAnswer
    effect: EffectStatus

    @property
    def prevented(self) -> bool:
        """No attempt has made the effect, and none will. False where an earlier one may have: `effect.state` tells."""
        return self.result in ("cancelled", "stopped") and self.effect.state not in ("done", "unknown", "released")


class RescheduleResult(msgspec.Struct, frozen=True, kw_only=True):
    """What `reschedule` came to, and the effect after it.

    `result` is `rescheduled`; or `running`: an attempt is under way; or `ended`. In the last two nothing has changed.
    """

    result: RescheduleAnswer
    effect: EffectStatus


def status(
    *, key: str, job_type: str | None = None, session: AnySession | None = None, effects: Effects | None = None
) -> EffectStatus:
    """Look up an effect by its key.

    Args:
        key: the idempotency key of its job: that of the receipt (`Receipt.key`, `EmailReceipt.key`), or what a package
            makes of its own names, such as `delivery_key(event_id, endpoint_id)`. Exact, at most 255 characters.
        job_type: its type, such as `email.send`. Default any.
        session: look in this transaction, which sees what it has enqueued. Default: what is committed.
        effects: the Effects to use; default the process's.

    Raises:
        JobNotFound: there is no effect of this key (of this type). An effect that many jobs make,
            such as a report, is not found here: its package has calls of its own (`find_report`).
        KeyAmbiguous: effects of several job types have this key; the message names them.
        EnqueueError: the key or the session is malformed.
        StoreUnavailable: the database is unavailable (without `session`).
    """
    app = _checked(effects, key, job_type, session=session)
    with app.reading(session) as connection:
        return _find(app, connection, key, job_type)


def _find(app: Effects, connection: Connection, key: str, job_type: str | None) -> EffectStatus:
    effect = by_key.find_effect(app.store, connection, app.ledgers, key, job_type)
    is_registered = effect.job_type in app.job_types
    if is_registered and not app.job_types.get(effect.job_type).result:
        return effect
    return by_key.with_result(app.store, connection, app.keys, effect, is_kept=is_registered)


def cancel(
    *,
    key: str,
    job_type: str | None = None,
    actor: str,
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> CancelResult:
    """Withdraw an effect that is no longer wanted.

    A race with the worker is decided by the job's row: either its effect is prevented, or it was released before, and
    `CancelResult` tells which. An attempt that has begun is not interrupted; until it is released the effect can still
    be prevented (not of types whose policy is `repeat`, such as `webhook.deliver`: they are released by the claim).

    Args:
        key, job_type, effects: as for `status`.
        actor: who cancels, such as `app:checkout`; recorded with the job.
        reason: why, recorded as well.
        session: as for `enqueue`: never committed by us; rolled back, the job waits as before. Until it
            ends, its worker waits for this job's row: keep the transaction short. Default: our own transaction.

    Returns:
        What it came to; true with the commit. A crash before that leaves nothing; calling again is safe.

    Raises:
        JobNotFound, KeyAmbiguous, EnqueueError, StoreUnavailable: as `status`.
    """
    app = _checked(effects, key, job_type, session=session, actor=actor, reason=reason)
    with app.writing(session) as connection:
        effect, row = by_key.lock_live(app.store, connection, app.ledgers, key, job_type)
        if row is None:
            return CancelResult(result="ended", effect=effect)
        ended = cancellation.cancel(
            app.store, app.ledgers, effect.job_id, actor=actor, reason=reason, connection=connection
        )
        result: CancelAnswer = "cancelled"
        if ended != "cancelled":
            result = "released" if row.released or not _marks_releases(app, effect.job_type) else "stopped"
        after = by_key.find_effect(app.store, connection, app.ledgers, key, effect.job_type)
    return CancelResult(result=result, effect=after)


def reschedule(
    *,
    key: str,
    run_at: datetime,
    job_type: str | None = None,
    actor: str,
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> RescheduleResult:
    """Give an effect that waits another time, earlier or later; one that waits for its next try, too.

    Its limits, pauses and the order of its group still hold, and `expires_at` stays as it is. Later, it keeps the jobs
    behind it in its group waiting.

    Args:
        key, job_type, effects: as for `status`.
        run_at: when it is due (aware); a time that has passed means now.
        actor, reason, session: as for `cancel`. Workers hear of it after the commit, as with `enqueue`.

    Returns:
        What it came to; true with the commit. A crash before that leaves nothing; calling again is safe.

    Raises:
        JobNotFound, KeyAmbiguous, EnqueueError, StoreUnavailable: as `status`.
    """
    app = _checked(effects, key, job_type, session=session, actor=actor, reason=reason)
    require("run_at", run_at, arguments.aware, EnqueueError)
    queues: set[str] = set()
    with app.writing(session, queues) as connection:
        effect, row = by_key.lock_live(app.store, connection, app.ledgers, key, job_type)
        if row is None:
            return RescheduleResult(result="ended", effect=effect)
        if row.status == "running":
            return RescheduleResult(result="running", effect=effect)
        by_key.reschedule(app.store, connection, effect.job_id, run_at.timestamp(), actor=actor, reason=reason)
        queues.add(row.queue)
        after = by_key.find_effect(app.store, connection, app.ledgers, key, effect.job_type)
    return RescheduleResult(result="rescheduled", effect=after)


def wait(
    *, key: str, timeout_seconds: float, job_type: str | None = None, effects: Effects | None = None
) -> EffectStatus:
    """Wait until an effect has ended, or until the time is over: `ended` of what is returned tells which.

    Not inside a transaction that has just requested the effect: it is not committed, and never comes to its end. On
    PostgreSQL the worker announces the end, on a connection that this call holds meanwhile; elsewhere, and behind a
    pooler, it is found within a second.

    Args:
        key, job_type, effects: as for `status`.
        timeout_seconds: 0 (look once) to 7 days, by the database's clock.

    Returns:
        The effect as it was last seen. A dead letter has ended too; if it is requeued later, that is not waited for.

    Raises:
        JobNotFound, KeyAmbiguous, EnqueueError: as `status`.
        StoreUnavailable: the database is unavailable. Calling again is safe.
    """
    waiting = _Waiting(effects, key, job_type, timeout_seconds)
    app = waiting.app
    with EndListener(app.store) if timeout_seconds else nullcontext() as listener:
        while (seconds := waiting.look()) > 0 and listener is not None:
            listener.wait(waiting.effect.job_id, seconds)
    return waiting.effect


class _Waiting:
    """Looks at an effect now and then, until it has ended or the time is over by the database's clock.

    Raises:
        EnqueueError: an argument is malformed.
    """

    effect: EffectStatus

    def __init__(self, effects: Effects | None, key: str, job_type: str | None, timeout_seconds: float) -> None:
        self.app = _checked(effects, key, job_type)
        require("timeout_seconds", timeout_seconds, arguments.number(0, TIMEOUT_MAX_SECONDS), EnqueueError)
        self._key, self._job_type = key, job_type
        self._timeout_seconds = timeout_seconds
        self._pause = PAUSE_SECONDS
        self._over_at: float | None = None

    def look(self) -> float:
        """Look, and return in how many seconds to look again; 0 if it has ended or the time is over.

        Raises:
            JobNotFound, KeyAmbiguous, StoreUnavailable: as `status`.
        """
        with self.app.store.read() as connection:
            self.effect = _find(self.app, connection, self._key, self._job_type)
            now = self.app.store.now(connection)
        if self._over_at is None:
            self._over_at = now + self._timeout_seconds
        if self.effect.ended:
            return 0.0
        seconds, self._pause = min(self._pause, self._over_at - now), min(2 * self._pause, PAUSE_MAX_SECONDS)
        return max(0.0, seconds)


async def status_async(
    *,
    key: str,
    job_type: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> EffectStatus:
    """Look up an effect by its key: `status`, awaited. `session` is as for `enqueue_async`.

    Raises:
        As `status`.
    """
    return await in_async(status, **locals())


async def cancel_async(
    *,
    key: str,
    job_type: str | None = None,
    actor: str,
    reason: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> CancelResult:
    """Withdraw an effect that is no longer wanted: `cancel`, awaited. `session` is as for `enqueue_async`.

    Raises:
        As `cancel`.
    """
    return await in_async(cancel, **locals())


async def reschedule_async(
    *,
    key: str,
    run_at: datetime,
    job_type: str | None = None,
    actor: str,
    reason: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> RescheduleResult:
    """Give an effect that waits another time: `reschedule`, awaited. `session` is as for `enqueue_async`.

    Raises:
        As `reschedule`.
    """
    return await in_async(reschedule, **locals())


async def wait_async(
    *, key: str, timeout_seconds: float, job_type: str | None = None, effects: Effects | None = None
) -> EffectStatus:
    """Wait until an effect has ended, or until the time is over: `wait`, awaited.

    It holds neither a thread nor a connection meanwhile, and finds the end within a second.

    Raises:
        As `wait`.
    """
    waiting = _Waiting(effects, key, job_type, timeout_seconds)
    while (seconds := await run_in_async(waiting.look)) > 0:
        await asyncio.sleep(seconds)
    return waiting.effect


def _marks_releases(app: Effects, job_type: str) -> bool:
    """Whether attempts of this type record their release; nothing is promised of one that is not registered here."""
    return job_type in app.job_types and not app.job_types.get(job_type).is_released_by_claim


def _checked(
    effects: Effects | None,
    key: str,
    job_type: str | None,
    *,
    session: AnySession | None = None,
    actor: str = "-",
    reason: str | None = None,
) -> Effects:
    require("key", key, arguments.NAME, EnqueueError)
    require("job_type", job_type, optional(arguments.NAME), EnqueueError)
    require("actor", actor, arguments.ACTING["actor"], EnqueueError)
    require("reason", reason, arguments.ACTING["reason"], EnqueueError)
    return app_of(effects, session)
