"""The calls of `effects_reports.api` in async code, awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from effects import Effects
from effects.extend import in_async
from effects_reports.api import request_report
from effects_reports.notify import Notify
from effects_reports.writing import ReportReceipt

if TYPE_CHECKING:
    from effects.extend import AnyAsyncSession


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
