"""Evidence for people: the attempts and actions of an effect as tables, and its last exception."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from effects.cli.output import Table, cell
from effects.observation.evidence import Evidence
from effects.store.db.records import ActionRecord, AttemptRecord
from effects.text.wording import shown_status


def evidence_blocks(evidence: Evidence) -> list[Any]:
    """What the last answer means, the attempts, and the actions."""
    facts = evidence.facts
    blocks: list[Any] = [facts.about] if facts.about else []
    if facts.explanation is not None and evidence.state != "running":  # of an attempt before; what follows is under way
        blocks.append(cell(f"the last answer: {facts.explanation.meaning}; {facts.explanation.follows}"))
    blocks.append(attempts_table(facts.attempts))
    blocks += error_blocks(facts.attempts)
    if facts.actions:
        blocks.append(actions_table(facts.actions))
    return blocks


def attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    columns = ("job", "attempt", "started", "took", "outcome", "verdict", "code", "answer", "worker")
    rows = [
        (
            attempt.job_id,
            attempt.attempt,
            attempt.started_at,
            f"{attempt.seconds:.3f} s",
            shown_status(attempt.outcome),
            attempt.verdict,
            attempt.error_code,
            attempt.answer,
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
