"""`effects status`, `effects why`, `effects audit`, `effects log`; and the evidence of an effect as tables."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from effects.cli.context import Context
from effects.cli.options import JobId, before_option, limit_option, window_options
from effects.cli.results import CommandResult, command, page_note
from effects.cli.table import Table, cell
from effects.kit.exit_codes import ExitCode
from effects.kit.text.wording import duration
from effects.model.job import ENDED, LIVE_SHOWN
from effects.operate.evidence import Evidence, find_evidence, find_orphans
from effects.operate.sentences import orphan_sentence, sentence
from effects.operate.tables.actions import AuditEntry, LogFilters, list_entries
from effects.operate.tables.audit import CHECKS, AuditFinding
from effects.operate.tables.audit import audit as run_audit
from effects.operate.tables.queue_status import BulkProgress, Status, TypeCount, WorkerState, read_status
from effects.store.db.records import ActionRecord, AttemptRecord
from effects.store.db.sql import Window
from effects.store.effects.by_key import EffectStatus


def evidence_blocks(evidence: Evidence) -> list[Any]:
    """What the last answer means, the attempts, and the actions."""
    facts = evidence.facts
    blocks: list[Any] = [facts.about] if facts.about else []
    if facts.explanation is not None and evidence.state != "running":  # of an attempt before; what follows is under way
        blocks.append(cell(f"the last answer: {facts.explanation.meaning}; {facts.explanation.follows}"))
    blocks.append(attempts_table(facts.attempts))
    blocks += error_blocks(facts.attempts)
    blocks += [
        cell(f"attempt {attempt.attempt} of job {attempt.job_id}{shown}")
        for attempt in facts.attempts
        if (shown := result_text(attempt))
    ]
    if facts.actions:
        blocks.append(actions_table(facts.actions))
    return blocks


def result_text(of: AttemptRecord | EffectStatus) -> str:
    """`, result: …`, or why it is missing; empty where none is kept."""
    if of.result_missing is not None:
        return f", no result: {of.result_missing}"
    return "" if of.result is None else f", result: {json.dumps(of.result, ensure_ascii=False)}"


def attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    columns = ("job", "attempt", "started", "took", "outcome", "verdict", "code", "answer", "worker")
    rows = [
        (
            attempt.job_id,
            attempt.attempt,
            attempt.started_at,
            f"{attempt.seconds:.3f} s",
            attempt.outcome,
            attempt.verdict,
            attempt.error_code,
            "; ".join(filter(None, (attempt.answer, attempt.late and f"late: {attempt.late}"))),
            attempt.worker,
        )
        for attempt in attempts
    ]
    return Table(columns, rows, title="attempts", empty="no attempts")


def error_blocks(attempts: Sequence[AttemptRecord]) -> list[Any]:
    """Where the newest exception came through, or the handler was at its time limit: the app's own frames first."""
    raised = next((attempt for attempt in reversed(attempts) if attempt.frames), None)
    if raised is None:
        return []
    head = f"attempt {raised.attempt} of job {raised.job_id}, the most recent call first: {_what_was_raised(raised)}"
    return [
        "\n".join(
            cell(line)
            for line in (
                head,
                *(f"  {'' if frame.startswith('caused by') else 'at '}{frame}" for frame in raised.frames),
            )
        )
    ]


def _what_was_raised(attempt: AttemptRecord) -> str:
    if attempt.outcome == "timed_out":
        return "where it was at its time limit"
    text = " (text not kept: EFFECTS_ERROR_TEXTS)" if attempt.error_text is None else f": {attempt.error_text}"
    return f"{attempt.error_type or 'an exception'}{text}"


def actions_table(actions: Sequence[ActionRecord]) -> Table:
    rows = [(action.created_at, action.job_id, action.action, action.actor, action.reason) for action in actions]
    return Table(("when", "job", "action", "by", "reason"), rows, title="actions", empty="no actions")


@click.command()
@command
def status(context: Context) -> CommandResult:
    """Show queue counts, pauses, errors and workers."""
    app = context.app
    status = read_status(app.store, app.settings.lease_seconds, app.job_types, app.queues)
    return CommandResult(status, _status_blocks(status), has_database=True)


@click.command()
@click.argument("key")
@command
def why(context: Context, *, key: str) -> CommandResult:
    """Explain the state of one effect, with its attempts.

    KEY is the caller's idempotency key, the id of a job, or what a package knows its effects by: the id of a webhook
    event, a delivery (EVENT:ENDPOINT), an endpoint or its URL, a Message-ID, an address that mail was sent to.
    """
    document, blocks = [], list[Any]()
    orphans = find_orphans(context.app, key)
    for evidence in find_evidence(context.app, key, may_be_none=bool(orphans)):
        text = sentence(evidence)
        document.append({"sentence": text, **msgspec.structs.asdict(evidence)})
        blocks += [cell(text), *evidence_blocks(evidence)]
    for orphan in orphans:
        text = orphan_sentence(orphan)
        document.append({"sentence": text, "orphan": orphan})
        blocks.append(cell(text))
    return CommandResult(document, blocks)


@click.command()
@command
def audit(context: Context) -> CommandResult:
    """Verify that no effect was lost or duplicated.

    Reads every table in full; safe on a live system. Exit code 1 if anything is found.
    """
    findings = run_audit(context.app.store, context.app.ledgers)
    document = {"clean": not findings, "checks": len(CHECKS), "findings": findings}
    if not findings:
        return CommandResult(document, f"clean: {len(CHECKS)} checks, no findings")
    return CommandResult(document, "\n".join(map(_finding_line, findings)), exit_code=ExitCode.FINDINGS)


def _finding_line(finding: AuditFinding) -> str:
    shown = ", ".join(str(job_id) for job_id in finding.job_ids)
    more = ", …" if finding.count > len(finding.job_ids) else ""
    return f"{finding.check}: {finding.sentence} Violated by {finding.count}: {shown}{more}"


def _status_blocks(status: Status) -> list[Any]:
    oldest = status.oldest_due_seconds
    facts = {
        "database": status.database,
        **({} if (since := status.succeeded_since) is None else {"succeeded": f"of those created since {cell(since)}"}),
        "oldest due job": "none" if oldest is None else f"due {duration(oldest)} ago",
        "dead in the last hour": status.dead_last_hour,
        "unresolved": f"{status.unresolved:,}, of which {status.unknown:,} may have happened",
    }
    blocks: list[Any] = [_counts_table(status.counts), facts]
    if status.errors:
        rows = [(error.job_type, error.error_code, error.jobs) for error in status.errors]
        columns = ("type", "code", "failing, put off, or died in the last 24 h")
        blocks.append(Table(columns, rows, title="errors", empty="no errors"))
    if status.held_up:
        held_up = [(held.jobs, held.text, held.ends) for held in status.held_up]
        blocks.append(Table(("waiting", "held up by", "what ends it"), held_up, title="held up", empty="nothing"))
    blocks += map(_bulk_line, status.bulks)
    return [*blocks, _workers_table(status.workers)]


def _bulk_line(bulk: BulkProgress) -> str:
    stopped = f"; stopped: see `effects bulk show {bulk.id}`" if bulk.status == "stopped" else ""
    acted_on = f"{bulk.done + bulk.refused:,} of {bulk.expected:,} jobs"
    return f"bulk {bulk.id} ({bulk.action.replace('_', ' ')}): {acted_on}{stopped}"


def _workers_table(states: Sequence[WorkerState]) -> Table:
    workers = [
        (
            worker.id,
            worker.shown_state,
            duration(worker.silent_seconds),
            *(None if ago is None else duration(ago) for ago in (worker.claimed_seconds, worker.settled_seconds)),
            worker.running,
            worker.queues,
        )
        for worker in states
    ]
    columns = ("worker", "status", "last seen ago", "claimed ago", "settled ago", "running", "queues")
    return Table(columns, workers, title="workers", empty="no workers running")


def _counts_table(counts: list[TypeCount]) -> Table:
    """A row a job type, a column a status."""
    statuses = (*LIVE_SHOWN, *ENDED)
    by_type: dict[str, dict[str, int]] = defaultdict(dict)
    for count in counts:
        by_type[count.job_type][count.status] = count.jobs
    rows = [
        (name, *(by_status.get(status, 0) for status in statuses))
        for name, by_status in sorted(by_type.items(), key=str)
    ]
    return Table(("type", *statuses), rows, empty="no jobs")


@click.command()
@click.option("--actor", metavar="NAME", help="Who acted, such as cli:ann.")
@click.option("--action", metavar="NAME", help="What was done, such as pause.")
@click.option("--subject", metavar="KIND[:NAME]", help="What it was done to, such as limit or limit:smtp.")
@click.option("--job", "job_id", type=JobId(min=1), metavar="ID", help="Same as --subject job:ID.")
@window_options("were written")
@before_option("entries")
@limit_option
@command
def log(
    context: Context,
    *,
    actor: str | None,
    action: str | None,
    subject: str | None,
    job_id: int | None,
    before: int | None,
    window: Window,
    limit: int,
) -> CommandResult:
    """List who did what, when and why, newest first.

    Actions are kept for EFFECTS_RETENTION_AUDIT_DAYS, even if their subject is deleted. The next page: --before with
    the last id of this one.
    """
    if job_id is not None and subject is not None:
        raise click.UsageError("give --job or --subject, not both")
    kind, _, name = f"job:{job_id}".partition(":") if job_id is not None else (subject or "").partition(":")
    filters = LogFilters(
        actor=actor, action=action, subject_kind=kind or None, subject=name or None, before=before, window=window,
        limit=limit + 1,
    )  # fmt: skip
    entries = list_entries(context.app.store, filters)
    more, shown = len(entries) > limit, entries[:limit]
    return CommandResult(
        shown, _entries_table(shown), note=page_note("entry", shown[-1].id if more else None, more=more)
    )


def _entries_table(entries: Sequence[AuditEntry]) -> Table:
    columns = ("id", "created", "actor", "action", "subject", "reason", "detail")
    rows = [
        (
            entry.id,
            entry.created_at,
            entry.actor,
            entry.action,
            f"{entry.subject_kind}:{entry.subject}",
            entry.reason,
            msgspec.json.encode(entry.detail, enc_hook=str).decode() if entry.detail else None,
        )
        for entry in entries
    ]
    return Table(columns, rows, empty="no entries")
