"""What a claimed batch works on, fetched in few statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from sqlalchemy import Connection

from effects import Job
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import Chunk
from effects_reports.tables.runs import Run

if TYPE_CHECKING:
    from effects import Effects


class Loaded(msgspec.Struct, frozen=True):
    """The run as it is now, and the lease of the attempt."""

    run: Run | None
    job_id: int
    token: int


class LoadedChunk(Loaded, frozen=True):
    """Beside the run, the chunk that this job is the newest of."""

    chunk: Chunk | None = None


def load_runs(app: Effects, connection: Connection, jobs: Sequence[tuple[Job, str]]) -> Mapping[int, Loaded]:
    """Load the runs of a batch: each job with the id of its run."""
    runs = run_table.get_runs(app.store, connection, sorted({run_id for _, run_id in jobs}))
    return {job.id: Loaded(runs.get(run_id), job.id, job.lease_token) for job, run_id in jobs}


def load_chunks(app: Effects, connection: Connection, jobs: Sequence[tuple[Job, str]]) -> Mapping[int, LoadedChunk]:
    """Load the runs of a batch and the chunks that its jobs are the newest of."""
    runs = load_runs(app, connection, jobs)
    chunks = chunk_table.chunks_by_job(app.store, connection, list(runs))
    return {
        job_id: LoadedChunk(loaded.run, loaded.job_id, loaded.token, chunks.get(job_id))
        for job_id, loaded in runs.items()
    }
