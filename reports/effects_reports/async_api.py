"""The calls of `effects_reports.api` in async code, awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from effects import Effects
from effects.extend.sql import in_async
from effects_reports.api import request_report
from effects_reports.delivery.subscriptions import subscribe, unsubscribe
from effects_reports.runs.notify import NOTICE_LINK_SECONDS, Notify
from effects_reports.writing import ReportReceipt

if TYPE_CHECKING:
    from effects.extend.sql import AnyAsyncSession


async def request_report_async(
    name: str,
    params: Any = None,
    *,
    format: str | None = None,  # noqa: A002 - the word that everybody uses
    key: str | None = None,
    notify: Notify | Sequence[Notify] = (),
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> ReportReceipt:
    """Write a request for a report in the caller's asynchronous transaction: `request_report`, awaited.

    Args:
        session: an AsyncSession or AsyncConnection, which is never committed by us. Without one, a transaction of our
            own, off the event loop's thread: cancelled after it has begun, it may have been committed.

    Raises:
        As `request_report`.
    """
    return await in_async(request_report, **locals())


async def subscribe_async(
    report: str,
    params: Mapping[str, Any] | None = None,
    *,
    cron: str,
    to: str | None = None,
    template: str | None = None,
    link_to: str | None = None,
    bucket: str | None = None,
    object_name: str | None = None,
    zone: str = "UTC",
    format: str | None = None,  # noqa: A002 - as of request_report
    attach_bytes_max: int = 0,
    link_seconds: float = NOTICE_LINK_SECONDS,
    link_uses: int | None = None,
    locale: str | None = None,
    actor: str = "app",
    reason: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> str:
    """Subscribe to a report in the caller's asynchronous transaction: `subscribe`, awaited.

    Args:
        session: as for `request_report_async`.

    Raises:
        As `subscribe`.
    """
    return await in_async(subscribe, **locals())


async def unsubscribe_async(
    subscription_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnyAsyncSession | None = None,
    effects: Effects | None = None,
) -> None:
    """End a subscription in the caller's asynchronous transaction: `unsubscribe`, awaited.

    Args:
        session: as for `request_report_async`.

    Raises:
        As `unsubscribe`.
    """
    await in_async(unsubscribe, **locals())
