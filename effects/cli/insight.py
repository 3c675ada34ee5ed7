"""`effects status`, `effects why`, `effects audit`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from effects.cli.context import Context
from effects.cli.evidence import evidence_blocks
from effects.cli.output import Table, cell
from effects.cli.results import CommandResult, command
from effects.exit_codes import ExitCode
from effects.model.job import ENDED, LIVE
from effects.observation.evidence import find_evidence, find_orphans
from effects.observation.sentences import orphan_sentence, sentence
from effects.store.operator.audit import CHECKS, AuditFinding
from effects.store.operator.audit import audit as run_audit
from effects.store.operator.queue_status import BulkProgress, Status, TypeCount, WorkerState, read_status
from effects.text.wording import duration, jobs_with, shown_status


@click.command()
@command
def status(context: Context) -> CommandResult:
    """Show queue counts, pauses, errors and workers."""
    app = context.app
    status = read_status(app.store, app.settings.lease_seconds)
    return CommandResult(status, _status_blocks(status))


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
        **({} if status.ended_since is None else {"ended jobs": f"of those created since {cell(status.ended_since)}"}),
        "oldest due job": "none" if oldest is None else f"due {duration(oldest)} ago",
        "dead in the last hour": status.dead_last_hour,
        "unresolved": f"{status.unresolved:,}, of which {status.unknown:,} may have happened",
    }
    blocks: list[Any] = [_counts_table(status.counts), facts]
    if status.errors:
        rows = [(error.job_type, error.error_code, error.jobs) for error in status.errors]
        columns = ("type", "code", "failing, put off, or died in the last 24 h")
        blocks.append(Table(columns, rows, title="errors", empty="no errors"))
    if status.operator_waits:
        lacking = [(wait.job_type, wait.jobs, wait.lacks) for wait in status.operator_waits]
        blocks.append(Table(("type", "jobs", "waits for an operator"), lacking, title="lacking", empty="nothing"))
    if status.paused:
        paused = [(pause.limit_key, pause.until, pause.waiting, pause.reason) for pause in status.paused]
        blocks.append(Table(("key", "until", "waiting", "reason"), paused, title="paused", empty="no pauses"))
    blocks += [f"{pause}; {jobs_with(pause.waiting, 'waits')}" for pause in status.paused_queues]
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
    statuses = (*LIVE, *ENDED)
    by_type: dict[str, dict[str, int]] = defaultdict(dict)
    for count in counts:
        by_type[count.job_type][count.status] = count.jobs
    rows = [
        (name, *(by_status.get(status, 0) for status in statuses))
        for name, by_status in sorted(by_type.items(), key=str)
    ]
    return Table(("type", *map(shown_status, statuses)), rows, empty="no jobs")
