"""The ledger of reports: one row per run, which spans many jobs. It receives every settled attempt of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection

from effects.extend.jobs import Settlement
from effects.extend.ledger import LedgerRow, TableLedger
from effects.extend.sql import Sql, Store

MATCHES_MAX = 100


def _find(sql: Sql) -> str:
    return f"""
    SELECT report, key, generation, state, job_id FROM {sql.generated_reports}
    WHERE key = :key OR run_id = :run_id ORDER BY generation DESC LIMIT {MATCHES_MAX}"""


def _run(sql: Sql) -> str:
    return f"""
    SELECT run_id, filename FROM {sql.generated_reports}
    WHERE run_id = :run_id OR (report = :report AND key = :key AND CAST(generation AS text) = :generation)"""


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

    def about(self, store: Store, connection: Connection, key: str) -> Mapping[str, str]:
        """The run, whose steps are the jobs; by its name in this ledger, or by the key of a step."""
        name, _, generation = key.rpartition("#")
        report, _, own_key = name.partition(":")
        parameters = {"report": report, "key": own_key, "generation": generation, "run_id": key.partition("/")[0]}
        row = store.row(connection, _run, **parameters)
        if row is None:
            return {}
        return {"run": row.run_id, **({"file": row.filename} if row.filename else {})}
