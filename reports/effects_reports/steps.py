"""The steps of a run from state to state, with the jobs that follow from them. Each is part of a transaction.

    requested → planning → running → assembling → ready → expired
                                                  failed, cancelling → cancelled; resume: failed, cancelled → running

A step is one conditional update; the jobs of the next state are written with it or not at all. Where a decision
depends on all chunks, the run's row is locked first and the chunks are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects.api import enqueue, insert_known
from effects.job import NewJob
from effects.store.actions import IGNORE, note
from effects.store.enqueue import reserve_ids
from effects.store.limits import ensure
from effects_reports.catalogue import ASSEMBLE_TYPE, CHUNK_TYPE, CLEAN_TYPE, PLAN_TYPE
from effects_reports.notify import tell
from effects_reports.progress import progress_of
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import Chunk, Finished, NewChunk
from effects_reports.tables.reports import Artifact
from effects_reports.tables.runs import Planned, Run
from effects_reports.tables.sweep import dead_jobs

if TYPE_CHECKING:
    from effects.app import Effects

REPAIRS_MAX = 2
SNAPSHOT_RESTARTS_MAX = 2


class Range(msgspec.Struct, frozen=True):
    """Keys above `lo` up to and with `hi`, as JSON holds them."""

    ordinal: str
    lo: list[Any] | None
    hi: list[Any] | None
    rows: int | None


def limit_key(report: str) -> str:
    """What all jobs of a report share: its cap in flight."""
    return f"report:{report}"


def plan_job(run_id: str, report: str, number: int) -> NewJob:
    return NewJob(
        job_type=PLAN_TYPE, payload={"run_id": run_id}, key=f"{run_id}/plan/{number}", limit_key=limit_key(report)
    )


def _chunk_job(run: Run, ordinal: str) -> NewJob:
    return NewJob(
        job_type=CHUNK_TYPE,
        payload={"run_id": run.id, "ordinal": ordinal},
        key=f"{run.id}/{ordinal}/{run.round}",
        limit_key=limit_key(run.report),
    )


def _assemble_job(run: Run) -> NewJob:
    return NewJob(
        job_type=ASSEMBLE_TYPE,
        payload={"run_id": run.id},
        key=f"{run.id}/assemble/{run.round}",
        limit_key=limit_key(run.report),
    )


def _insert(app: Effects, connection: Connection, run_id: str, jobs: Sequence[NewJob]) -> list[int]:
    ids = reserve_ids(app.store, connection, len(jobs))
    insert_known(app, connection, jobs, ids)
    if ids:
        report_table.name_job(app.store, connection, run_id, ids[-1])
    return ids


# -- forward ----------------------------------------------------------------------------------------------------


def planned(
    app: Effects, connection: Connection, run: Run, plan: Planned, ranges: Sequence[Range], parallel: int
) -> None:
    """planning → running, with a chunk and a job for each range; without any, → assembling: an empty file is a file."""
    if not run_table.commit_plan(app.store, connection, run, plan):
        return
    ensure(app.store, connection, limit_key(run.report), max_in_flight=parallel)
    _add_chunks(app, connection, run, ranges)
    if not ranges:
        close(app, connection, run.id)


def _add_chunks(app: Effects, connection: Connection, run: Run, ranges: Sequence[Range]) -> None:
    ids = _insert(app, connection, run.id, [_chunk_job(run, one.ordinal) for one in ranges])
    made = [
        NewChunk(run_id=run.id, ordinal=one.ordinal, lo=one.lo, hi=one.hi, rows_planned=one.rows, job_id=job_id)
        for one, job_id in zip(ranges, ids, strict=True)
    ]
    chunk_table.insert_chunks(app.store, connection, made)


def chunk_done(app: Effects, connection: Connection, chunk: Chunk, job_id: int, token: int, made: Finished) -> None:
    """A chunk's part is whole; where it was the last, the run goes on."""
    if chunk_table.finish_chunk(app.store, connection, chunk, job_id, token, made):
        close(app, connection, chunk.run_id)


def close(app: Effects, connection: Connection, run_id: str) -> None:
    """After a chunk's end: running → assembling or failed, cancelling → cancelled, if that is what the chunks say.

    Exactly once: the run's row is locked, the chunks are counted, and the update names the state that it leaves.
    """
    run = run_table.lock_run(app.store, connection, run_id)
    if run is None:
        return
    tally = chunk_table.tally(app.store, connection, run_id)
    if run.state == "cancelling" and not tally.running:
        if run_table.become_cancelled(app.store, connection, run_id):
            report_table.settle(app.store, connection, run_id, "abandoned")
    elif run.state == "running" and tally.failed + tally.cancelled:
        text = f"{tally.failed} of {tally.chunks} chunks failed and {tally.cancelled} were cancelled"
        fail(app, connection, run_id, "chunk_failed" if tally.failed else "chunk_cancelled", text)
    elif run.state == "running" and run.bytes_max is not None and tally.bytes_done > run.bytes_max:
        text = f"its parts have {tally.bytes_done:,} bytes and its definition allows {run.bytes_max:,} (bytes_max)"
        fail(app, connection, run_id, "too_many_bytes", text)
    elif not tally.pending and not tally.running and run_table.begin_assembling(app.store, connection, run_id):
        _insert(app, connection, run_id, [_assemble_job(run)])


def ready(app: Effects, connection: Connection, run: Run, artifact: Artifact) -> None:
    """assembling → ready: the artifact is recorded, its notices and the clearing away of its parts are enqueued."""
    if not run_table.become_ready(app.store, connection, run):
        return
    report_table.record_artifact(app.store, connection, run.id, artifact)
    tell(app, connection, run, "ready", artifact, "")
    enqueue(CLEAN_TYPE, {"run_id": run.id}, session=connection, effects=app)


# -- aside ------------------------------------------------------------------------------------------------------


def fail(app: Effects, connection: Connection, run_id: str, code: str, text: str) -> None:
    """Whatever it was doing → failed. Chunks that are done are kept for `resume`; those that wait end by themselves."""
    _raise_floor(app, connection, run_id)
    run = run_table.get_run(app.store, connection, run_id)
    if run is not None and run_table.become_failed(app.store, connection, run_id, code, text):
        report_table.settle(app.store, connection, run_id, "refused")
        tell(app, connection, run, "failed", None, text)


def cancel(app: Effects, connection: Connection, run_id: str) -> str | None:
    """→ cancelling, and → cancelled at once where no chunk is under way; the state, None where it had ended."""
    if not run_table.begin_cancelling(app.store, connection, run_id):
        return None
    _raise_floor(app, connection, run_id)
    close(app, connection, run_id)
    run = run_table.get_run(app.store, connection, run_id)
    return None if run is None else run.state


def _raise_floor(app: Effects, connection: Connection, run_id: str) -> float:
    """Keep what progress has been shown; what follows counts anew."""
    run = run_table.get_run(app.store, connection, run_id)
    if run is None:
        return 0.0
    floor = progress_of(run, chunk_table.tally(app.store, connection, run_id)).fraction
    run_table.raise_floor(app.store, connection, run_id, floor)
    return floor


# -- again ------------------------------------------------------------------------------------------------------


def resume(app: Effects, connection: Connection, run: Run) -> str | None:
    """failed or cancelled → running with the chunks that are done, or → requested where there is no plan yet.

    Returns:
        The new state; None where the run is in none that could be taken up.
    """
    if run.state not in ("failed", "cancelled"):
        return None
    state = "running" if run.planned_at is not None and run.snapshot is None else "requested"
    floor = _raise_floor(app, connection, run.id)
    if not run_table.restart(app.store, connection, run, state, floor=floor):
        return None
    _close_dead_letters(app, connection, run)
    fresh = msgspec.structs.replace(run, state=state, round=run.round + 1)
    if state == "requested":
        _plan_again(app, connection, fresh)
        return state
    found = chunk_table.chunks_of(app.store, connection, run.id)
    again = [chunk.ordinal for chunk in found if chunk.state not in ("done", "split")]
    ids = _insert(app, connection, run.id, [_chunk_job(fresh, ordinal) for ordinal in again])
    chunk_table.make_again(app.store, connection, run.id, list(zip(again, ids, strict=True)))
    if not again:
        close(app, connection, run.id)
    return state


def _close_dead_letters(app: Effects, connection: Connection, run: Run) -> None:
    """What the run's dead jobs left undone is taken up by others: no person need look at them any more."""
    made = report_table.generated(app.store, connection, [run.id]).get(run.id)
    ids = [chunk.job_id for chunk in chunk_table.chunks_of(app.store, connection, run.id) if chunk.state == "failed"]
    ids += [made.job_id] if made is not None else []
    for job_id in dead_jobs(app.store, connection, ids):
        note(app.store, connection, job_id, IGNORE, "reports", f"run {run.id} was taken up again")


def _plan_again(app: Effects, connection: Connection, run: Run) -> None:
    chunk_table.delete_chunks(app.store, connection, run.id)
    _insert(app, connection, run.id, [plan_job(run.id, run.report, run.round)])


def snapshot_lost(app: Effects, connection: Connection, run: Run, reason: str) -> None:
    """running → requested: what all chunks have read together is gone, so all are read anew; twice at most."""
    current = run_table.lock_run(app.store, connection, run.id)
    if current is None or current.state != "running" or current.round != run.round:
        return
    if current.snapshot_restarts >= SNAPSHOT_RESTARTS_MAX:
        fail(app, connection, run.id, "snapshot_lost", f"{reason}, for the third time")
        return
    floor = _raise_floor(app, connection, run.id)
    if run_table.restart(app.store, connection, current, "requested", floor=floor, restarts=1):
        _plan_again(app, connection, msgspec.structs.replace(current, round=current.round + 1))


def split(app: Effects, connection: Connection, run: Run, chunk: Chunk, job_id: int, token: int, middle: Any) -> None:
    """A chunk that took too long, or too much memory, is replaced by its two halves."""
    _raise_floor(app, connection, run.id)
    if not chunk_table.split_chunk(app.store, connection, chunk, job_id, token):
        return
    lo, hi = (None if text is None else msgspec.json.decode(text) for text in (chunk.lo, chunk.hi))
    half = None if chunk.rows_planned is None else (chunk.rows_planned + 1) // 2
    rest = None if chunk.rows_planned is None or half is None else chunk.rows_planned - half
    halves = [Range(f"{chunk.ordinal}.1", lo, middle, half), Range(f"{chunk.ordinal}.2", middle, hi, rest)]
    _add_chunks(app, connection, run, halves)


def parts_missing(app: Effects, connection: Connection, run: Run, ordinals: Sequence[str]) -> None:
    """assembling → running: parts are gone or altered, and are made anew; twice at most."""
    if run.repairs >= REPAIRS_MAX:
        text = f"{len(ordinals)} parts were missing or altered in the storage, for the third time"
        fail(app, connection, run.id, "parts_missing", text)
    elif run_table.back_to_running(app.store, connection, run.id):
        fresh = msgspec.structs.replace(run, round=run.round + 1)
        ids = _insert(app, connection, run.id, [_chunk_job(fresh, ordinal) for ordinal in ordinals])
        chunk_table.make_again(app.store, connection, run.id, list(zip(ordinals, ids, strict=True)))


def begin_again(app: Effects, connection: Connection, run: Run) -> None:
    """A run to be planned or assembled whose job is gone gets another."""
    job = _assemble_job(run) if run.state == "assembling" else plan_job(run.id, run.report, run.round)
    _insert(app, connection, run.id, [job])


# -- what the end of a job says ---------------------------------------------------------------------------------


def chunk_ended(
    app: Effects, connection: Connection, run_id: str, ordinal: str, job_id: int, *, died: bool, code: str, text: str
) -> None:
    """A chunk's job ended without its part: dead, poisoned, or cancelled. The run must not wait for it for ever."""
    state = "failed" if died else "cancelled"
    given = {"state": state, "code": code, "text": text}
    if not chunk_table.end_chunk(app.store, connection, run_id, ordinal, job_id, **given):
        return
    if died:
        fail(app, connection, run_id, code, f"chunk {ordinal}: {text}")
    close(app, connection, run_id)
