"""The calls of an app in async code: as those of `effects.api` and `effects.control`, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from effects.api import enqueue, enqueue_many
from effects.app import Effects
from effects.control import CancelResult, RescheduleResult, Waiting, cancel, reschedule, status
from effects.model.job import NewJob, Receipt
from effects.retry import OnUnknown
from effects.sessions.asynchronous import in_async
from effects.store.effects.by_key import EffectStatus

if TYPE_CHECKING:
    from effects.sessions.asynchronous import AnyAsyncSession


async def enqueue_async(
    job_type: str,
    payload: Any,
    *,
    key: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    run_at: datetime | None = None,
    delay: timedelta | float | None = None,
    expires_at: datetime | None = None,
    group_key: str | None = None,
    limit_key: str | None = None,
    max_attempts: int | None = None,
    trace_context: str | None = None,
    on_unknown: OnUnknown | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> Receipt:
    """Write one job in the caller's asynchronous transaction: `enqueue`, awaited.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `enqueue`.
    """
    return await in_async(enqueue, **locals())


async def enqueue_many_async(
    jobs: Iterable[NewJob], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[Receipt]:
    """Write many jobs: `enqueue_many`, awaited. `session` is as for `enqueue_async`.

    Raises:
        As `enqueue_many`.
    """
    return await in_async(enqueue_many, **locals())


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
    waiting = Waiting(effects, key, job_type, timeout_seconds)
    while (seconds := await in_async(waiting.look)) > 0:
        await asyncio.sleep(seconds)
    return waiting.effect
