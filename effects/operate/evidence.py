"""The evidence of an effect as data: its state, its facts, the one reason why it waits, and what may be done next.

`effects why`, `effects jobs show` and their JSON render it. Nothing here reads a payload.
"""

from __future__ import annotations

import datetime as dt
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from sqlalchemy import Connection

from effects.app.effects import Effects
from effects.errors import JobNotFound
from effects.keys.sealing import KeptResult, attempt_row, read_result, shown_text
from effects.model.advice import Action, Explanation, Standing, objection
from effects.model.job_type import WAITS_FOR_OPERATOR, safe_message
from effects.model.settlement import UNCOUNTED
from effects.operate.tables import lookup
from effects.operate.tables.failovers import EvidenceRecord, list_orphans
from effects.store.db.records import ActionRecord, AttemptRecord, EffectStory, JobRecord, WorkerSilence
from effects.store.effects.by_key import Follower, read_followers
from effects.store.effects.requeue import BY_POLICY, EVEN_IF_DONE, EVEN_IF_UNKNOWN, is_open, read_standing
from effects.store.limits.holds import Holds, KeyState, is_unserved, moment_in, read_holds

WaitReason: TypeAlias = Literal[
    "due_later", "operator", "queue_paused", "limit_paused", "breaker", "trial", "group_blocked", "group_head",
    "no_worker", "no_worker_for_queue", "type_not_registered", "cap", "rate", "free_worker",
]  # fmt: skip


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Why an effect waits, by what has to happen before it can start.

    Reasons:
        due_later: it is not due yet; `until` says when.
        operator: the last worker lacked what only an operator can give it, such as a sealing key: `cause`. It is
            looked at again at `until`.
        queue_paused, limit_paused: `name` is paused, `by` whom (of a queue), why (`cause`), and `until` when; None:
            until it is resumed.
        breaker: as limit_paused, by the open breaker of the limit key `name`.
        trial: that pause is over, and the one attempt that the open breaker allows is under way.
        group_blocked, group_head: an operator has blocked the group `name`; or its job `job_id` goes first, which runs
            (`head` is None) or waits for `head` itself.
        no_worker, no_worker_for_queue: no worker is alive and takes new work; or none of them serves the queue `name`,
            nor would one of this process's app.
        type_not_registered: no code of the job type `name` is registered in this process; a worker needs it.
        cap: `running` of at most `cap` jobs of the limit key `name` run.
        rate: the limit key `name` has no token until `until`.
        free_worker: nothing holds it up; it starts when a worker of the queue `name` has a free thread.

    `due_seconds`: until it falls due; negative: for how long it has been due.
    """

    reason: WaitReason
    due_seconds: float
    name: str = ""
    until: dt.datetime | None = None
    by: str | None = None
    cause: str | None = None
    job_id: int | None = None
    head: Wait | None = None
    running: int | None = None
    cap: int | None = None


def why_waits(
    job: JobRecord, holds: Holds, *, registered: bool, named: Collection[str], lacks: str | None = None
) -> Wait:
    """Find the one reason why a job waits.

    Of what ends by a clock (pauses, the due time) it is what ends last. Only without any of these it is another job of
    the group, the workers, or a limit.

    Args:
        registered: whether its job type is registered in this process.
        named: the queues that this process's app names.
        lacks: what the last worker lacked, if that is why the attempt was put off.
    """
    due = holds.due_seconds
    timed = _pauses(holds)
    if due > 0:
        later: WaitReason = "due_later" if lacks is None else "operator"
        timed.append((due, Wait(reason=later, due_seconds=due, until=job.run_at, cause=lacks)))
    if timed:
        return max(timed, key=lambda pair: pair[0])[1]
    return (
        _behind_group(job, holds)
        or _without_worker(job, holds, registered, named)
        or _full(holds)
        or Wait(reason="free_worker", due_seconds=due, name=job.queue)
    )


def _pauses(holds: Holds) -> list[tuple[float, Wait]]:
    """The pauses under way, with the seconds until each ends."""
    pauses = [
        (
            pause.left_seconds,
            Wait(
                reason="queue_paused", due_seconds=holds.due_seconds, name=pause.queue, by=pause.actor,
                until=pause.until if pause.ends else None, cause=pause.reason,
            ),
        )
        for pause in holds.queue_pauses
    ]  # fmt: skip
    return pauses + [(key.paused_seconds, _key_pause(key, holds)) for key in holds.keys if key.paused_seconds > 0]


def _key_pause(key: KeyState, holds: Holds) -> Wait:
    return Wait(
        reason="breaker" if key.breaker_open else "limit_paused", due_seconds=holds.due_seconds, name=key.limit_key,
        until=key.paused_until, cause=key.pause_reason,
    )  # fmt: skip


def _behind_group(job: JobRecord, holds: Holds) -> Wait | None:
    group = holds.group
    if group is None:
        return None
    if group.blocked:
        return Wait(reason="group_blocked", due_seconds=holds.due_seconds, name=group.group_key)
    if group.head_id == job.id:
        return None
    return Wait(reason="group_head", due_seconds=holds.due_seconds, name=group.group_key, job_id=group.head_id)


def _without_worker(job: JobRecord, holds: Holds, registered: bool, named: Collection[str]) -> Wait | None:
    due = holds.due_seconds
    if not registered:
        return Wait(reason="type_not_registered", due_seconds=due, name=job.job_type)
    if is_unserved(job.queue, holds.worker_queues, named):
        return Wait(reason="no_worker_for_queue", due_seconds=due, name=job.queue)
    if not holds.worker_queues:
        return Wait(reason="no_worker", due_seconds=due, name=job.queue)
    return None


def _full(holds: Holds) -> Wait | None:
    due = holds.due_seconds
    for key in holds.keys:
        if key.cap is not None and key.running >= key.cap:
            reason: WaitReason = "trial" if key.breaker_open else "cap"
            return Wait(reason=reason, due_seconds=due, name=key.limit_key, running=key.running, cap=key.cap)
    without_token = max(holds.keys, key=lambda key: key.token_seconds, default=None)
    if without_token is not None and without_token.token_seconds > 0:
        return Wait(reason="rate", due_seconds=due, name=without_token.limit_key)
    return None


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
        followers: what followed from its jobs, such as the notices of a report and their mail.
    """

    key: str | None
    job_type: str
    state: EvidenceState
    facts: Facts
    waits: Wait | None
    silence: WorkerSilence | None
    next: list[Action]
    standing: Standing | None
    followers: list[Follower]


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
        next=_of_wait(waits) + (next_actions(standing, waits, unresolved=unresolved) if standing is not None else []),
        standing=standing,
        followers=read_followers(
            app.store, connection, [job.id for job in story.jobs],
            lambda name: lookup.newest_jobs(app.store, connection, app.ledgers, name),
        ),
    )  # fmt: skip


def _with_texts(app: Effects, story: EffectStory) -> EffectStory:
    """With the kept texts of exceptions opened, and with results, but for those that are sealed."""
    attempts = []
    for attempt in story.attempts:
        row = attempt_row(attempt.job_id, attempt.lease_token)
        kept = KeptResult() if attempt.result is None else read_result(None, attempt.result, row)
        text = shown_text(app.keys, attempt.error_text, row)
        attempts.append(
            msgspec.structs.replace(attempt, error_text=text, result=kept.value, result_missing=kept.missing)
        )
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
        own_key = story.jobs[0].key if story.jobs else story.key  # a ledger of many jobs has its own name
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
    wait = why_waits(job, holds, registered=job.job_type in app.job_types, named=app.queues, lacks=lacks)
    if wait.reason == "group_head" and wait.job_id is not None:
        return msgspec.structs.replace(wait, head=_read_head_wait(app, connection, wait.job_id))
    if wait.reason != "rate":
        return wait
    seconds = max(key.token_seconds for key in holds.keys)
    return msgspec.structs.replace(wait, until=moment_in(app.store, connection, seconds))


def _read_head_wait(app: Effects, connection: Connection, head_id: int) -> Wait | None:
    head = lookup.read_job(app.store, connection, app.ledgers, head_id)
    return _read_wait(app, connection, head.jobs[0], head.attempts)


# -- what may be done --------------------------------------------------------------------------------------


_GIVE_UP = "effects resolve {} --as give-up"


def next_actions(standing: Standing, waits: Wait | None, *, unresolved: bool) -> list[Action]:
    """What may be done about a job, by the functions that guard each action. Pure.

    Args:
        waits: for what, if it does: running it now changes nothing for one that is due.
        unresolved: it is a dead letter or an unknown outcome, and not resolved.
    """
    job_id = standing.job_id
    if not standing.ended:
        cancel = Action(name="cancel", command=f"effects cancel {job_id}")
        return [*([_run_now("run-now", job_id)] if waits is not None and waits.due_seconds > 0 else []), cancel]
    resolutions = _resolutions(standing) if unresolved and standing.effect == "unknown" else []
    requeue = _requeue(standing)
    instead = list(standing.instead.actions) if standing.instead is not None else []
    ignore = Action(name="ignore", command=f"{_GIVE_UP.format(job_id)} --reason REASON", needs_reason=True)
    return [*instead, *([requeue] if requeue is not None else []), *resolutions, *([ignore] if unresolved else [])]


def _requeue(standing: Standing) -> Action | None:
    command = f"effects retry {standing.job_id}"
    if objection(standing) is None:
        return Action(name="requeue", command=command)
    if objection(standing, confirm_unknown=True) is None:
        return Action(name="requeue", command=f"{command} --even-if-done", confirmation="even_if_unknown")
    if objection(standing, confirm_done=True) is None:
        return Action(name="requeue", command=f"{command} --even-if-done", confirmation="even_if_done")
    return None


def _resolutions(standing: Standing) -> list[Action]:
    done = Action(name="mark-done", command=f"effects resolve {standing.job_id} --as done")
    return [done, Action(name="give-up", command=_GIVE_UP.format(standing.job_id))]


def _run_now(name: str, job_id: int) -> Action:
    return Action(name=name, command=f"effects retry {job_id}")


def _of_wait(wait: Wait | None) -> list[Action]:
    """How to end the pause that it waits for, or that of the head of its group; or its head's time."""
    if wait is None or (wait.until is None and wait.reason == "breaker"):
        return []
    if wait.head is not None and wait.job_id is not None:
        is_later = wait.head.due_seconds > 0
        return [*_of_wait(wait.head), *([_run_now("run-head-now", wait.job_id)] if is_later else [])]
    if wait.reason == "queue_paused":
        return [Action(name="resume-queue", command=f"effects queues resume {shlex.quote(wait.name)}")]
    if wait.reason in ("limit_paused", "breaker", "trial"):
        return [Action(name="resume-limit", command=f"effects limits resume {shlex.quote(wait.name)}")]
    return []
