"""What alerts look at, and their episodes: one row for each alert and subject."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

import msgspec
from sqlalchemy import Connection

from effects.kit.text.wording import cause_of
from effects.model.alerts import DeadLetters, OldDueJobs, Rule, SameError, UnresolvedFailovers
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.workers import needs_person

SUBJECTS_MAX = 100
CAUSES_MAX = 3


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """A subject that a rule holds for, or held for last."""

    alert: str
    subject: str
    number: int
    open: bool
    value: float
    opened_at: dt.datetime


def measure(store: Store, connection: Connection, rule: Rule) -> dict[str, float]:
    """Subject → value, where the rule holds; at most 100, the greatest first. The subject may be empty."""
    match rule:
        case DeadLetters():
            rows = store.all(
                connection, _dead, job_type=rule.job_type, within=rule.within_seconds, more_than=rule.more_than
            )
        case SameError():
            rows = store.all(connection, _errors, job_type=rule.job_type, within=rule.within_seconds, times=rule.times)
        case OldDueJobs():
            rows = store.all(connection, _due, queue=rule.queue, older=rule.older_than_seconds)
        case UnresolvedFailovers():
            rows = store.all(connection, _failovers, after=rule.after_seconds)
    return {row.subject: float(row.value) for row in rows}


def dead_causes(store: Store, connection: Connection, rule: DeadLetters) -> list[str]:
    """Type and error code of those that a rule counts, with their number; at most three, the most frequent first."""
    rows = store.all(connection, _dead_causes, job_type=rule.job_type, within=rule.within_seconds)
    return [cause_of(row.job_type, row.error_code, row.jobs) for row in rows]


def begin_episodes(
    store: Store, connection: Connection, alert: str, values: Mapping[str, float]
) -> Sequence[tuple[str, int]]:
    """Start an episode for each subject without a current one, and end those of all other subjects.

    With as many subjects as are measured at most, those beyond may still hold: ended, each would begin again, with
    another job, whenever it is among the greatest.

    Returns:
        Subject and number of the started episodes. Of two concurrent checks only one gets them.
    """
    if len(values) < SUBJECTS_MAX:
        store.write(connection, _end, alert=alert, subjects=as_json(sorted(values)))
    rows = [{"subject": subject, "value": value} for subject, value in sorted(values.items())]
    return [(row.subject, row.number) for row in store.all(connection, _begin, alert=alert, rows=as_json(rows))]


def episodes(store: Store) -> list[Episode]:
    """The newest episode of each alert and subject."""
    with store.read() as connection:
        return [record(Episode, row) for row in store.all(connection, _episodes)]


# -- the statements --------------------------------------------------------------------------------------


def _is(column: str, name: str) -> str:
    return f"(CAST(:{name} AS text) IS NULL OR {column} = CAST(:{name} AS text))"


def _ago(sql: Sql, name: str) -> str:
    return sql.after(f"-CAST(:{name} AS double precision)")


def _within(sql: Sql) -> str:
    """Not what a clock that was ahead has ended: it would keep an episode open for as long."""
    return f"finished_at >= {_ago(sql, 'within')} AND finished_at <= {sql.after('60')}"


def _dead(sql: Sql) -> str:
    return f"""
    SELECT COALESCE(CAST(:job_type AS text), '') AS subject, count(*) AS value FROM {sql.job_history}
    WHERE status = 'dead' AND {_within(sql)} AND {_is("job_type", "job_type")}
    HAVING count(*) > :more_than"""


def _dead_causes(sql: Sql) -> str:
    return f"""
    SELECT job_type, error_code, count(*) AS jobs FROM {sql.job_history}
    WHERE status = 'dead' AND {_within(sql)} AND {_is("job_type", "job_type")}
    GROUP BY job_type, error_code ORDER BY jobs DESC, job_type, error_code LIMIT {CAUSES_MAX}"""


def _errors(sql: Sql) -> str:
    same_type = _is("job_type", "job_type")
    return f"""
    SELECT job_type || ': ' || error_code AS subject, count(*) AS value FROM (
        SELECT job_type, error_code FROM {sql.jobs} WHERE status = 'failed' AND {same_type}
        UNION ALL
        SELECT job_type, error_code FROM {sql.job_history}
        WHERE status = 'dead' AND {_within(sql)} AND {same_type}
    ) AS troubled WHERE error_code IS NOT NULL
    GROUP BY job_type, error_code HAVING count(*) >= :times ORDER BY value DESC, subject LIMIT {SUBJECTS_MAX}"""


def _due(sql: Sql) -> str:
    return f"""
    SELECT queue AS subject, {sql.seconds("min(run_at)")} AS value FROM {sql.jobs}
    WHERE status <> 'running' AND run_at <= {_ago(sql, "older")} AND {_is("queue", "queue")}
    GROUP BY queue ORDER BY value DESC, subject LIMIT {SUBJECTS_MAX}"""


def _failovers(sql: Sql) -> str:
    return f"""
    SELECT CAST(id AS text) AS subject, orphans AS value FROM {sql.failovers}
    WHERE {needs_person()} AND noticed_at <= {_ago(sql, "after")} ORDER BY id DESC LIMIT {SUBJECTS_MAX}"""


def _end(sql: Sql) -> str:
    return f"""
    UPDATE {sql.alert_episodes} SET is_open = false, updated_at = {sql.now}
    WHERE alert = :alert AND is_open AND NOT (subject {sql.any_of("subjects")})"""


def _begin(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.alert_episodes} AS e (alert, subject, number, is_open, value, opened_at, updated_at)
    SELECT :alert, r.subject, 1, true, r.value, {sql.now}, {sql.now}
    FROM {sql.rows("rows", {"subject": "text", "value": "num"})} AS r WHERE true ORDER BY r.subject
    ON CONFLICT (alert, subject) DO UPDATE SET number = e.number + 1, is_open = true, value = excluded.value,
        opened_at = excluded.opened_at, updated_at = excluded.updated_at
    WHERE NOT e.is_open RETURNING subject, number"""


def _episodes(sql: Sql) -> str:
    return f"""
    SELECT alert, subject, number, is_open AS open, value, {sql.epoch("opened_at")} AS opened_at
    FROM {sql.alert_episodes} ORDER BY alert, subject"""
