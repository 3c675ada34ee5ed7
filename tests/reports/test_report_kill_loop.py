"""Random kills: 20 for each of two pairs of format and database; of all six, 150 by EFFECTS_TEST_REPORT_KILLS=300."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from effects.app.retention import prune
from effects.operate.tables.audit import audit
from effects.retry import DAY_SECONDS
from effects.worker import Worker
from effects_reports import report_status, request_report
from tests.reports.conftest import content
from tests.reports.crash_app import make
from tests.reports.kill_loop import REPORTS, KillLoop
from tests.reports.shop import fill
from tests.support.processes import fleet
from tests.support.sampling import sample

KILLS = int(os.environ.get("EFFECTS_TEST_REPORT_KILLS", "40"))
SEED = int(os.environ.get("EFFECTS_TEST_SEED", random.randrange(1 << 32)))
ROWS = 200  # eight chunks a run
CASES = [(file, database) for file in ("csv", "csv.gz", "ndjson") for database in ("sqlite", "postgresql")]
SAMPLED = len(CASES) if "EFFECTS_TEST_REPORT_KILLS" in os.environ else 2


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.parametrize(("file", "database_url"), sample(CASES, SAMPLED), indirect=["database_url"])
def test_no_kill_changes_a_byte(file: str, database_url: str, tmp_path: Path, files: Callable[[], list[str]]) -> None:
    print(f"EFFECTS_TEST_SEED={SEED}")
    app = make(database_url, storage_url=str(tmp_path / "files"))
    try:
        fill(app, ROWS)
        clean = {name: request_report(name, format=file, effects=app).run_id for name in REPORTS}
        Worker(app).drain()
        sums = {name: report_status(run_id, effects=app).sha256 for name, run_id in clean.items()}
        with fleet(database_url, tmp_path) as processes:
            loop = KillLoop(app, processes, tmp_path / "files", file, SEED)
            loop.run(KILLS // 2)
            loop.finish()
        for run_id, name in loop.runs:
            status = report_status(run_id, effects=app)
            assert (status.sha256, status.rows) == (sums[name], ROWS), f"seed {SEED}: {status}"
            assert hashlib.sha256(content(app, run_id)).hexdigest() == sums[name]
        assert audit(app.store, app.ledgers) == []
        app.store.shift_clock(2 * DAY_SECONDS)
        prune(app)
        run_ids = [*clean.values(), *(run_id for run_id, _ in loop.runs)]
        assert files() == sorted(str(report_status(run_id, effects=app).artifact) for run_id in run_ids)
    finally:
        app.dispose()
