"""What is no longer needed: parts of finished runs, files whose time is over, old rows, objects that nobody names.

An object goes before the row that names it: a crash between the two leaves a row, which the next pruning finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from effects.storage.base import Storage
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table

if TYPE_CHECKING:
    from effects.app import Effects

GoOn = Callable[[], bool]


def clear_run(app: Effects, storage: Storage, run_id: str) -> int:
    """Delete every object of a run that is ready except its file; how many. Nothing of a run that is under way."""
    with app.store.read() as connection:
        run = run_table.get_run(app.store, connection, run_id)
        made = report_table.generated(app.store, connection, [run_id]).get(run_id)
    if run is None or made is None or run.state != "ready":
        return 0
    names = [found.name for found in storage.list(f"{run.prefix}/") if found.name != made.artifact]
    storage.delete(names)
    return len(names)
