"""What an operator does with runs: cancel one, resume one, repair those whose jobs were lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects import Effects, StoreConflict, StoreUnavailable
from effects.extend.actions import AuditAction, note
from effects.extend.arguments import arguments
from effects.extend.jobs import app_of
from effects.extend.process import own_logger
from effects.extend.sql import AnySession
from effects.extend.text import error_places
from effects_reports.api import ready_status
from effects_reports.delivery.link_tokens import LINK_SECONDS, LinkTerms, write_link
from effects_reports.errors import ReportInvalid, ReportNotFound, ReportStateError, no_run
from effects_reports.retention import clear_copies
from effects_reports.routing import QUEUE
from effects_reports.runs import state_machine
from effects_reports.state import state_of
from effects_reports.tables import retention as table
from effects_reports.tables import runs as run_table
from effects_reports.tables import watermarks

_CANCEL, _RESUME, _REPAIR, _LINK, _REWIND = (
    AuditAction("report", name) for name in ("cancel", "resume", "repair", "link", "rewind")
)
_log = own_logger("effects.reports")


@arguments.checked(ReportInvalid, run_id=arguments.NAME, **arguments.ACTING)
def cancel_report(
    run_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> str:
    """Stop a run: chunks that wait end unmade, those under way stop within a second, finished ones are kept.

    Args:
        run_id: of the run, as its receipt has it.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Returns:
        `cancelled`, or `cancelling` while a chunk is still under way.

    Raises:
        ReportNotFound: there is no such run.
        ReportStateError: it has ended; the message tells how.
    """
    app = app_of(effects, session)
    with app.writing(session, {QUEUE}) as connection:
        state = state_machine.cancel(app, connection, run_id)
        if state is None:
            raise _wrong_state(app, connection, run_id, "only a run that is under way can be cancelled")
        note(app.store, connection, _CANCEL, run_id, actor=actor, reason=reason, detail={"state": state})
        return state


@arguments.checked(ReportInvalid, run_id=arguments.NAME, **arguments.ACTING)
def resume_report(
    run_id: str,
    *,
    actor: str = "app",
    reason: str | None = None,
    session: AnySession | None = None,
    effects: Effects | None = None,
) -> str:
    """Resume a run that has failed or was cancelled: only chunks that are not done are made.

    Args:
        run_id: of the run, as its receipt has it.
        actor, reason: who and why, for the audit log.
        session: the caller's transaction, never committed by us. Without one, our own transaction.
        effects: the Effects to use; default the process's.

    Returns:
        `running`; or `requested` where it had no plan yet, or read a snapshot, which is gone: it is planned again.

    Raises:
        ReportNotFound: there is no such run.
        ReportStateError: it is in another state; the message names it.
    """
    app = app_of(effects, session)
    with app.writing(session, {QUEUE}) as connection:
        run = run_table.lock_run(app.store, connection, run_id)
        state = None if run is None else state_machine.resume(app, connection, run, actor=actor, reason=reason)
        if state is None:
            raise _wrong_state(app, connection, run_id, "only a run that failed or was cancelled can be taken up again")
        note(app.store, connection, _RESUME, run_id, actor=actor, reason=reason, detail={"state": state})
        return state


@arguments.checked(ReportInvalid, code=arguments.NAME, **arguments.ACTING)
def resume_failed(
    code: str, *, actor: str = "app", reason: str | None = None, effects: Effects | None = None
) -> dict[str, str]:
    """Resume every run that has failed with this code, such as `storage_full`, the oldest first.

    Each in its own transaction: a crash half-way leaves the others as they are, and another call resumes them.

    Args:
        code: the runs' `error_code`.
        actor, reason: who and why, for the audit log.
        effects: the Effects to use; default the process's.

    Returns:
        Run → its new state, as of `resume_report`. A run that another caller resumes meanwhile is left out.
    """
    app = app_of(effects)
    with app.store.read() as connection:
        run_ids = run_table.failed_with(app.store, connection, code)
    resumed = {}
    for run_id in run_ids:
        with suppress(ReportStateError, ReportNotFound):
            resumed[run_id] = resume_report(run_id, actor=actor, reason=reason, effects=app)
    return resumed


@arguments.checked(ReportInvalid, run_id=arguments.NAME, base_url=arguments.text, **arguments.ACTING)
def make_link(
    run_id: str,
    base_url: str,
    *,
    seconds: float = LINK_SECONDS,
    uses: int | None = None,
    principal: str | None = None,
    actor: str = "app",
    reason: str | None = None,
    effects: Effects | None = None,
) -> str:
    """Make another link to a run's file, for a person who asks for it: `download_url`, noted in the audit log.

    Args:
        run_id, base_url, seconds, uses, principal: as for `download_url`.
        actor, reason: who and why, for the audit log, which has neither the link nor the principal.
        effects: the Effects to use; default the process's.

    Raises:
        ReportNotFound, ReportStateError: there is no such file now.
        ReportInvalid: the terms are out of bounds.
        KeyUnavailable: EFFECTS_KEYS holds no key to sign with.
    """
    app = app_of(effects)
    terms = LinkTerms(seconds=seconds, uses=uses, principal=principal)
    terms.check()
    sha256 = str(ready_status(run_id, effects=app).sha256)
    with app.store.begin() as connection:
        url = write_link(app, connection, run_id, sha256, base_url, terms)
        detail = {"seconds": seconds, "uses": uses, "personal": principal is not None}
        note(app.store, connection, _LINK, run_id, actor=actor, reason=reason, detail=detail)
    return url


@arguments.checked(ReportInvalid, name=arguments.NAME, **arguments.ACTING)
def rewind_report(
    name: str,
    params: Any = None,
    *,
    actor: str = "app",
    reason: str | None = None,
    effects: Effects | None = None,
) -> bool:
    """Let the next run of an incremental report begin with every row again. One that is under way ends as it is.

    Args:
        name: of the report.
        params: those of its runs: each has its own watermark.
        actor, reason: who and why, for the audit log.
        effects: the Effects to use; default the process's.

    Returns:
        Whether it had a watermark.

    Raises:
        ReportInvalid: no such report, or it is not incremental; or the params do not fit.
    """
    app = app_of(effects)
    definition = state_of(app).registry.get(name)
    if not definition.incremental:
        raise ReportInvalid(f"report {name!r} is not incremental: its function takes no `since`")
    plain = msgspec.json.encode(msgspec.to_builtins(definition.read_params(params)), order="sorted")
    series = watermarks.series_of(name, plain)
    with app.store.begin() as connection:
        is_forgotten = watermarks.forget(app.store, connection, series)
        if is_forgotten:
            note(app.store, connection, _REWIND, series, actor=actor, reason=reason)
    return is_forgotten


def _wrong_state(app: Effects, connection: Connection, run_id: str, rule: str) -> ReportNotFound | ReportStateError:
    run = run_table.get_run(app.store, connection, run_id)
    if run is None:
        return no_run(run_id)
    return ReportStateError(f"run {run_id} is {run.state}: {rule}")


class RepairCounts(msgspec.Struct, kw_only=True):
    """How many runs or chunks a repair has moved; zeros are the rule.

    `restarted`: runs whose plan or assembly got a new job. `failed`: runs whose job had died unnoticed. `chunks`:
    those whose job was gone. `closed`: runs all of whose chunks had ended. `copies`: of a SQLite
    file, which runs no longer read. `unrepaired`: what could not be moved; the log says why (`report.repair_failed`).
    """

    restarted: int = 0
    failed: int = 0
    chunks: int = 0
    closed: int = 0
    copies: int = 0
    unrepaired: int = 0


@arguments.checked(ReportInvalid, **arguments.ACTING)
def repair_reports(*, actor: str = "app", reason: str | None = None, effects: Effects | None = None) -> RepairCounts:
    """Move every run that nothing else would move any more.

    Transitions write their next jobs with themselves, and a job that dies takes its run along: what this finds was done
    by hand, or by a version of this package that did less. Running it at any moment, twice at once too, is harmless: it
    takes the same conditional transitions. Each is in the audit log, in its own transaction, and one
    that fails stops no other.

    Args:
        actor, reason: who and why, for the audit log.
        effects: the Effects to use; default the process's.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    app = app_of(effects)
    repaired = RepairCounts()
    with app.store.read() as connection:
        stranded = table.stranded_runs(app.store, connection)
        orphaned = table.orphaned_chunks(app.store, connection)
        complete = table.complete_runs(app.store, connection)
    for row in stranded:
        with _apart(repaired, row.id):
            _move_on(app, row, repaired, actor, reason)
    for row in orphaned:
        with _apart(repaired, row.run_id):
            _end_chunk(app, row, repaired, actor, reason)
    for run_id in complete:
        with _apart(repaired, run_id):
            _close(app, run_id, repaired, actor, reason)
    repaired.copies = clear_copies(app, state_of(app).registry)
    return repaired


@contextmanager
def _apart(repaired: RepairCounts, run_id: str) -> Iterator[None]:
    """Log and count the error of one run: it must not stop the repair of all others, now and every five minutes."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StoreUnavailable) and not isinstance(error, StoreConflict):
            raise
        repaired.unrepaired += 1
        facts = {"run": run_id, "error": type(error).__name__, "at": error_places(error)}
        _log.error("report.repair_failed", extra=facts)


def _end_chunk(app: Effects, row: Row[Any], repaired: RepairCounts, actor: str, reason: str | None) -> None:
    code, text = _how_it_ended(row)
    with app.store.begin() as connection:
        state_machine.chunk_ended(app, connection, row.run_id, row.ordinal, row.job_id, died=True, code=code, text=text)
        detail = {"chunk": row.ordinal, "code": code}
        note(app.store, connection, _REPAIR, row.run_id, actor=actor, reason=reason, detail=detail)
    repaired.chunks += 1


def _close(app: Effects, run_id: str, repaired: RepairCounts, actor: str, reason: str | None) -> None:
    with app.store.begin() as connection:
        state_machine.close(app, connection, run_id)
        note(app.store, connection, _REPAIR, run_id, actor=actor, reason=reason, detail={"result": "closed"})
    repaired.closed += 1


def _how_it_ended(row: Row[Any]) -> tuple[str, str]:
    if row.status is None:
        return "job_gone", "its job is gone"
    return row.error_code or f"job_{row.status}", row.last_error or f"its job ended {row.status}"


def _move_on(app: Effects, row: Row[Any], repaired: RepairCounts, actor: str, reason: str | None) -> None:
    """Fail the run with its dead job; if the job vanished without a trace, write it again."""
    with app.store.begin() as connection:
        run = run_table.lock_run(app.store, connection, row.id)
        if run is None or run.state != row.state or not table.is_stranded(app.store, connection, run.id):
            return
        has_died = row.status in ("dead", "cancelled")
        if has_died:
            state_machine.fail(app, connection, run.id, *_how_it_ended(row))
        else:
            state_machine.begin_again(app, connection, run)
        detail = {"result": "failed" if has_died else "restarted"}
        note(app.store, connection, _REPAIR, run.id, actor=actor, reason=reason, detail=detail)
    if has_died:
        repaired.failed += 1
    else:
        repaired.restarted += 1
