"""Kill -9 at any moment, again and again: nothing lost, nothing stuck, every repeat explained.

`EFFECTS_TEST_KILLS` (default 120) is shared by the two databases; `make crash` gives 1,000. `EFFECTS_TEST_SEED` repeats
a run's moments and victims.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects_webhooks import add_endpoint
from tests.conftest import AppFactory
from tests.crash.app import impatient
from tests.crash.loop import KillLoop, ReceiverRecord, faults, slow_answers
from tests.peers.http import Receiver
from tests.support.manual_workers import rows, run_sql
from tests.support.processes import fleet

KILLS = int(os.environ.get("EFFECTS_TEST_KILLS", "120")) // 2


@pytest.mark.crash
@pytest.mark.timeout(120 + 3 * KILLS)
def test_kills_lose_nothing_and_explain_every_repeat(
    app_factory: AppFactory, database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("EFFECTS_TEST_SEED") or random.SystemRandom().randrange(2**32))
    keys = f"k1={generate_key()}"
    app = impatient(app_factory(job_types=[], keys=keys, allow_private_addresses=True))
    with (
        Receiver(slow_answers(seed)) as first,
        Receiver(slow_answers(seed + 1)) as second,
        fleet(database_url, tmp_path) as processes,
    ):
        receiver_records = [
            ReceiverRecord(add_endpoint(receiver.url, effects=app), receiver) for receiver in (first, second)
        ]
        _open_limits(app)
        loop = KillLoop(app, processes, tmp_path, keys, seed)
        loop.run(KILLS)
        loop.drain()
        problems = faults(app, loop.acknowledged(), receiver_records)
        assert (
            len(faults(app, ["msg_never_sent"], receiver_records)) == len(problems) + 2
        )  # the judges do notice a loss
    lost = len(rows(app, "job_attempts", "outcome = 'lost'"))
    summary = (
        f"seed {seed}, {app.engine.dialect.name}: {loop.killed.total()} kills, {len(loop.acknowledged())} events "
        f"acknowledged, {lost} attempts lost, {sum(record.repeats for record in receiver_records)} requests repeated, "
        f"{sum(record.cut_short for record in receiver_records)} cut short"
    )
    with capsys.disabled():
        print(f"\n{summary}")
    assert problems == [], summary
    assert lost > 0, summary  # else nothing was under way when the kills came


def _open_limits(app: Effects) -> None:
    """The dead hold their places under the cap for a second; what is measured here is not the cap."""
    run_sql(app, f"UPDATE {app.store.sql.limits} SET max_in_flight = 1000")
