"""What holds jobs up without costing them an attempt, for `doctor`, `status` and the overview: one list for all three.

Not in it: what a job waits for in the ordinary course (its time, a free worker, a rate, its turn in a group).
"""

from __future__ import annotations

import datetime as dt
import logging
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import Connection, Row
from sqlalchemy.exc import DBAPIError

from effects.errors import EffectsError
from effects.kit.logs import error_places
from effects.kit.moments import moment
from effects.kit.text.wording import jobs_with, moment_text
from effects.model.advice import DoctorFinding
from effects.model.job_type import WAITS_FOR_OPERATOR, JobType
from effects.model.limits import ends_by_itself
from effects.model.registry import Registry
from effects.store.db.records import as_text
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.limits.capacity import with_parents
from effects.store.limits.holds import is_unserved, read_worker_queues
from effects.store.limits.queue_pauses import paused_queues
from effects.store.queue.job_rows import live_by_type, unknown_types

HeldKind: TypeAlias = Literal[
    "queue_paused", "limit_paused", "half_open", "operator", "put_off", "group_blocked", "type_not_registered",
    "queue_unserved", "schedule_paused", "package",
]  # fmt: skip
SHOWN_MAX = 20  # of each kind, those with the most jobs
_log = logging.getLogger("effects.operate")


class HeldUp(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for the same thing.

    Args:
        name: of the queue, limit key, group, job type or schedule; of what a package says, the doctor's check.
        until: when it ends, or is tried next, by itself; None: now, or never.
        reason: the last answer, or why an operator paused it.
        text: all of this in one clause.
        ends: what ends it.
        needs_attention: False for what an app or an operator asked for, and where nothing waits.
        about: of what a package says: the id of what it concerns, if that has a page.
    """

    kind: HeldKind
    name: str
    jobs: int
    until: dt.datetime | None
    reason: str | None
    text: str
    ends: str
    needs_attention: bool = True
    about: str | None = None


def read_held_up(
    store: Store,
    connection: Connection,
    *,
    job_types: Registry,
    queues: Collection[str],
    served: Sequence[Collection[str]],
) -> list[HeldUp]:
    """Every kind that there is, at most 20 of each.

    Args:
        job_types, queues: those that the reader's app names; packages say what needs a person in their own tables.
        served: the queues of each worker that is alive and takes new work.
    """
    live = store.all(connection, live_by_type)
    return [
        *_paused_queues(store, connection),
        *_paused_keys(store, connection),
        *_put_off(store, connection),
        *_blocked_groups(store, connection),
        *_unregistered(live, job_types.names()),
        *_unserved(live, served, queues),
        *_paused_schedules(store, connection),
        *(held for job_type in job_types for held in _of_package(job_type, connection)),
    ]


def _paused_queues(store: Store, connection: Connection) -> Iterator[HeldUp]:
    for pause in paused_queues(store, connection):
        yield HeldUp(
            kind="queue_paused", name=pause.queue, jobs=pause.waiting, until=pause.until if pause.ends else None,
            reason=pause.reason, text=f"{pause}; {jobs_with(pause.waiting, 'waits')}",
            ends=f"run `effects queues resume {shlex.quote(pause.queue)}` when it may run again",
        )  # fmt: skip


def _paused_keys(store: Store, connection: Connection) -> Iterator[HeldUp]:
    for row in store.all(connection, _keys):
        until = moment(row.until) if row.left > 0 and ends_by_itself(row.left) else None
        reason = f": {row.pause_reason}" if row.pause_reason else ""
        waiting, resume = jobs_with(row.waiting, "waits"), f"`effects limits resume {shlex.quote(row.limit_key)}`"
        if row.left > 0:
            state = f"is paused {'until it is resumed' if until is None else f'until {moment_text(until)}'}"
            again = "one job tries it" if row.breaker_state == "open" else "a worker tries them again"
            ends = f"mend that cause; after the pause {again}, and {resume} ends it at once"
        else:
            state = "failed, and one job at a time tries it"
            ends = f"mend that cause; the next response ends it, and so does {resume}"
        yield HeldUp(
            kind="limit_paused" if row.left > 0 else "half_open", name=row.limit_key, jobs=row.waiting, until=until,
            reason=row.pause_reason, text=f"{row.limit_key} {state}{reason}; {waiting}", ends=ends,
            needs_attention=row.waiting > 0,
        )  # fmt: skip


def _put_off(store: Store, connection: Connection) -> Iterator[HeldUp]:
    """What the last attempt put off: for an operator, or for what its answer names."""
    for row in store.all(connection, _answers):
        lacks = row.error_code == WAITS_FOR_OPERATOR
        until = moment(row.next_at) if row.left > 0 else None
        when = f"next try at {moment_text(until)}" if until is not None else "tried again by the next free worker"
        word = "waits for an operator/wait for an operator" if lacks else "is put off/are put off"
        code = f" ({row.error_code})" if row.error_code and not lacks else ""
        why = row.last_error or ("see their attempts" if lacks else "no reason given")
        mend = "set it where the workers run and start them again" if lacks else "mend that cause"
        find = f"`effects jobs list --type {shlex.quote(row.job_type)}`"
        yield HeldUp(
            kind="operator" if lacks else "put_off", name=row.job_type, jobs=row.jobs, until=until,
            reason=row.last_error, text=f"{row.job_type}: {jobs_with(row.jobs, word)}{code}: {why}; {when}",
            ends=f"{mend}; it costs no attempt ({find})", needs_attention=row.error_code is not None,
        )  # fmt: skip


def _blocked_groups(store: Store, connection: Connection) -> Iterator[HeldUp]:
    for row in store.all(connection, _blocked):
        yield HeldUp(
            kind="group_blocked", name=row.group_key, jobs=row.jobs, until=None, reason=None,
            text=f"the group {row.group_key} is blocked; {jobs_with(row.jobs, 'waits')}",
            ends="set `blocked` to false in its row of effects_job_groups",
        )  # fmt: skip


def _unregistered(live: Sequence[Row[Any]], job_types: Collection[str]) -> Iterator[HeldUp]:
    for unknown in unknown_types(live, job_types):
        lost = f", {unknown.lost:,} left running by a lost worker" if unknown.lost else ""
        yield HeldUp(
            kind="type_not_registered", name=unknown.job_type, jobs=unknown.jobs, until=None, reason=None,
            text=f"{unknown.job_type}: {jobs_with(unknown.jobs, 'is live/are live')}{lost}; this job type is not "
            "registered here",
            ends="name the app that knows them (--app, EFFECTS_APP), or let a worker of that app run",
        )  # fmt: skip


def read_unserved(store: Store, connection: Connection, lease_seconds: float, queues: Collection[str]) -> list[HeldUp]:
    """The queues with due jobs that no worker serves, that with the most jobs first.

    Args:
        queues: those that a worker of the reader's app serves by default. Where no worker is alive at all, as between
            two drains by cron, they do not count.
    """
    served = read_worker_queues(store, connection, lease_seconds)
    return list(_unserved(store.all(connection, live_by_type), served, queues))


def _unserved(live: Sequence[Row[Any]], served: Sequence[Collection[str]], queues: Collection[str]) -> Iterator[HeldUp]:
    due: Counter[str] = Counter()
    for row in live:
        due[as_text(row.queue)] += row.due
    for queue, jobs in due.most_common():
        if jobs and is_unserved(queue, served, queues):
            yield HeldUp(
                kind="queue_unserved", name=queue, jobs=jobs, until=None, reason=None,
                text=f"queue {queue}: {jobs_with(jobs, 'due')}, no worker serves it",
                ends=f"run `{serve_command(queue)}`; where the name is misspelt, cancel these jobs",
            )  # fmt: skip


def serve_command(queue: str) -> str:
    """What starts a worker of a queue."""
    return f"effects work --queue {shlex.quote(queue)}"


def _paused_schedules(store: Store, connection: Connection) -> Iterator[HeldUp]:
    for row in store.all(connection, _schedules):
        yield HeldUp(
            kind="schedule_paused", name=row.name, jobs=0, until=None, reason=None,
            text=f"schedule {row.name} is paused{f' by {row.paused_by}' if row.paused_by else ''}",
            ends=f"run `effects schedules resume {shlex.quote(row.name)}` when it may run again",
            needs_attention=False,
        )  # fmt: skip


def _of_package(job_type: JobType[Any], connection: Connection) -> Iterator[HeldUp]:
    """A row that a package cannot read hides nothing else."""
    try:
        findings = list(job_type.examine_rows(connection))
    except (EffectsError, DBAPIError):  # of the database: it concerns all
        raise
    except Exception as error:
        _log.error("examination of %s failed: %s at %s", job_type.name, type(error).__name__, error_places(error))
        findings = [DoctorFinding("packages", "warning", f"{job_type.name}: its rows cannot be read", "see the log")]
    for finding in findings[:SHOWN_MAX]:
        yield HeldUp(
            kind="package", name=finding.check, jobs=0, until=None, reason=None, text=finding.text,
            ends=finding.advice or "", needs_attention=finding.level != "ok", about=finding.about,
        )  # fmt: skip


# -- the statements ----------------------------------------------------------------------------------------


def _holds(sql: Sql, row: str) -> str:
    return f"({row}.paused_until > {sql.now} OR {row}.breaker_state = 'open')"


def _keys(sql: Sql) -> str:
    """Waiting jobs are counted by one grouping, whatever the number of keys; a key's children wait for it too."""
    return f"""
    WITH paused AS (
        SELECT limit_key, paused_until, pause_reason, breaker_state FROM {sql.limits} AS l WHERE {_holds(sql, "l")}
    ), held AS (
        SELECT limit_key FROM paused
        UNION SELECT limit_key FROM {sql.limits} WHERE parent_key {sql.among("paused", "limit_key")}
    ), own(k, n) AS (
        SELECT limit_key, count(*) FROM {sql.jobs}
        WHERE limit_key {sql.among("held", "limit_key")} AND status <> 'running' GROUP BY limit_key
    ), counted(k, n) AS ({with_parents(sql, "own")}
    )
    SELECT paused.limit_key, {sql.epoch("paused_until")} AS until, pause_reason, breaker_state,
        COALESCE({sql.seconds(sql.now, "paused_until")}, 0.0) AS left,
        CAST(COALESCE(counted.n, 0) AS bigint) AS waiting
    FROM paused LEFT JOIN counted ON counted.k = paused.limit_key
    ORDER BY waiting DESC, paused.limit_key LIMIT {SHOWN_MAX}"""


def _answers(sql: Sql) -> str:
    """Of jobs that an attempt put off: not those that wait for their limit key, which is a kind by itself."""
    parent = f"LEFT JOIN {sql.limits} AS parent ON parent.limit_key = l.parent_key"
    waits_for_key = f"{_holds(sql, 'l')} OR {_holds(sql, 'parent')}"
    by_key = sql.exists(f"FROM {sql.limits} AS l {parent} WHERE l.limit_key = j.limit_key AND ({waits_for_key})")
    said = f"error_code IS NOT NULL OR last_error IS NOT NULL OR run_at > {sql.now}"
    return f"""
    SELECT job_type, error_code, last_error, count(*) AS jobs, {sql.epoch("min(run_at)")} AS next_at,
        {sql.seconds(sql.now, "min(run_at)")} AS left
    FROM {sql.jobs} AS j
    WHERE status = 'queued' AND started_at IS NOT NULL AND ({said}) AND NOT {by_key}
    GROUP BY job_type, error_code, last_error ORDER BY jobs DESC, job_type, last_error LIMIT {SHOWN_MAX}"""


def _blocked(sql: Sql) -> str:
    return f"""
    SELECT g.group_key, count(*) AS jobs FROM {sql.job_groups} AS g JOIN {sql.jobs} AS j ON j.group_key = g.group_key
    WHERE g.blocked AND j.status <> 'running' GROUP BY g.group_key ORDER BY jobs DESC, g.group_key LIMIT {SHOWN_MAX}"""


def _schedules(sql: Sql) -> str:
    return f"""
    SELECT name, paused_by FROM {sql.job_definitions} WHERE NOT enabled AND NOT retired
    ORDER BY name LIMIT {SHOWN_MAX}"""
