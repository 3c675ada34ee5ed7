"""Writing back one attempt that the database has lost, into whatever has become of its job.

| its job now | what is written |
|---|---|
| still leased to the attempt | its outcome, as if for the first time |
| waits, or runs under another claim | its outcome, or an unknown by the type's policy; the other attempt is lost |
| has ended | its attempt beside the others, and its verdict in the ledger: done stays done |
| runs under another claim, or was cancelled; this attempt failed | nothing: its effect did not happen |
| is not there, or another one has its id | an orphan: listed, never repeated, and no key is taken by it |
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace
from sqlalchemy import Connection, Row

from effects.model.decision import Policy, decide
from effects.model.job import Job
from effects.model.ledger import Ledger
from effects.model.outcome import Done, Unknown
from effects.model.registry import Registry, Unregistered
from effects.model.settlement import UNCOUNTED, Execution, Settlement, Verdict
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.queue.job_rows import job_columns, job_of
from effects.store.queue.settle import write_settlements
from effects.store.queue.table_ledger import TableLedger
from effects.store.queue.unresolved import add_unresolved, remove_unresolved
from effects.store.recovery.comparison import Remembered
from effects.store.schema.tables import ORPHAN, RECORDED, REPEATED, UNKNOWN

CODE = "failed_over"
WRITTEN_BACK = "its record was lost in a failover and written back by its worker"
UNKNOWN_TEXT = "it was released before a failover that lost its record, and its end is not known"
OTHER_LOST = "an attempt from before a failover had its effect already, or may have had it"


class WriteBack:
    """Writes back the attempts of one worker, each in its own transaction.

    Args:
        now: the worker's monotonic clock.
    """

    def __init__(
        self, store: Store, registry: Registry, ledgers: Mapping[str, Ledger], *, worker: str, now: float
    ) -> None:
        self._store, self._registry, self._ledgers = store, registry, ledgers
        self._worker, self._now = worker, now

    def write(self, remembered: Remembered, failover_id: int) -> str | None:
        """What has become of it: one of the fates, or None where nothing needed to be written.

        Raises:
            StoreUnavailable: the database is unavailable. Repeating it is harmless after `find_missing`.
        """
        with self._store.begin() as connection:
            fate = self._write(connection, remembered)
            if fate is not None and not self._note(connection, remembered, fate, failover_id):
                connection.rollback()  # another worker, with the same evidence, was quicker
                return None
        return fate

    def _write(self, connection: Connection, remembered: Remembered) -> str | None:
        row = self._store.row(connection, _live, id=remembered.job.id)
        if row is not None:
            job = job_of(row)
            if remembered.is_of(job.job_type, job.key, job.payload):
                return self._into_live(connection, remembered, row)
        verdict = _verdict(remembered)
        if verdict is None or _is_uncounted(remembered):
            return None
        ended = self._store.row(connection, _ended, id=remembered.job.id)
        if ended is not None and remembered.is_of(ended.job_type, ended.idempotency_key, _payload(ended)):
            if verdict == "not_done" and not ended.owned:
                return None
            return self._into_ended(connection, remembered, verdict, ended)
        return None if verdict == "not_done" else ORPHAN

    # -- a live job ------------------------------------------------------------------------------------------

    def _into_live(self, connection: Connection, remembered: Remembered, row: Row[Any]) -> str | None:
        job, policy = job_of(row), self._policy(remembered.job)
        if row.status == "running" and job.lease_token == remembered.job.lease_token:
            self._settle(connection, remembered, job, policy)
            return RECORDED if remembered.settlement is not None else UNKNOWN
        verdict = _verdict(remembered)
        if verdict is None or (verdict == "not_done" and row.status == "running") or _is_uncounted(remembered):
            return None
        repeats = False
        if row.status == "running":
            repeats = bool(row.marked) or getattr(policy, "is_released_by_claim", False)
            self._end_other(connection, job, repeats)
        adopted = self._store.row(
            connection, _adopt, id=job.id, token=remembered.job.lease_token, worker=self._worker,
            ago=max(0.0, self._now - remembered.at),
        )  # fmt: skip
        assert adopted is not None
        self._settle(connection, remembered, job_of(adopted), policy)
        if repeats:
            return REPEATED
        return RECORDED if remembered.settlement is not None else UNKNOWN

    def _settle(self, connection: Connection, remembered: Remembered, job: Job, policy: Policy) -> None:
        settlement = remembered.settlement
        if settlement is None:
            settlement = decide(job, policy, Unknown(UNKNOWN_TEXT, code=CODE), released=True)
        else:
            settlement = _of_this_job(settlement, job, policy)
        write_settlements(self._store, connection, [settlement], self._ledgers, now=self._now)

    def _end_other(self, connection: Connection, job: Job, may_have_acted: bool) -> None:
        verdict: Verdict | None = "unknown" if may_have_acted else None
        lost = Settlement(
            job=job, status="queued", outcome="lost", verdict=verdict, error_code=CODE, message=OTHER_LOST
        )
        write_settlements(self._store, connection, [lost], self._ledgers, now=self._now)

    # -- an ended one ----------------------------------------------------------------------------------------

    def _into_ended(self, connection: Connection, remembered: Remembered, verdict: Verdict, row: Row[Any]) -> str:
        job, settlement = remembered.job, remembered.settlement
        token = _free_token(row, job.lease_token)
        self._store.write(
            connection, _add_attempt, id=job.id, token=token, worker=self._worker, verdict=verdict,
            outcome="unknown" if settlement is None else settlement.outcome,
            code=CODE if settlement is None else settlement.error_code,
            message=UNKNOWN_TEXT if settlement is None else settlement.message or WRITTEN_BACK,
            ago=max(0.0, self._now - remembered.at), took=0.0 if settlement is None else settlement.duration_seconds,
        )  # fmt: skip
        self._store.write(connection, _amend, id=job.id, verdict=verdict, token=max(token, row.lease_token))
        if verdict == "not_done":
            return RECORDED
        ledger = self._ledgers.get(job.job_type)
        if ledger is not None and job.key is not None and not ledger.spans_jobs:
            fold = Settlement(job=job, status="dead", outcome="unknown", verdict=verdict)
            TableLedger(ledger.table).record(self._store, connection, [fold])
        remove_unresolved(self._store, connection, [job.id])
        if verdict != "done" and row.status != "succeeded":
            add_unresolved(self._store, connection, [job.id], self._ledgers)
        if row.acted:
            return REPEATED
        return RECORDED if settlement is not None else UNKNOWN

    # -- the record of it ------------------------------------------------------------------------------------

    def _note(self, connection: Connection, remembered: Remembered, fate: str, failover_id: int) -> bool:
        """Whether it was not written back before."""
        job, settlement = remembered.job, remembered.settlement
        written = self._store.write(
            connection, _insert, job_id=job.id, token=job.lease_token, job_type=job.job_type, key=job.key,
            worker=self._worker, outcome=None if settlement is None else settlement.outcome,
            verdict=_verdict(remembered), fate=fate, failover=failover_id, ago=max(0.0, self._now - remembered.at),
        )  # fmt: skip
        return written > 0

    def _policy(self, job: Job) -> Policy:
        return self._registry.get(job.job_type) if job.job_type in self._registry else Unregistered(job.job_type)


def _free_token(row: Row[Any], own: int) -> int:
    """A token for one more attempt of an ended job: not above that of the attempt which ended it, if one did."""
    last = int(row.lease_token)
    if not row.owned:
        return max(own, last)
    return own if own < last else max(1, last - random.randint(1, 1000))  # noqa: S311


def _of_this_job(settlement: Settlement, job: Job, policy: Policy) -> Settlement:
    """The same outcome of the job as it is now: what an unknown means may have changed with other attempts."""
    execution = settlement.execution
    message = settlement.message or WRITTEN_BACK
    if settlement.verdict == "unknown" and execution is not None and execution.outcome is not None:
        ending = execution.outcome
        if isinstance(ending, Done):  # whose `apply` failed
            ending = Unknown(message, code=settlement.error_code or CODE)
        decision = decide(job, policy, ending, released=True)
        settlement = replace(settlement, status=decision.status, delay_seconds=decision.delay_seconds)
        message = message if ending is not execution.outcome else decision.message or message
    return replace(settlement, job=job, message=message, execution=Execution(job, private=settlement.private))


def _verdict(remembered: Remembered) -> Verdict | None:
    return "unknown" if remembered.settlement is None else remembered.settlement.verdict


def _is_uncounted(remembered: Remembered) -> bool:
    """A snooze or a pause, which used up no attempt."""
    settlement = remembered.settlement
    return settlement is not None and settlement.outcome in UNCOUNTED


def _payload(row: Row[Any]) -> str:
    return row.payload.decode(errors="surrogateescape") if isinstance(row.payload, bytes) else str(row.payload)


# -- the statements --------------------------------------------------------------------------------------


def _live(sql: Sql) -> str:
    return f"""
    SELECT {job_columns(sql)}, status, released_at IS NOT NULL AS marked FROM {sql.jobs} WHERE id = :id
    {sql.lock(skip=False)}"""


def _adopt(sql: Sql) -> str:
    """Its attempt is counted as its claim had counted it, under a token that no other has."""
    own = "CAST(:token AS bigint)"
    return f"""
    UPDATE {sql.jobs} SET attempts = attempts + 1, locked_by = :worker, updated_at = {sql.now},
        lease_token = CASE WHEN lease_token < {own} THEN {own} ELSE {sql.next_token} END,
        started_at = {sql.after("-CAST(:ago AS double precision)")}
    WHERE id = :id RETURNING {job_columns(sql)}"""


def _ended(sql: Sql) -> str:
    payload = sql.json_text("payload")
    if not sql.postgresql:
        payload = f"CAST({payload} AS BLOB)"
    acted = f"""EXISTS (SELECT 1 FROM {sql.job_attempts} AS a
        WHERE a.job_id = h.id AND a.verdict IN ('done', 'unknown'))"""
    owned = f"EXISTS (SELECT 1 FROM {sql.job_attempts} AS a WHERE a.job_id = h.id AND a.lease_token = h.lease_token)"
    return f"""
    SELECT job_type, idempotency_key, {payload} AS payload, status, lease_token, {acted} AS acted, {owned} AS owned
    FROM {sql.job_history} AS h WHERE h.id = :id"""


def _add_attempt(sql: Sql) -> str:
    finished = sql.after("-CAST(:ago AS double precision)")
    return f"""
    INSERT INTO {sql.attempt_log} (job_id, lease_token, attempt, started_at, finished_at, worker, outcome, verdict,
        error_code, message)
    SELECT id, CAST(:token AS bigint), attempts, {sql.after("-CAST(:took AS double precision)", finished)}, {finished},
        CAST(:worker AS text), CAST(:outcome AS text), CAST(:verdict AS text), CAST(:code AS text),
        CAST(:message AS text)
    FROM {sql.job_history} WHERE id = :id"""


def _amend(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_history} SET attempts = attempts + 1, lease_token = CAST(:token AS bigint),
        unknown_count = unknown_count + CASE WHEN :verdict = 'unknown' THEN 1 ELSE 0 END,
        status = CASE WHEN :verdict = 'done' THEN 'succeeded' ELSE status END
    WHERE id = :id"""


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.evidence} (job_id, lease_token, job_type, key, worker, outcome, verdict, fate, failover_id,
        happened_at, created_at)
    VALUES (:job_id, :token, :job_type, :key, :worker, :outcome, :verdict, :fate, :failover,
        {sql.after("-CAST(:ago AS double precision)")}, {sql.now})
    ON CONFLICT (job_id, lease_token) DO NOTHING"""
