"""For the tests of apps: `toolkit.reports`, every report that was requested, and its file once it is ready.

def test_the_boss_gets_the_sales(effects_toolkit):
    close_day(date(2026, 1, 14))
    effects_toolkit.drain()                       # builds the report, as in production
    [sales] = effects_toolkit.reports
    assert sales.state == "ready" and sales.content.startswith(b"id,cents")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from effects.extend.arguments import arguments
from effects_reports.api import ReportStatus, list_reports, open_result

if TYPE_CHECKING:
    from effects.testing import Toolkit


class RequestedReport(ReportStatus, frozen=True, kw_only=True):
    """One run as it is now; `content` is its file, once that is ready."""

    content: bytes | None


def reports(toolkit: Toolkit) -> list[RequestedReport]:
    """The entry point `effects.testing`: the runs that were requested and committed so far, oldest first."""
    statuses = list_reports(limit=arguments.LIST_MAX, effects=toolkit.app)
    return [_with_content(toolkit, status) for status in reversed(statuses)]


def _with_content(toolkit: Toolkit, status: ReportStatus) -> RequestedReport:
    content = None if status.artifact is None else b"".join(open_result(status.run_id, effects=toolkit.app))
    return RequestedReport(**msgspec.structs.asdict(status), content=content)
