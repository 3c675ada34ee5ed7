"""The ledger of reports: one row per run, which spans many jobs. It receives every settled attempt of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from effects.extend import LedgerRow, Settlement, Sql, Store, TableLedger

FOUND_MAX = 100


def _find(sql: Sql) -> str:
    return f"""
    SELECT report, key, generation, state, job_id FROM {sql.generated_reports}
    WHERE key = :key OR run_id = :run_id ORDER BY generation DESC LIMIT {FOUND_MAX}"""


class ReportLedger(TableLedger):
    """`generated_reports`. Its states are written by the transitions of a run; a verdict alone changes none."""

    spans_jobs = True

    def __init__(self, settled: Callable[[Connection, Settlement], None]) -> None:
        super().__init__("generated_reports")
        self._settled = settled

    def record(self, store: Store, connection: Connection, settled: Sequence[Settlement]) -> None:
        """A job that ended without its work done takes its run along; in the transaction that records the end."""
        for settlement in settled:
            if settlement.verdict != "done":
                self._settled(connection, settlement)

    def find(self, store: Store, connection: Connection, key: str) -> Sequence[LedgerRow]:
        """The runs of a request's key, newest first; of one run, or one of its jobs, by the run's id."""
        rows = store.all(connection, _find, key=key, run_id=key.partition("/")[0])
        return [LedgerRow(f"{row.report}:{row.key}#{row.generation}", row.state, row.job_id) for row in rows]
