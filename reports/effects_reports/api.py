"""What an app calls: request a report in its own transaction, see how far it is, cancel it, take it up again."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import Connection

from effects.api import insert_known
from effects.app import AnySession, Effects, default
from effects.errors import IdempotencyConflict
from effects.redact import repr_without
from effects.store.enqueue import reserve_ids
from effects.store.records import moment
from effects_reports import steps
from effects_reports.catalogue import QUEUE, catalogue_of
from effects_reports.definition import ReportDefinition
from effects_reports.errors import ReportInvalid, ReportNotFound
from effects_reports.notify import Notify, check_notices, keep_notices
from effects_reports.planning import resolve
from effects_reports.progress import Progress, progress_of
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import Tally
from effects_reports.tables.reports import Generated
from effects_reports.tables.runs import NewRun, Run

AGAIN = ("failed", "cancelled", "expired")  # states after which a repeated request begins a new generation
LIST_MAX = 1000
REQUEST_KEY_CHARS_MAX = 200
_FILE_FACTS = ("artifact", "filename", "content_type", "rows", "bytes", "sha256", "downloads")
PARAMS_BYTES_MAX = 65_536


class ReportReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What `request_report` gives back. It becomes true when the caller's transaction commits.

    `existing` says that the key was known: `run_id` is then the run that holds it, in the state `state`.
    """

    run_id: str
    report: str
    key: str
    generation: int = 1
    state: str = "requested"
    existing: bool = False


class ReportStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a report, as it is now. `artifact` and what follows it are there while the file is."""

    run_id: str
    report: str
    key: str
    generation: int
    state: str
    params: dict[str, Any]
    format: str
    dialect: str
    consistency: str
    progress: Progress
    error_code: str | None
    error_text: str | None
    created_at: datetime
    planned_at: datetime | None
    ended_at: datetime | None
    expires_at: datetime | None
    artifact: str | None = None
    filename: str | None = None
    content_type: str | None = None
    rows: int | None = None
    bytes: int | None = None
    sha256: str | None = None
    downloads: int | None = None

    @property
    def ended(self) -> bool:
        return self.state in run_table.ENDED

    def __repr__(self) -> str:
        """Without the params: they may be personal."""
        return repr_without(self, ("params",))


def request_report(
    name: str,
    params: Any = None,
    *,
    format: str | None = None,  # noqa: A002 - the word that everybody uses
    request_key: str | None = None,
    notify: Notify | Sequence[Notify] = (),
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> ReportReceipt:
    """Write a request for a report, and the job that plans it, in the caller's transaction.

    Args:
        params: as the report's schema has them; a mapping or an instance of it. At most 64 KiB as JSON. They are stored
            in clear, for as long as the run's row is: give ids, not what is personal.
        format: one that the report offers; default its first.
        request_key: names this very report, such as `sales_report:2026-01-14`, at most 200 characters. A request with a
            known key gives the run that holds it; a new generation begins where that one has failed, was cancelled or
            has expired. Default: the run's own id, so that every request is a new run.
        notify: jobs to enqueue when it is ready or has failed, in the transaction that says so.
        session: a SQLAlchemy Session or Connection, which is never committed by us. Without one, a transaction of
            our own.
        effects: the Effects to use; default the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, the run ends ready, failed or cancelled,
        however often its workers die.

    Raises:
        ReportInvalid: no such report, params or format; or a notice whose job could not be enqueued.
        DefinitionInvalid: with these params its function gives no usable SELECT.
        IdempotencyConflict: the key belongs to a run of other params or another format, which is there or under way.
        StoreUnavailable: the database is away (without `session`). With a key, calling again is safe.
    """
    app = effects or default()
    definition = catalogue_of(app).get(name)
    notices = [notify] if isinstance(notify, Notify) else list(notify)
    draft = _draft(app, definition, params, format, request_key, notices)
    with app.writing(session, {QUEUE}) as connection:
        return _write(app, connection, draft)


class _Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has been checked."""

    report: str
    key: str | None
    params: Any
    format: str
    dialect: str
    consistency: str
    notify: Sequence[Notify]
    canonical: str


def _draft(
    app: Effects, definition: ReportDefinition, params: Any, wanted: str | None, key: str | None,
    notices: Sequence[Notify],
) -> _Draft:  # fmt: skip
    file = wanted or definition.formats[0]
    if file not in definition.formats:
        raise ReportInvalid(
            f"report {definition.name!r}: no format {file!r}; it offers {', '.join(definition.formats)}"
        )
    if key is not None and not (0 < len(key) <= REQUEST_KEY_CHARS_MAX and key.isprintable()):
        raise ReportInvalid(f"request_key must have 1 to {REQUEST_KEY_CHARS_MAX} printable characters")
    typed = resolve(definition, params, file, definition.dialect, None).params
    check_notices(app, notices)
    plain = msgspec.to_builtins(typed)
    encoded = msgspec.json.encode({"report": definition.name, "params": plain, "format": file}, order="sorted")
    if len(encoded) > PARAMS_BYTES_MAX:
        raise ReportInvalid(f"report {definition.name!r}: the params have {len(encoded):,} bytes; at most 65,536")
    return _Draft(
        report=definition.name, key=key, params=plain, format=file, dialect=definition.dialect,
        consistency=definition.consistency, notify=tuple(notices), canonical=encoded.decode(),
    )  # fmt: skip


def _write(app: Effects, connection: Connection, draft: _Draft) -> ReportReceipt:
    while True:
        run_id = new_id()
        key = draft.key or run_id
        newest = run_table.newest_generation(app.store, connection, draft.report, key)
        if newest is not None and newest.state not in AGAIN:
            if newest.digest != app.keys.digest(draft.canonical, like=newest.digest):
                raise IdempotencyConflict(
                    f"report {draft.report!r}: the request key {key!r} belongs to run {newest.run_id}, which has other "
                    "params or another format; use another key for another report",
                    job_id=newest.job_id,
                )
            return ReportReceipt(
                run_id=newest.run_id, report=draft.report, key=key, generation=newest.generation, state=newest.state,
                existing=True,
            )  # fmt: skip
        generation = 1 if newest is None else newest.generation + 1
        if _insert(app, connection, draft, run_id, key, generation):
            return ReportReceipt(run_id=run_id, report=draft.report, key=key, generation=generation)


def _insert(app: Effects, connection: Connection, draft: _Draft, run_id: str, key: str, generation: int) -> bool:
    [job_id] = reserve_ids(app.store, connection, 1)
    run = NewRun(
        id=run_id, report=draft.report, key=key, generation=generation, digest=app.keys.digest(draft.canonical),
        job_id=job_id, params=draft.params, format=draft.format, dialect=draft.dialect, consistency=draft.consistency,
        prefix=f"reports/{draft.report}/{run_id}-{secrets.token_hex(16)}",
    )  # fmt: skip
    if not run_table.insert_run(app.store, connection, run):
        return False
    keep_notices(app, connection, run_id, draft.notify)
    insert_known(app, connection, [steps.plan_job(run_id, draft.report, 1)], [job_id])
    return True


def new_id() -> str:
    """`rep_…`: 48 bits of milliseconds and 80 random ones in hexadecimal, so that ids sort by the time of making."""
    return f"rep_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


# -- looking ----------------------------------------------------------------------------------------------------


def report_status(run_id: str, *, effects: Effects | None = None) -> ReportStatus:
    """One run, as it is now.

    Raises:
        ReportNotFound: there is none of this id.
        StoreUnavailable: the database is away.
    """
    app = effects or default()
    with app.store.read() as connection:
        found = _statuses(app, connection, [run_id])
    if not found:
        raise ReportNotFound(f"there is no run {run_id!r} of a report")
    return found[0]


def list_reports(
    *, report: str | None = None, state: str | None = None, limit: int = 50, effects: Effects | None = None
) -> list[ReportStatus]:
    """The newest runs first, at most `limit` (1,000)."""
    app = effects or default()
    with app.store.read() as connection:
        ids = report_table.newest_ids(app.store, connection, report, state, min(limit, LIST_MAX))
        return _statuses(app, connection, ids)


def _statuses(app: Effects, connection: Connection, ids: Sequence[str]) -> list[ReportStatus]:
    runs = run_table.get_runs(app.store, connection, ids)
    tallies = chunk_table.tallies(app.store, connection, ids)
    generated = report_table.generated(app.store, connection, ids)
    return [_status(runs[one], tallies.get(one, Tally()), generated.get(one)) for one in ids if one in runs]


def _status(run: Run, tally: Tally, made: Generated | None) -> ReportStatus:
    facts: Mapping[str, Any] = {} if made is None or made.artifact is None else msgspec.structs.asdict(made)
    return ReportStatus(
        run_id=run.id, report=run.report, key=run.key, generation=1 if made is None else made.generation,
        state=run.state, params=msgspec.json.decode(run.params), format=run.format, dialect=run.dialect,
        consistency=run.consistency, progress=progress_of(run, tally), error_code=run.error_code,
        error_text=run.error_text, created_at=moment(run.created_at), planned_at=_moment(run.planned_at),
        ended_at=_moment(run.ended_at), expires_at=_moment(run.expires_at),
        **{name: facts.get(name) for name in _FILE_FACTS},
    )  # fmt: skip


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


# -- acting -----------------------------------------------------------------------------------------------------


def cancel_report(run_id: str, *, session: AnySession | None = None, effects: Effects | None = None) -> str:
    """Stop a run: chunks that wait end unmade, those under way stop within a second, finished ones are kept.

    Returns:
        `cancelled`, or `cancelling` while a chunk is still under way.

    Raises:
        ReportNotFound: there is no such run, or it has ended; says how.
    """
    app = effects or default()
    with app.writing(session, {QUEUE}) as connection:
        state = steps.cancel(app, connection, run_id)
        if state is None:
            raise _not_there(app, connection, run_id, "only a run that is under way can be cancelled")
        return state


def resume_report(run_id: str, *, session: AnySession | None = None, effects: Effects | None = None) -> str:
    """Take up a run that has failed or was cancelled: only chunks that are not done are made.

    Returns:
        `running`; or `requested` where it had no plan yet, or read a snapshot, which is gone: it is planned anew.

    Raises:
        ReportNotFound: there is no such run, or it is in another state; says which.
    """
    app = effects or default()
    with app.writing(session, {QUEUE}) as connection:
        run = run_table.lock_run(app.store, connection, run_id)
        state = None if run is None else steps.resume(app, connection, run)
        if state is None:
            raise _not_there(app, connection, run_id, "only a run that failed or was cancelled can be taken up again")
        return state


def _not_there(app: Effects, connection: Connection, run_id: str, rule: str) -> ReportNotFound:
    run = run_table.get_run(app.store, connection, run_id)
    if run is None:
        return ReportNotFound(f"there is no run {run_id!r} of a report")
    return ReportNotFound(f"run {run_id} is {run.state}: {rule}")
