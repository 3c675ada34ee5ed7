"""An effect's story in a sentence, and its attempts as the evidence. Pure: records in, words out."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from effects.cli.output import Table, duration, moment
from effects.settlement import UNCOUNTED
from effects.store.records import ActionRecord, AttemptRecord, EffectStory, JobRecord


def sentence(story: EffectStory, now: dt.datetime) -> str:
    """Done, refused, unknown or waiting: when, after how many attempts, the last answer, and what comes next."""
    who = f"{story.key} ({story.job_type})" if story.job_type else story.key
    return f"{who} {_state(story, now)}"


def _state(story: EffectStory, now: dt.datetime) -> str:
    if not story.jobs:
        return f"is {story.state}; the history of its job is gone."
    newest = story.jobs[0]
    tried = f"{_tries(story)}{_answer(story)}"
    match story.state:
        case "done":
            text = f"was done{_at(newest)}, after {tried}. Nothing more happens."
        case "refused":
            text = f"was refused{_at(newest)}, after {tried}. {_next(story, now)}"
        case "unknown":
            text = f"is unknown, it may or may not have happened, after {tried}. {_next(story, now)}"
        case "abandoned":
            reason = newest.last_error or newest.error_code or newest.status
            text = f"was given up{_at(newest)} ({reason}), after {tried}. {_next(story, now)}"
        case _ if newest.status == "running":
            text = f"is being carried out, after {tried} before. {_next(story, now)}"
        case _:
            text = f"is waiting, after {tried}. {_next(story, now)}"
    return text


def _at(job: JobRecord) -> str:
    return f" at {moment(job.finished_at)}" if job.finished_at else ""


def _tries(story: EffectStory) -> str:
    made = [one for one in story.attempts if one.outcome not in UNCOUNTED]
    tries = f"{len(made) or 'no'} attempt{'' if len(made) == 1 else 's'}"
    return tries if len(story.jobs) == 1 else f"{tries} in {len(story.jobs)} jobs"


def _answer(story: EffectStory) -> str:
    if not story.attempts:
        return ""
    answer = answer_of(story.attempts[-1])
    return f" (the last answer: {answer})" if answer else ""


def _next(story: EffectStory, now: dt.datetime) -> str:
    """What happens next, by the newest job."""
    job = story.jobs[0]
    if job.status == "dead":
        return f"Job {job.id} is dead: nothing more happens until somebody runs `effects jobs requeue {job.id}`."
    if job.finished_at is not None:
        return f"Nothing more happens; `effects jobs requeue {job.id}` would try again."
    if job.status == "running":
        since = f" since {moment(job.started_at)}" if job.started_at else ""
        return f"Attempt {job.attempts} runs{since} in worker {job.worker}."
    if story.paused_until is not None:
        reason = f" ({story.pause_reason})" if story.pause_reason else ""
        return f"Its limit {job.limit_key} is paused until {moment(story.paused_until)}{reason}."
    if job.run_at > now:
        wait = duration((job.run_at - now).total_seconds())
        return f"The next attempt is due at {moment(job.run_at)}, in {wait}."
    waited = duration((now - job.run_at).total_seconds())
    return f"The next attempt has been due for {waited}: it starts when a worker of the lane {job.queue} is free."


def answer_of(attempt: AttemptRecord) -> str:
    """What the peer said, or what went wrong, in a few words."""
    status = (attempt.detail or {}).get("status")
    said = [f"HTTP {status}"] if isinstance(status, int) else []
    if attempt.message:
        said.append(attempt.message)
    elif attempt.error_code:
        said.append(attempt.error_code)
    return ", ".join(said)


def attempts_table(attempts: Sequence[AttemptRecord]) -> Table:
    columns = ("job", "attempt", "started", "took", "outcome", "verdict", "code", "answer", "worker")
    rows = [
        (
            one.job_id,
            one.attempt,
            one.started_at,
            f"{one.seconds:.3f} s",
            one.outcome,
            one.verdict,
            one.error_code,
            answer_of(one),
            one.worker,
        )
        for one in attempts
    ]
    return Table(columns, rows, title="attempts", empty="no attempts yet")


def actions_table(actions: Sequence[ActionRecord]) -> Table:
    rows = [(one.created_at, one.job_id, one.action, one.actor, one.reason) for one in actions]
    return Table(("when", "job", "action", "by", "reason"), rows, title="actions")
