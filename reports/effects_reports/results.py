"""The file of a run that is ready."""

from __future__ import annotations

from collections.abc import Iterator

from effects.app import Effects, default
from effects_reports.api import ReportStatus, report_status
from effects_reports.errors import ReportNotFound


def ready_status(run_id: str, *, effects: Effects | None = None) -> ReportStatus:
    """The status of a run whose file is there.

    Raises:
        ReportNotFound: there is no such run, it is not ready, or its file has expired; says which.
    """
    status = report_status(run_id, effects=effects)
    if status.artifact is None:
        why = "its file has expired: request it again" if status.state == "expired" else "its file is not ready"
        raise ReportNotFound(f"run {run_id} is {status.state}: {why}")
    return status


def open_result(run_id: str, *, effects: Effects | None = None) -> Iterator[bytes]:
    """The bytes of a run's file, in pieces of at most 1 MiB.

    Raises:
        ReportNotFound: at once, where there is no such file.
        ObjectMissing, StorageUnavailable: from the first piece on, where the storage has lost it or is away.
    """
    app = effects or default()
    status = ready_status(run_id, effects=app)
    assert status.artifact is not None
    return app.storage.read(status.artifact)
