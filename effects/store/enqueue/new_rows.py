"""Jobs to be inserted, once they are checked."""

from __future__ import annotations

import msgspec


class JobRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One row to insert. `n` is its place in the batch. What is None is not sent: the database would parse it."""

    n: int
    job_type: str
    queue: str
    priority: int
    payload: msgspec.Raw
    run_at: float | None = None
    delay: float | None = None  # seconds from now, by the clock of the database, where there is no `run_at`
    expires_at: float | None = None
    max_attempts: int | None = None
    group_key: str | None = None
    limit_key: str | None = None
    key: str | None = None
    digest: str | None = None
    trace_context: str | None = None
    on_unknown: str | None = None
    requeued_from: int | None = None
    id: int | None = None  # given where another table needed it first (`reserve_rows`)


class ReservedJob(msgspec.Struct, frozen=True):
    """A job that has its id and is checked, and not yet written."""

    id: int
    row: JobRow
