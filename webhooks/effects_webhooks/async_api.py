"""The calls of `effects_webhooks.api` in async code, awaited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from effects import Effects
from effects.extend import in_async
from effects_webhooks.api import deliver_webhook, deliver_webhooks
from effects_webhooks.request import WebhookEvent
from effects_webhooks.writing import WebhookReceipt

if TYPE_CHECKING:
    from effects.extend import AnyAsyncSession


async def deliver_webhook_async(
    event: WebhookEvent, *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> WebhookReceipt:
    """Store an event and its deliveries in the caller's asynchronous transaction: `deliver_webhook`, awaited.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `deliver_webhook`.
    """
    return await in_async(deliver_webhook, **locals())


async def deliver_webhooks_async(
    events: Iterable[WebhookEvent], *, session: AnyAsyncSession | None = None, effects: Effects | None = None
) -> list[WebhookReceipt]:
    """Store many events: `deliver_webhooks`, awaited. `session` is as for `deliver_webhook_async`.

    Raises:
        As `deliver_webhooks`.
    """
    return await in_async(deliver_webhooks, **locals())
