"""For the tests of apps: `toolkit.reports`, every report that was requested, and its file once it is ready.

def test_the_boss_gets_the_sales(effects_toolkit):
    close_day(date(2026, 1, 14))
    effects_toolkit.drain()                       # builds the report, as in production
    [sales] = effects_toolkit.reports
    assert sales.state == "ready" and sales.content.startswith(b"id,cents")

Nothing goes into a customer's bucket; `bucket_folder(toolkit, "acme", tmp_path)` writes what would be in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from effects.extend.arguments import arguments
from effects.extend.files import create_private
from effects_reports.api import ReportStatus, list_reports, open_result
from effects_reports.errors import BucketNotFound
from effects_reports.routing import DELIVER_TYPE
from effects_reports.state import state_of
from effects_reports.tables.buckets import read_buckets
from effects_reports.transport.address import parse_address

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


def bucket_folder(toolkit: Toolkit, bucket: str, folder: Path) -> Path:
    """Write the files that went into a bucket to a folder, each under the name of its object, and return the folder.

    Raises:
        BucketNotFound: there is no such bucket.
    """
    app = toolkit.app
    with app.store.read() as connection:
        row = read_buckets(app.store, connection, [bucket]).get(bucket)
    if row is None:
        raise BucketNotFound(f"there is no bucket {bucket!r}")
    address = parse_address(row.url, allow_private=state_of(app).bucket_networks)
    for job in toolkit.enqueued(DELIVER_TYPE):
        if job.status == "succeeded" and job.payload.bucket == bucket:
            file = folder / address.key_of(job.payload.object)
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():  # as in a bucket, nothing is replaced
                with create_private(file) as written:
                    written.writelines(open_result(job.payload.run_id, effects=app))
    return folder
