"""A SQLite file that is deleted or replaced under a worker: it must not go on alone with the old one."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from effects import enqueue
from effects.kit.exit_codes import ExitCode
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import rows
from tests.support.waiting import wait_until


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("how", ["replaced", "deleted", "rewritten"])
def test_a_worker_ends_whose_file_is_no_longer_there(
    app_factory: AppFactory, tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path, backup = tmp_path / "effects.db", tmp_path / "backup.db"
    app = app_factory(heartbeat_seconds=0.1, poll_seconds=0.1)
    shutil.copy(path, backup)
    worker, codes = Worker(app), []
    thread = threading.Thread(target=lambda: codes.append(worker.run()))
    thread.start()
    try:
        enqueue("scripted", {}, effects=app)
        wait_until(lambda: rows(app, "job_history"))
        if how == "replaced":
            backup.replace(path)
        else:
            path.unlink()
        if how == "rewritten":
            shutil.copy(backup, path)
        wait_until(lambda: codes)
    finally:
        worker.stop()
        thread.join(30)
    assert codes == [ExitCode.PART_FAILED]
    [gone] = [record for record in caplog.records if record.message == "database.gone"]
    assert str(path) in gone.error  # type: ignore[attr-defined]
    assert ("deleted" if how == "deleted" else "replaced") in gone.error  # type: ignore[attr-defined]
