"""The file of a run that is ready."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from effects import Effects, ObjectMissing
from effects.extend import app_of
from effects_reports.api import ReportStatus, report_status
from effects_reports.errors import ReportStateError


def ready_status(run_id: str, *, effects: Effects | None = None) -> ReportStatus:
    """The status of a run with a file.

    Raises:
        ReportNotFound: there is no such run.
        ReportStateError: it is not ready, or its file has expired.
    """
    status = report_status(run_id, effects=effects)
    if status.artifact is None:
        why = "its file has expired: request it again" if status.state == "expired" else "its file is not ready"
        raise ReportStateError(f"run {run_id} is {status.state}: {why}")
    return status


def open_result(run_id: str, *, effects: Effects | None = None) -> Iterator[bytes]:
    """The bytes of a run's file, in pieces of at most 1 MiB, checked against its SHA-256.

    Args:
        run_id: of the run, as its receipt has it.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: at once, where there is no such file.
        ObjectMissing, StorageUnavailable: from the first piece on, where the storage has lost it or is away; or after
            the last one, where these are not the bytes that were written.
    """
    app = app_of(effects)
    status = ready_status(run_id, effects=app)
    assert status.artifact is not None
    return _checked(app.storage.read(status.artifact), status)


def _checked(pieces: Iterator[bytes], status: ReportStatus) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != status.sha256:
        raise ObjectMissing(
            f"the file of run {status.run_id} was altered in the storage: request the report again",
            code="storage_altered",
        )
