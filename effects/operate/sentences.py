"""Evidence in words: a sentence about an effect, why it waits, and what may be done. Evidence in, text out.

`effects why` prints it, and the dashboard's pages show it.
"""

from __future__ import annotations

from collections.abc import Sequence

from effects.kit.text.wording import duration, moment_text, shown_status
from effects.model.advice import Action, objection
from effects.model.job import LIVE, POISON, POISON_LOSSES
from effects.operate.evidence import Evidence, Wait, WaitReason
from effects.operate.tables.failovers import EvidenceRecord
from effects.operate.tables.held_up import serve_command
from effects.store.db.records import JobRecord
from effects.store.effects.by_key import Follower

DONE = "Nothing left to do."


def sentence(evidence: Evidence) -> str:
    """Describe the state of an effect: since when, after how many attempts, the last answer and the next step."""
    name = evidence.key if evidence.key is not None else f"job {evidence.facts.jobs[0].id}"
    who = f"{name} ({evidence.job_type})" if evidence.job_type else name
    return f"{who} {_state(evidence)}{_late(evidence)}"


def _late(evidence: Evidence) -> str:
    """Say what is known by now of an attempt that was lost, or is recorded as unknown."""
    late = next((attempt for attempt in reversed(evidence.facts.attempts) if attempt.late_outcome), None)
    if late is None or late.late_at is None:
        return ""
    of_job = f" of job {late.job_id}" if len(evidence.facts.jobs) > 1 else ""
    was, at = "lost" if late.outcome == "lost" else "unknown", moment_text(late.late_at)
    return f" Attempt {late.attempt}{of_job} was {was}; its worker reported later, at {at}: {late.late}."


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
            return f"was done{_at(newest)} after {tried}. {_what_followed(evidence.followers)}"
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
            return f"is {newest.status} ({tried}). {following}"


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
        return f"{wait_text(evidence.waits)}{_losses(evidence)}"
    if job.status == "running":
        since = f" since {moment_text(job.started_at)}" if job.started_at else ""
        where = f"in worker {job.worker}{_silence(evidence)}.{_losses(evidence)}"
        return f"Attempt {job.attempts} has been running{since} {where}"
    if standing is None or standing.effect == "done":
        return _what_followed(evidence.followers)
    if standing.successor is not None:
        newer = standing.successor[0]
        return f"Job {job.id} was retried as job {newer}: see `effects jobs show {newer}`."
    if standing.instead is not None:
        return f"No further attempt by itself: {standing.instead.text}."
    return _decision(evidence)


def _what_followed(followers: Sequence[Follower]) -> str:
    """Say what failed of that which a done job led to, else what is under way; `DONE` where neither is."""
    failed = [job for job in followers if job.is_unresolved]
    live = [job for job in followers if job.status in LIVE]
    for job in (*failed, *live)[:1]:
        more = f" and {len(failed or live) - 1} more" if len(failed or live) > 1 else ""
        why = f": {job.error or job.error_code}" if failed else ""
        state = "ended dead or unknown" if failed else f"is {shown_status(job.status)}"
        return f"What followed, job {job.job_id} ({job.job_type}){more}, {state}{why}. See `effects why {job.job_id}`."
    return DONE


def _losses(evidence: Evidence) -> str:
    """Whose workers never came back: it may be what ends them."""
    job = evidence.facts.jobs[0]
    count = sum(attempt.job_id == job.id and attempt.outcome == "lost" for attempt in evidence.facts.attempts)
    if not count:
        return ""
    workers = "1 worker was" if count == 1 else f"{count} workers were"
    return (
        f" {workers} lost while running it: it runs in quarantine, one job at a time; after {POISON_LOSSES} it is "
        f"dead. {_where_lost(evidence)}"
    )


def _where_lost(evidence: Evidence) -> str:
    """Where the reason stands that no row has: a worker that was killed has written none."""
    workers = [attempt.worker for attempt in evidence.facts.attempts if attempt.outcome == "lost" and attempt.worker]
    names = ", ".join(dict.fromkeys(reversed(workers)))
    return (
        f"Look at how their processes ended ({names}): the exit code that the service manager has (137, or SIGKILL, is "
        "most often the kernel, out of memory: `journalctl -k`; 139 a crash in C code), and the last lines of their "
        "logs."
    )


def _silence(evidence: Evidence) -> str:
    silence = evidence.silence
    if silence is None:
        return ""
    return (
        f", which was last heard of {duration(silence.seconds)} ago: unless it is heard of again, another worker takes "
        f"the job back at about {moment_text(silence.taken_back_at)}"
    )


def _decision(evidence: Evidence) -> str:
    """Name the commands that retry an ended job, or resolve an effect which may have happened."""
    job, standing = evidence.facts.jobs[0], evidence.standing
    assert standing is not None
    actions = {action.name: action for action in evidence.next}
    requeue = actions.get("requeue")
    if requeue is None:
        refusal = objection(standing)
        assert refusal is not None
        return f"No further attempt: {refusal.text}."
    poison = f" {_where_lost(evidence)}" if job.error_code == POISON else ""
    if "mark-done" in actions:
        return f"{_resolutions(job, actions)}{poison}"
    if requeue.confirmation is None:
        again = f"to retry it, run `{requeue.command}`."
        return f"Job {job.id} is dead; {again}{poison}" if job.status == "dead" else again.capitalize()
    closed = f"It was left unknown ({(standing.closed_by or 'resolved').replace('_', ' ')})"
    return f"{closed}; to retry it anyway, run `{requeue.command}`."


def _resolutions(job: JobRecord, actions: dict[str, Action]) -> str:
    return (
        f"Job {job.id} is {job.status}; to resolve it, run `{actions['mark-done'].command}` if the effect "
        f"happened, `{actions['requeue'].command}` to retry it, or `{actions['give-up'].command}` to leave it "
        "unknown."
    )


_WAITS: dict[WaitReason, str] = {
    "due_later": "Its next attempt is due at {when}.",
    "operator": "It waits for an operator: {cause}; a worker looks again at {when}.",
    "queue_paused": "Its queue {name} is paused by {by} {until}{cause}.",
    "limit_paused": "Its limit key {name} is paused {until}{cause}.",
    "breaker": "The breaker of its limit key {name} is open, and pauses it {until}{cause}.",
    "trial": "{since} waits for the one trial that the open breaker of its limit key {name} allows.",
    "group_blocked": "{since} waits because its group {name} is blocked: set `blocked` to false in its row of "
    "effects_job_groups.",
    "group_head": "{since} waits behind job {job_id} of its group {name}{head}.",
    "no_worker": "{since} waits for a worker on queue {name}: none is alive (start one: `effects work`).",
    "no_worker_for_queue": "{since} waits for a worker on queue {name}: no worker serves it (start one: `{serve}`).",
    "type_not_registered": "{since} waits for a worker with its job type {name}, which is not registered here: "
    "name the app that has it (--app).",
    "cap": "{since} waits for its limit key {name}: {running} of at most {cap} are running.",
    "rate": "{since} waits for the rate of its limit key {name}: the next start is at {at}.",
    "free_worker": "{since} waits for a free worker on queue {name}.",
}


def wait_text(wait: Wait) -> str:
    """Say in a sentence why an effect waits."""
    at = "" if wait.until is None else moment_text(wait.until)
    return _WAITS[wait.reason].format(
        name=wait.name,
        serve=serve_command(wait.name),
        by=wait.by,
        job_id=wait.job_id,
        head=", which is running" if wait.head is None else f". Of job {wait.job_id}: {_clause(wait.head)}",
        running=wait.running,
        cap=wait.cap,
        at=at,
        cause=_cause(wait),
        until=f"until {at}" if at else "until it is resumed",
        when=f"{at}, in {duration(wait.due_seconds)}" if wait.until is not None else at,
        since=f"It has been due for {duration(-wait.due_seconds)} and",
    )


def _clause(wait: Wait) -> str:
    text = wait_text(wait).removesuffix(".")
    return f"{text[:1].lower()}{text[1:]}"


def _cause(wait: Wait) -> str:
    if wait.reason == "operator":
        return wait.cause or "a worker cannot run it as it is set up"
    return f" ({wait.cause})" if wait.cause else ""
