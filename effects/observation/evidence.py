"""The evidence of an effect as data: its state, its facts, the one reason why it waits, and what may be done next.

`effects why`, `effects jobs show` and their JSON render it. Nothing here reads a payload.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.app import Effects
from effects.error_text import attempt_row, shown_text
from effects.errors import JobNotFound
from effects.model.advice import Action, Explanation
from effects.model.job_type import WAITS_FOR_OPERATOR, safe_message
from effects.model.settlement import UNCOUNTED
from effects.model.standing import Standing, objection
from effects.observation.waits import Wait, why_waits
from effects.store.db.records import ActionRecord, AttemptRecord, EffectStory, JobRecord, WorkerSilence
from effects.store.limits.holds import moment_in, read_holds
from effects.store.operator import lookup
from effects.store.operator.requeue import BY_POLICY, EVEN_IF_DONE, EVEN_IF_UNKNOWN, read_standing
from effects.store.operator.resolve import is_open
from effects.store.recovery.failover_records import EvidenceRecord, list_orphans

EvidenceState: TypeAlias = Literal["waiting", "running", "done", "refused", "unknown", "abandoned"]

_JOB_ID = re.compile(r"[1-9][0-9]{0,17}")
_SETTLED: dict[str | None, EvidenceState] = {
    "done": "done", "refused": "refused", "unknown": "unknown", "abandoned": "abandoned",
}  # fmt: skip


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is recorded about an effect.

    Args:
        ledger, ledger_state: the table that keeps its state, and that state; None for a job without a key.
        about: what else one must know of it, by its ledger, such as the URL of an endpoint.
        jobs: newest first; the effect's newest job and those that it was requeued from.
        attempts, actions: in order of time.
        tries: how many of the attempts were carried out.
        overrides: the actions that let a repeat pass which the guard refuses by itself.
        explanation: what the last answer means, by the package of the job type; None where it has no words for it.
    """

    ledger: str | None
    ledger_state: str | None
    about: Mapping[str, str]
    jobs: list[JobRecord]
    attempts: list[AttemptRecord]
    actions: list[ActionRecord]
    tries: int
    overrides: list[ActionRecord]
    explanation: Explanation | None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of one effect.

    Args:
        key: the idempotency key, or the name in the package's ledger; None for a job without a key.
        waits: None unless its newest job is live and does not run.
        silence: of the worker that runs its newest job; None where that one sends its heartbeats, or none runs it.
        next: what a person may do now. Each action is accepted as it stands, and any other is refused.
        standing: of its newest job; None where the history of its jobs has been deleted.
    """

    key: str | None
    job_type: str
    state: EvidenceState
    facts: Facts
    waits: Wait | None
    silence: WorkerSilence | None
    next: list[Action]
    standing: Standing | None


def find_orphans(app: Effects, key: str) -> list[EvidenceRecord]:
    """Effects with this key that arrived, or may have, and whose jobs a failover lost."""
    with app.store.read() as connection:
        return list_orphans(app.store, connection, key)


def find_evidence(app: Effects, key: str, *, may_be_none: bool = False) -> list[Evidence]:
    """The effects that `key` may mean, over the core's ledger and those of every package; else the job of this id.

    Args:
        may_be_none: an unknown key is no error.

    Raises:
        JobNotFound: no ledger knows the key, and it is no job's id.
        StoreUnavailable: the database is unavailable.
    """
    with app.store.snapshot() as connection:
        try:
            stories = lookup.find_effects(app.store, connection, app.ledgers, key)
        except JobNotFound:
            if not _JOB_ID.fullmatch(key) or not lookup.chain_ids(app.store, connection, int(key)):
                if may_be_none:
                    return []
                raise
            stories = [lookup.read_job(app.store, connection, app.ledgers, int(key), earlier=True)]
        return [_evidence(app, connection, story) for story in stories]


def job_evidence(app: Effects, job_id: int, *, earlier: bool = False) -> Evidence:
    """The effect as one job of it has it.

    Args:
        earlier: with the attempts and actions of the jobs that it was requeued from, too.

    Raises:
        JobNotFound: no job has this id.
        StoreUnavailable: the database is unavailable.
    """
    with app.store.snapshot() as connection:
        story = lookup.read_job(app.store, connection, app.ledgers, job_id, earlier=earlier)
        return _evidence(app, connection, story)


def _evidence(app: Effects, connection: Connection, story: EffectStory) -> Evidence:
    story = _with_texts(app, story)
    newest = story.jobs[0] if story.jobs else None
    standing = read_standing(app.store, connection, app.job_types, newest.id) if newest is not None else None
    waits = _read_wait(app, connection, newest, story.attempts) if newest is not None else None
    unresolved = newest is not None and is_open(app.store, connection, app.ledgers, newest.id)
    return Evidence(
        key=story.key,
        job_type=story.job_type,
        state=_state(story.state, standing),
        facts=_facts(app, story),
        waits=waits,
        silence=lookup.read_silence(app.store, connection, newest.id) if newest is not None else None,
        next=_resumes(waits) + (next_actions(standing, unresolved=unresolved) if standing is not None else []),
        standing=standing,
    )


def _with_texts(app: Effects, story: EffectStory) -> EffectStory:
    """With the kept texts of exceptions opened."""
    attempts = [
        msgspec.structs.replace(
            attempt,
            error_text=shown_text(app.keys, attempt.error_text, attempt_row(attempt.job_id, attempt.lease_token)),
        )
        for attempt in story.attempts
    ]
    return msgspec.structs.replace(story, attempts=attempts)


def _facts(app: Effects, story: EffectStory) -> Facts:
    return Facts(
        ledger=story.ledger,
        ledger_state=story.state,
        about=story.about,
        jobs=story.jobs,
        attempts=story.attempts,
        actions=story.actions,
        tries=sum(attempt.outcome not in UNCOUNTED for attempt in story.attempts),
        overrides=[action for action in story.actions if action.action in (EVEN_IF_DONE, EVEN_IF_UNKNOWN, BY_POLICY)],
        explanation=_explanation(app, story),
    )


def _explanation(app: Effects, story: EffectStory) -> Explanation | None:
    if not story.attempts or story.job_type not in app.job_types:
        return None
    last = story.attempts[-1]
    detail = last.detail if isinstance(last.detail, dict) else {}
    try:
        own_key = story.jobs[0].key if story.jobs else story.key  # a ledger of many jobs has a name of its own
        return app.job_types.get(story.job_type).explain(own_key, last.error_code, detail)
    except BaseException as error:  # of a package, on a row that anyone may have written
        if isinstance(error, KeyboardInterrupt):
            raise
        return Explanation(meaning="it cannot be explained", follows=safe_message(error))


def _state(ledger_state: str | None, standing: Standing | None) -> EvidenceState:
    """Of an effect without a ledger row, by its job and what is known of the jobs before it."""
    if ledger_state in _SETTLED:
        return _SETTLED[ledger_state]
    if standing is None or not standing.ended:
        return "running" if standing is not None and standing.status == "running" else "waiting"
    if standing.effect in ("done", "unknown"):
        return "done" if standing.effect == "done" else "unknown"
    return "refused" if standing.status == "dead" else "abandoned"


def _read_wait(app: Effects, connection: Connection, job: JobRecord, attempts: Sequence[AttemptRecord]) -> Wait | None:
    holds = read_holds(app.store, connection, job.id, app.settings.lease_seconds)
    if holds is None:
        return None
    last = next((attempt for attempt in reversed(attempts) if attempt.job_id == job.id), None)
    lacks = last.message if last is not None and last.error_code == WAITS_FOR_OPERATOR else None
    wait = why_waits(job, holds, registered=job.job_type in app.job_types, lacks=lacks)
    if wait.reason != "rate":
        return wait
    seconds = max(key.token_seconds for key in holds.keys)
    return msgspec.structs.replace(wait, until=moment_in(app.store, connection, seconds))


# -- what may be done --------------------------------------------------------------------------------------


def next_actions(standing: Standing, *, unresolved: bool) -> list[Action]:
    """What may be done about a job, by the functions that guard each action. Pure.

    Args:
        unresolved: it is a dead letter or an unknown outcome, and not resolved.
    """
    job_id = standing.job_id
    if not standing.ended:
        cancel = Action(name="cancel", command=f"effects jobs cancel {job_id}")
        waiting = standing.status != "running"
        return [Action(name="run-now", command=f"effects jobs run-now {job_id}"), cancel] if waiting else [cancel]
    resolutions = _resolutions(standing) if unresolved and standing.effect == "unknown" else []
    requeue = _requeue(standing, unresolved)
    instead = list(standing.instead.actions) if standing.instead is not None else []
    ignore = Action(name="ignore", command=f"effects dead ignore {job_id} --reason REASON", needs_reason=True)
    return [*instead, *([requeue] if requeue is not None else []), *resolutions, *([ignore] if unresolved else [])]


def _requeue(standing: Standing, unresolved: bool) -> Action | None:
    command = f"effects jobs requeue {standing.job_id}"
    if objection(standing) is None:
        return Action(name="requeue", command=command)
    if objection(standing, confirm_unknown=True) is None:
        resolve = f"effects dead resolve {standing.job_id} --as requeue"
        command = resolve if unresolved else f"{command} --even-if-unknown"
        return Action(name="requeue", command=command, confirmation="even_if_unknown")
    if objection(standing, confirm_done=True) is None:
        return Action(name="requeue", command=f"{command} --even-if-done", confirmation="even_if_done")
    return None


def _resolutions(standing: Standing) -> list[Action]:
    resolve = f"effects dead resolve {standing.job_id} --as"
    return [Action(name=name, command=f"{resolve} {name}") for name in ("mark-done", "give-up")]


def _resumes(wait: Wait | None) -> list[Action]:
    """How to end the pause that it waits for."""
    if wait is None or (wait.until is None and wait.reason == "breaker"):
        return []
    if wait.reason == "queue_paused":
        return [Action(name="resume-queue", command=f"effects queues resume {shlex.quote(wait.name)}")]
    if wait.reason in ("limit_paused", "breaker", "trial"):
        return [Action(name="resume-limit", command=f"effects limits resume {shlex.quote(wait.name)}")]
    return []
