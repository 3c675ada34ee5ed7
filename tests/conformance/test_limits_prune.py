"""Retention of limit keys: a row that only a pause made goes when that is long over; limits never go."""

from __future__ import annotations

from effects import Effects, Pause, enqueue_many
from effects.app.retention import prune
from effects.model.limits import Rate
from effects.store.limits import key_limits as limit_rows
from tests.support.limited_jobs import limited
from tests.support.manual_workers import ManualWorker, rows

DAY = 86_400.0


def test_a_limit_row_of_a_pause_is_pruned_long_after_it(app: Effects) -> None:
    enqueue_many([*limited("paused"), *limited("capped")], effects=app)
    with app.store.begin() as connection:
        limit_rows.ensure_limit(app.store, connection, "capped", max_in_flight=1)
        limit_rows.ensure_limit(app.store, connection, "rated", rate=Rate(5, 1.0))
        limit_rows.ensure_limit(app.store, connection, "child", parent="parent")
        limit_rows.pause(app.store, connection, "held", actor="ann", create=True)  # until it is resumed
    manual_worker = ManualWorker(app)
    manual_worker.settle(*((job, Pause(600, "429")) for job in manual_worker.claim()))
    app.store.shift_clock(2 * DAY)
    assert prune(app).limits == 0
    app.store.shift_clock(20 * DAY)
    assert prune(app, dry_run=True).limits == 1
    assert prune(app).limits == 1
    assert [limit["limit_key"] for limit in rows(app, "limits")] == ["capped", "child", "held", "parent", "rated"]
