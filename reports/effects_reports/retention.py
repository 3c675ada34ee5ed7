"""Deletion of expired files, rows, parts of finished runs, and orphaned objects.

An object goes before the row that names it: a crash between the two leaves a row, which the next pruning finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row

from effects.extend.arguments import DAY_SECONDS
from effects.extend.files import FOLDER as PROBES
from effects.extend.files import Storage
from effects.extend.rows import Page, walk
from effects_reports.source.snapshot import copies, delete_copy
from effects_reports.tables import reports as report_table
from effects_reports.tables import retention as table
from effects_reports.tables import runs as run_table
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects
    from effects_reports.state import ReportRegistry

FOLDER = "reports/"  # of every object that reports write
_PARTS_SECONDS = DAY_SECONDS  # that a failed or cancelled run keeps its parts for a resume
_ORPHAN_SECONDS = DAY_SECONDS  # younger objects may be of an attempt under way
BATCH = 500

GoOn = Callable[[], bool]
Forget = Callable[[Connection, Sequence[str]], int]
_ReadPage = Callable[[Connection, str], Sequence[Row[Any]]]


def clear_run(app: Effects, storage: Storage, run_id: str) -> int:
    """Delete every object of a run that is ready except its file; how many. Nothing of a run that is under way."""
    with app.store.read() as connection:
        run = run_table.get_run(app.store, connection, run_id)
        generated = report_table.generated(app.store, connection, [run_id]).get(run_id)
    if run is None or generated is None or run.state != "ready":
        return 0
    names = [stored.name for stored in storage.list(f"{run.prefix}/") if stored.name != generated.artifact]
    storage.delete(names)
    return len(names)


def clear_copies(app: Effects, registry: ReportRegistry) -> int:
    """Delete the copies of SQLite files that no run reads any more; how many."""
    readers = {path: reader for engine in registry.engines for path, reader in copies(engine).items()}
    with app.store.read() as connection:
        runs = run_table.get_runs(app.store, connection, sorted({run_id for run_id, _ in readers.values()}))
    gone = [path for path, (run_id, number) in readers.items() if not _is_read(runs.get(run_id), number)]
    for path in gone:
        delete_copy(path)
    return len(gone)


def _is_read(run: Run | None, number: int) -> bool:
    return run is not None and run.round == number and run.state in ("planning", "running")


class Retention:
    """One pruning of everything that reports keep.

    Args:
        keep_seconds: how long the rows of ended runs are kept.
        go_on: called before each batch; False stops.
    """

    def __init__(self, app: Effects, storage: Storage, keep_seconds: float, *, dry_run: bool, go_on: GoOn) -> None:
        self._app, self._store, self._storage = app, app.store, storage
        self._keep_seconds, self._dry_run, self._go_on = keep_seconds, dry_run, go_on

    def run(self) -> int:
        """Expire files, drop the parts of given up runs, delete old rows and orphaned objects; how many in all."""
        store = self._store
        return (
            self._walk(lambda c, after: table.overdue_runs(store, c, after), lambda c, ids: table.expire(store, c, ids))
            + self._walk(
                lambda c, after: table.stale_runs(store, c, after, _PARTS_SECONDS),
                lambda c, ids: table.forget_parts(store, c, ids),
            )
            + self._walk(
                lambda c, after: table.old_runs(store, c, after, self._keep_seconds),
                lambda c, ids: table.delete_runs(store, c, ids),
            )
            + self._orphans()
        )

    def _walk(self, read_page: _ReadPage, forget: Forget) -> int:
        """The runs of a page lose their objects, then what names those."""

        def step(cursor: str | None) -> Page:
            with self._store.read() as connection:
                rows = read_page(connection, cursor or "")
            if rows and not self._dry_run:
                for row in rows:
                    self._storage.delete([stored.name for stored in self._storage.list(f"{row.prefix}/")])
                with self._store.begin() as connection:
                    forget(connection, [row.id for row in rows])
            return Page(len(rows), rows[-1].id if rows else None)

        return walk(step, go_on=self._go_on, dry_run=self._dry_run)

    def _orphans(self) -> int:
        taken = 0
        for batch in self._old_objects():
            gone = self._unneeded(batch)
            taken += len(gone)
            if gone and not self._dry_run:
                self._storage.delete(gone)
        return taken

    def _old_objects(self) -> Iterator[list[str]]:
        """Objects that are older than a day by the database's clock, in batches."""
        with self._store.read() as connection:
            before = self._store.now(connection) - _ORPHAN_SECONDS
        batch: list[str] = []
        for stored in chain(self._storage.list(FOLDER), self._storage.list(PROBES)):
            if stored.modified_at.timestamp() > before:
                continue
            batch.append(stored.name)
            if len(batch) == BATCH:
                if not self._go_on():
                    return
                yield batch
                batch = []
        if batch and self._go_on():
            yield batch

    def _unneeded(self, names: Sequence[str]) -> list[str]:
        run_of = {name: _run_id(name) for name in names}
        with self._store.read() as connection:
            under_way, named = table.needed(self._store, connection, sorted(set(run_of.values())))
        return [name for name in names if run_of[name] not in under_way and name not in named]


def _run_id(name: str) -> str:
    """`reports/<report>/<run>-<random>/…` → the run's id."""
    parts = name.split("/")
    return parts[2].partition("-")[0] if len(parts) > 2 else ""
