"""Evidence in words: a sentence about an effect, why it waits, and what may be done. Evidence in, text out.

`effects why` prints it, and the dashboard's pages show it.
"""

from __future__ import annotations

import datetime as dt

from effects.model.advice import Action
from effects.model.standing import objection
from effects.observation.evidence import Evidence
from effects.observation.waits import Wait, WaitReason
from effects.store.db.records import JobRecord
from effects.store.recovery.failover_records import EvidenceRecord
from effects.text.wording import duration, moment_text, shown_status

DONE = "Nothing left to do."


def sentence(evidence: Evidence) -> str:
    """Describe the state of an effect: since when, after how many attempts, the last answer and the next step."""
    name = evidence.key if evidence.key is not None else f"job {evidence.facts.jobs[0].id}"
    who = f"{name} ({evidence.job_type})" if evidence.job_type else name
    return f"{who} {_state(evidence)}"


def orphan_sentence(orphan: EvidenceRecord) -> str:
    """Say what is known of an effect whose job a failover lost."""
    name = orphan.key if orphan.key is not None else f"job {orphan.job_id}"
    arrived = "arrived" if orphan.verdict == "done" else "may have arrived"
    return (
        f"{name} ({orphan.job_type}) {arrived} at {moment_text(orphan.happened_at)}, and failover {orphan.failover_id} "
        f"lost its job: worker {orphan.worker} remembers it. It is not repeated, and its key is free."
    )


def _state(evidence: Evidence) -> str:
    facts = evidence.facts
    if not facts.jobs:
        return f"is {facts.ledger_state}; the history of its job has been deleted."
    newest = facts.jobs[0]
    tried, following = f"{_tries(evidence)}{_answer(evidence)}", advice(evidence)
    match evidence.state:
        case "done":
            return f"was done{_at(newest)} after {tried}. {DONE}"
        case "refused":
            return f"was refused{_at(newest)} after {tried}. {following}"
        case "unknown":
            return f"is unknown (it may or may not have happened) after {tried}. {following}"
        case "abandoned":
            reason = newest.last_error or newest.error_code or newest.status
            word = "was cancelled" if newest.status == "cancelled" else "died"
            return f"{word}{_at(newest)} ({reason}) after {tried}. {following}"
        case "running":
            return f"is running ({_tries(evidence)} before{_answer(evidence)}). {following}"
        case "waiting":
            return f"is {shown_status(newest.status)} ({tried}); {following}"


def _at(job: JobRecord) -> str:
    return f" at {moment_text(job.finished_at)}" if job.finished_at else ""


def _tries(evidence: Evidence) -> str:
    facts = evidence.facts
    if not facts.tries and facts.attempts:
        return "no attempt that counts"  # a pause or a snooze costs none
    tries = f"{facts.tries} attempt{'' if facts.tries == 1 else 's'}"
    return tries if len(facts.jobs) == 1 else f"{tries} in {len(facts.jobs)} jobs"


def _answer(evidence: Evidence) -> str:
    """Left out where the reason to wait says the same."""
    answer = evidence.facts.attempts[-1].answer if evidence.facts.attempts else None
    is_the_cause = evidence.waits is not None and evidence.waits.cause == answer
    return f", last answer: {answer}" if answer and not is_the_cause else ""


# -- what happens next -------------------------------------------------------------------------------------


def advice(evidence: Evidence) -> str:
    """Say what happens next, or what can be done, with commands that work as they stand."""
    job, standing = evidence.facts.jobs[0], evidence.standing
    if evidence.waits is not None:
        return f"{wait_text(evidence.waits)}."
    if job.status == "running":
        since = f" since {moment_text(job.started_at)}" if job.started_at else ""
        return f"Attempt {job.attempts} has been running{since} in worker {job.worker}{_silence(evidence)}."
    if standing is None or standing.effect == "done":
        return DONE
    if standing.successor is not None:
        newer = standing.successor[0]
        return f"Job {job.id} was requeued as job {newer}: see `effects jobs show {newer}`."
    if standing.instead is not None:
        return f"No further attempt by itself: {standing.instead.text}."
    return _decision(evidence)


def _silence(evidence: Evidence) -> str:
    silence = evidence.silence
    if silence is None:
        return ""
    return (
        f", which was last heard of {duration(silence.seconds)} ago: unless it is heard of again, another worker takes "
        f"the job back at about {moment_text(silence.taken_back_at)}"
    )


def _decision(evidence: Evidence) -> str:
    """Name the commands that requeue an ended job, or resolve an effect which may have happened."""
    job, standing = evidence.facts.jobs[0], evidence.standing
    assert standing is not None
    actions = {action.name: action for action in evidence.next}
    requeue = actions.get("requeue")
    if requeue is None:
        refusal = objection(standing)
        assert refusal is not None
        return f"No further attempt: {refusal.text}."
    if "mark-done" in actions:
        return _resolutions(job, actions)
    if requeue.confirmation is None:
        again = f"to try it again, run `{requeue.command}`."
        return f"Job {job.id} is dead; {again}" if job.status == "dead" else again.capitalize()
    closed = f"It was left unknown ({(standing.closed_by or 'resolved').replace('_', ' ')})"
    return f"{closed}; to try it again anyway, run `{requeue.command}`."


def _resolutions(job: JobRecord, actions: dict[str, Action]) -> str:
    return (
        f"Job {job.id} is {job.status}; to resolve it, run `{actions['mark-done'].command}` if the effect "
        f"happened, `{actions['requeue'].command}` to try it again, or `{actions['give-up'].command}` to leave it "
        "unknown."
    )


_WAITS: dict[WaitReason, str] = {
    "due_later": "next attempt at {when}",
    "operator": "waits for an operator: {cause}; a worker looks again at {when}",
    "queue_paused": "its queue {name} is paused by {by} {until}{cause}",
    "limit_paused": "its limit key {name} is paused {until}{cause}",
    "breaker": "the breaker of its limit key {name} is open: paused {until}{cause}",
    "trial": "{since}, waiting for the one trial that the open breaker of its limit key {name} allows",
    "group_blocked": "{since}, its group {name} is blocked",
    "group_head": "{since}, waiting behind job {job_id} of its group {name}",
    "no_worker": "{since}, waiting for a worker on queue {name}: none is alive (start one: `effects work`)",
    "no_worker_for_queue": "{since}, waiting for a worker on queue {name}: none of those alive serves it"
    " (start one: `effects work --queue {name}`)",
    "type_not_registered": "{since}, waiting for a worker with its job type {name}, which is not registered here",
    "cap": "{since}, waiting for its limit key {name}: {running} of at most {cap} run",
    "rate": "{since}, waiting for the rate of its limit key {name}: next start at {at}",
    "free_worker": "{since}, waiting for a free worker on queue {name}",
}


def wait_text(wait: Wait) -> str:
    """Say in one clause why an effect waits."""
    at = "" if wait.until is None else moment_text(wait.until)
    return _WAITS[wait.reason].format(
        name=wait.name,
        by=wait.by,
        job_id=wait.job_id,
        running=wait.running,
        cap=wait.cap,
        at=at,
        cause=_cause(wait),
        until=f"until {at}" if at else "until it is resumed",
        when=f"{at}, in {duration(wait.due_seconds)}" if isinstance(wait.until, dt.datetime) else at,
        since=f"due {duration(-wait.due_seconds)} ago",
    )


def _cause(wait: Wait) -> str:
    if wait.reason == "operator":
        return wait.cause or "a worker cannot run it as it is set up"
    return f" ({wait.cause})" if wait.cause else ""
