"""What an app calls: request a report in its own transaction, see how far it is and where it goes, read its file."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection

from effects import Effects, KeyUnavailable, ObjectMissing
from effects.extend.arguments import arguments, each_of, optional
from effects.extend.jobs import app_of
from effects.extend.sql import AnySession
from effects.extend.text import fill_placeholders, moment, moment_or_none, repr_without
from effects_reports.delivery.buckets import CustomerBucket, list_buckets
from effects_reports.errors import ReportInvalid, ReportNotFound, ReportStateError, no_run
from effects_reports.request import check_request
from effects_reports.routing import DELIVER_TYPE, QUEUE, bucket_limit_key
from effects_reports.runs.notify import PLACEHOLDERS, Notify, kept_notices
from effects_reports.runs.state_machine import Progress, progress_of
from effects_reports.state import state_of
from effects_reports.tables import chunks as chunk_table
from effects_reports.tables import reports as report_table
from effects_reports.tables import runs as run_table
from effects_reports.tables.chunks import ChunkCounts
from effects_reports.tables.links import BucketEffect, newest, of_keys
from effects_reports.tables.reports import Generated
from effects_reports.tables.runs import FailingStep, Run, RunFilters, read_failing_step, read_step, run_ids
from effects_reports.tables.schema import RUN_STATES
from effects_reports.writing import ReportReceipt, write_request

if TYPE_CHECKING:
    from effects import Effects


_FILE_FACTS = ("artifact", "filename", "content_type", "rows", "bytes", "sha256", "downloads")


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


@arguments.checked(ReportInvalid, name=arguments.NAME, format=optional(arguments.NAME))
def request_report(
    name: str,
    params: Any = None,
    *,
    format: str | None = None,  # noqa: A002 - the word that everybody uses
    key: str | None = None,
    notify: Notify | Sequence[Notify] = (),
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> ReportReceipt:
    """Write a request for a report, and the job that plans it, in the caller's transaction.

    Args:
        name: of the report.
        params: as the report's schema has them; a mapping or an instance of it. At most 64 KiB as JSON. They are stored
            in clear, for as long as the run's row is: give ids, not what is personal.
        format: one that the report offers; default its first.
        key: names this very report, such as `sales_report:2026-01-14`, at most 200 characters. A request with a
            known key gives the run that holds it, and adds its notices to that run; a new generation begins where that
            one has failed, was cancelled or has expired. Default: derived from report, params and format, so that the
            same request again gives the same run for as long as its file is kept. To have a fresh one each time, put
            the time of the request into it.
        notify: jobs to enqueue when it is ready or has failed, in the transaction that says so; in the caller's, if
            the key's run is ready already. What the run has is not added again, so that a repeated call tells nothing
            twice. Adding to a run that is there locks its row until the caller's transaction ends.
        session: a SQLAlchemy Session or Connection, a connection of sqlite3, psycopg or psycopg2, or Django's
            (docs/sessions.md). Never committed by us. Without one, our own transaction.
        effects: the Effects to use; default that of the session's engine, else the process's.

    Returns:
        The receipt. A crash before the commit leaves nothing; after it, the run ends ready, failed or cancelled,
        however often its workers die.

    Raises:
        ReportInvalid: no such report, params or format; or a notice whose job could not be enqueued.
        DefinitionInvalid: with these params its function gives no usable SELECT.
        IdempotencyConflict: the key belongs to a run of other params or another format, which is there or under way.
        KeyUnavailable: EFFECTS_KEYS lacks a key that its notices take, or that those of the key's run are sealed with.
        StoreUnavailable: the database is unavailable (without `session`). With a key, calling again is safe.
    """
    app = app_of(effects, session)
    definition = state_of(app).registry.get(name)
    notices = [notify] if isinstance(notify, Notify) else list(each_of(notify, Notify, "notify", ReportInvalid))
    request = check_request(app, definition, params, format, key, notices)
    with app.writing(session, {QUEUE}) as connection:
        return write_request(app, connection, request)


# -- looking ----------------------------------------------------------------------------------------------------


@arguments.checked(ReportInvalid, run_id=arguments.NAME)
def report_status(run_id: str, *, effects: Effects | None = None) -> ReportStatus:
    """One run, as it is now.

    Args:
        run_id: of the run, as its receipt has it.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound: no run has this id.
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        statuses = _statuses(app, connection, [run_id])
    if not statuses:
        raise no_run(run_id)
    return statuses[0]


@arguments.checked(ReportInvalid, name=arguments.NAME, key=arguments.NAME)
def find_report(name: str, *, key: str, effects: Effects | None = None) -> ReportStatus:
    """The newest run of a report that was requested with this key; `cancel_report` takes its `run_id`.

    Args:
        name: of the report.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound: no run of this report has the key.
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        run_id = report_table.newest_of_key(app.store, connection, name, key)
        statuses = [] if run_id is None else _statuses(app, connection, [run_id])
    if not statuses:
        raise ReportNotFound(f"there is no run of {name!r} with key {key!r}")
    return statuses[0]


def failing_step(app: Effects, run_id: str) -> FailingStep | None:
    """The first step of a run that has failed and will be tried again, or waits for an operator."""
    with app.store.read() as connection:
        return read_failing_step(app.store, connection, run_id)


def current_step(app: Effects, run_id: str) -> int | None:
    """The job that a run waits for; None where none is live."""
    with app.store.read() as connection:
        return read_step(app.store, connection, run_id)


@arguments.checked(
    ReportInvalid,
    report=optional(arguments.NAME),
    state=optional(arguments.one_of(RUN_STATES)),
    before=optional(arguments.NAME),
    limit=arguments.whole(1, arguments.LIST_MAX),
)
def list_reports(
    *,
    report: str | None = None,
    state: str | None = None,
    before: str | None = None,
    limit: int = 50,
    effects: Effects | None = None,
) -> list[ReportStatus]:
    """List the newest runs first, at most `limit`.

    Args:
        report: only runs of this report.
        state: only runs in this state.
        before: the id of a run; only older ones: the next page.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound: there is no run `before`.
    """
    filters = RunFilters(report=report, state=state, before=before, limit=limit)
    return find_reports(app_of(effects), filters)


def find_reports(app: Effects, filters: RunFilters) -> list[ReportStatus]:
    """List the runs that match, the newest first.

    Raises:
        ReportNotFound: there is no run `filters.before`.
    """
    with app.store.read() as connection:
        if filters.before is not None and run_table.get_run(app.store, connection, filters.before) is None:
            raise no_run(filters.before)
        return _statuses(app, connection, run_ids(app.store, connection, filters))


def _statuses(app: Effects, connection: Connection, ids: Sequence[str]) -> list[ReportStatus]:
    runs = run_table.get_runs(app.store, connection, ids)
    counts = chunk_table.count_chunks(app.store, connection, ids)
    generated = report_table.generated(app.store, connection, ids)
    return [
        _status(runs[run_id], counts.get(run_id, ChunkCounts()), generated.get(run_id))
        for run_id in ids
        if run_id in runs
    ]


def _status(run: Run, counts: ChunkCounts, generated: Generated | None) -> ReportStatus:
    facts: Mapping[str, Any] = (
        {} if generated is None or generated.artifact is None else msgspec.structs.asdict(generated)
    )
    return ReportStatus(
        run_id=run.id, report=run.report, key=run.key, generation=1 if generated is None else generated.generation,
        state=run.state, params=msgspec.json.decode(run.params), format=run.format, dialect=run.dialect,
        consistency=run.consistency, progress=progress_of(run, counts), error_code=run.error_code,
        error_text=run.error_text, created_at=moment(run.created_at), planned_at=moment_or_none(run.planned_at),
        ended_at=moment_or_none(run.ended_at), expires_at=moment_or_none(run.expires_at),
        **{name: facts.get(name) for name in _FILE_FACTS},
    )  # fmt: skip


def ready_status(run_id: str, *, effects: Effects | None = None) -> ReportStatus:
    """The status of a run with a file.

    Raises:
        ReportNotFound: there is no such run.
        ReportStateError: it is not ready, or its file has expired.
    """
    status = report_status(run_id, effects=effects)
    if status.artifact is None:
        why = "its file has expired: request it again" if status.state == "expired" else "its file is not ready"
        raise ReportStateError(f"run {run_id} is {status.state}: {why}")
    return status


def open_result(run_id: str, *, effects: Effects | None = None) -> Iterator[bytes]:
    """The bytes of a run's file, in pieces of at most 1 MiB, checked against its SHA-256.

    Args:
        run_id: of the run, as its receipt has it.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: at once, where there is no such file.
        ObjectMissing, StorageUnavailable: from the first piece on, where the storage has lost it or is away; or after
            the last one, where these are not the bytes that were written.
    """
    app = app_of(effects)
    status = ready_status(run_id, effects=app)
    assert status.artifact is not None
    return _checked(app.storage.read(status.artifact), status)


def _checked(pieces: Iterator[bytes], status: ReportStatus) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
        yield piece
    if digest.hexdigest() != status.sha256:
        raise ObjectMissing(
            f"the file of run {status.run_id} was altered in the storage: request the report again",
            code="storage_altered",
        )


class BucketDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """One file into one bucket; `state` is `waiting` before the run is ready, else that of the effect."""

    bucket: str
    state: str
    delivery: BucketEffect | None = None


class RunDeliveries(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run is delivered.

    Attributes:
        buckets: one a bucket.
        notices: job type → how many other notices there are, such as mails.
        is_sealed: they are sealed, and this process has no key to read them.
        is_damaged: the run's row does not hold notices that can be read.
    """

    buckets: list[BucketDelivery] = []
    notices: dict[str, int] = {}
    is_sealed: bool = False
    is_damaged: bool = False


class BucketHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A bucket with its newest deliveries, the newest first."""

    bucket: CustomerBucket
    deliveries: list[BucketEffect]


def run_deliveries(app: Effects, run: ReportStatus) -> RunDeliveries:
    """Where a run is delivered, and how far that is.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with app.store.read() as connection:
        try:
            notices = kept_notices(app, connection, run.run_id)
        except KeyUnavailable:
            return RunDeliveries(is_sealed=True)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return RunDeliveries(is_damaged=True)
        keys = {_key_of(notice, run): notice for notice in notices if notice.job_type == DELIVER_TYPE}
        by_key = {delivery.key: delivery for delivery in of_keys(app.store, connection, list(keys))} if keys else {}
    return RunDeliveries(
        buckets=[_of_bucket(notice, by_key.get(key), run) for key, notice in keys.items()],
        notices=dict(Counter(notice.job_type for notice in notices if notice.job_type != DELIVER_TYPE)),
    )


def _key_of(notice: Notify, run: ReportStatus) -> str:
    words = {**dict.fromkeys(PLACEHOLDERS, ""), "run_id": run.run_id, "report": run.report, "key": run.key}
    return str(fill_placeholders(notice.key or "", words))


def _of_bucket(notice: Notify, delivery: BucketEffect | None, run: ReportStatus) -> BucketDelivery:
    missing = "abandoned" if run.ended else "waiting"
    state = missing if delivery is None else delivery.state
    return BucketDelivery(bucket=str(notice.payload.get("bucket")), state=state, delivery=delivery)


def bucket_health(app: Effects) -> list[BucketHealth]:
    """All buckets by name, with those of the newest 500 deliveries that went into each.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with app.store.read() as connection:
        deliveries = newest(app.store, connection)
    return [
        BucketHealth(
            bucket=bucket,
            deliveries=[each for each in deliveries if each.limit_key == bucket_limit_key(bucket.name)],
        )
        for bucket in list_buckets(effects=app)
    ]
