"""The inbox of `effects dev`: what would go into customers' buckets, in a folder, and the pages that show it."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from effects import Attempt, Done, Effects, Outcome
from effects.extend.files import attachment
from effects.extend.text import moment
from effects.web import PAGE_ROWS, NavigationEntry, PageAnswer, PageRoute, Pages, Visit, keep_file
from effects_reports.api import open_result
from effects_reports.delivery.buckets import BucketCredentials
from effects_reports.errors import ReportNotFound
from effects_reports.jobs.deliver import ReportDeliver
from effects_reports.transport.address import BucketAddress

if TYPE_CHECKING:
    from effects_reports.transport.upload import Delivered

_PIECE_BYTES = 64 * 1024


class InboxDeliver(ReportDeliver):
    """Delivers into a folder: nothing is resolved and nothing is connected to."""

    def __init__(self, app: Effects, folder: Path) -> None:
        super().__init__(app)
        self._app, self._folder = app, folder

    async def upload(
        self, address: BucketAddress, credentials: BucketCredentials, file: Delivered, attempt: Attempt
    ) -> Outcome:
        attempt.release()
        path = self._folder / address.bucket / address.key_of(file.name)
        keep_file(path, open_result(file.run_id, effects=self._app))
        return Done()


def inbox(app: Effects, folder: Path) -> Pages:
    """The entry point `effects.dev`: what goes into a bucket goes into the folder, whatever its address."""
    app.job_types.replace(InboxDeliver(app, folder))
    return Pages(
        name="reports_inbox", label="", package="effects_reports.dashboard",
        navigation=(NavigationEntry("reports_inbox", "File inbox", "z"),),
        routes=(
            PageRoute("reports_inbox", ("GET",), "/dev/files", partial(_list, folder), role="admin", personal=True),
            PageRoute("reports_inbox_file", ("GET",), "/dev/files/{name}", partial(_file, folder), role="admin",
                      personal=True),
        ),
    )  # fmt: skip


def _name(folder: Path, path: Path) -> str:
    return hashlib.sha256(str(path.relative_to(folder)).encode()).hexdigest()[:24]


def _paths(folder: Path) -> list[Path]:
    """The newest first."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".part"]
    return sorted(files, key=lambda path: (path.stat().st_mtime_ns, str(path)), reverse=True)


def _list(folder: Path, visit: Visit) -> PageAnswer:
    paths = _paths(folder)
    rows = [
        (_name(folder, path), str(path.relative_to(folder)), path.stat().st_size, moment(path.stat().st_mtime))
        for path in paths[:PAGE_ROWS]
    ]
    return visit.page("reports/inbox.html", revealed=True, rows=rows, more=len(paths) - len(rows))


def _file(folder: Path, visit: Visit) -> PageAnswer:
    for path in _paths(folder):
        if _name(folder, path) == visit.values["name"]:
            headers = (
                ("content-disposition", attachment(path.name)), ("cache-control", "no-store"),
                ("content-length", str(path.stat().st_size)),
                ("content-security-policy", "default-src 'none'; sandbox"),
            )  # fmt: skip
            return PageAnswer(200, b"", "application/octet-stream", headers, _pieces(path))
    raise ReportNotFound("there is no such file in the inbox")


def _pieces(path: Path) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
