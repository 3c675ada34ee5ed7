"""Deletion of messages' contents, and of rows past their retention, a page at a time.

A message's own row stays, with the hash of its bytes. Each other table's oldest rows are read by an index.
"""

from __future__ import annotations

from effects.extend.actions import is_resolved
from effects.extend.rows import Page, old_rows
from effects.extend.sql import Sql, Store, as_json
from effects_email.tables.schema import KEPT

PAGE = 500


def forget_content(store: Store, cursor: int | None, *, keep_seconds: float, dry_run: bool) -> Page:
    """Delete one page, by job id, of contents of messages that ended so long ago and are not unresolved."""
    with store.read() as connection:
        page = store.all(connection, _page, cursor=cursor or 0, keep=keep_seconds)
    keys = [row.key for row in page if row.eligible]
    taken = len(keys)
    if keys and not dry_run:
        with store.begin() as connection:
            taken = store.write(connection, _forget, keys=as_json(keys), keep=keep_seconds)
            store.write(connection, _forget_files, keys=as_json(keys))
    ends = len(page) < PAGE or not any(row.old for row in page)
    return Page(taken, None if ends else page[-1].job_id)


def _may_go(sql: Sql) -> str:
    """Condition: ended, aged, and resolved, or neither dead nor unknown."""
    ended = f"FROM {sql.job_history} AS h WHERE h.id = l.job_id"
    return f"""
    l.state NOT IN ('intended', 'released') AND {sql.seconds("l.updated_at")} >= {sql.number("keep")}
    AND NOT {sql.exists(f"FROM {sql.jobs} AS j WHERE j.id = l.job_id")}
    AND NOT {sql.exists(f"{ended} AND (h.status = 'dead' OR l.state = 'unknown') AND NOT {is_resolved(sql)}")}"""


def _page(sql: Sql) -> str:
    """The walk goes on behind times to come as well: a clock that was ahead tells nothing of the rows behind them."""
    columns, age = "key, job_id, state, created_at, updated_at", sql.seconds("l.created_at")
    return f"""
    SELECT l.key, l.job_id, {_may_go(sql)} AS eligible, ({age} >= {sql.number("keep")} OR {age} < 0) AS old
    FROM (SELECT {columns} FROM {sql.sent_emails} WHERE ({KEPT}) AND job_id > :cursor
        ORDER BY job_id LIMIT {PAGE}) AS l
    ORDER BY l.job_id"""


def _forget(sql: Sql) -> str:
    return f"""
    UPDATE {sql.sent_emails} AS l SET content = NULL, sealed = NULL
    WHERE l.key {sql.any_of("keys")} AND {_may_go(sql)}"""


def _forget_files(sql: Sql) -> str:
    gone = f"FROM {sql.sent_emails} AS l WHERE l.key = f.key AND l.content IS NULL AND l.sealed IS NULL"
    return f"DELETE FROM {sql.email_files} AS f WHERE f.key {sql.any_of('keys')} AND {sql.exists(gone)}"


def _old(sql: Sql, time: str) -> str:
    return f"{time} <= {sql.after('-' + sql.number('age'))}"


def _first_by_id(sql: Sql, table: str) -> str:
    """Ids rise with time: old rows are among the first."""
    first = f"(SELECT id, created_at FROM {table} ORDER BY id LIMIT {PAGE}) AS first"
    return f"SELECT id FROM {first} WHERE {_old(sql, 'created_at')}"


def _events(sql: Sql) -> str:
    return _first_by_id(sql, sql.email_events)


def _signed_requests(sql: Sql) -> str:
    return _first_by_id(sql, sql.email_signed_requests)


def _log_lines(sql: Sql) -> str:
    return _first_by_id(sql, sql.email_suppression_log)


def _ended(sql: Sql) -> str:
    return f"SELECT id FROM {sql.email_suppressions} WHERE {_old(sql, 'until')} ORDER BY until, id"


def _set_aside(sql: Sql) -> str:
    return f"SELECT digest FROM {sql.email_reports_read} WHERE {_old(sql, 'updated_at')} ORDER BY digest"


def _past(sql: Sql) -> str:
    """Whole days that are over, and `age` of them ago."""
    seconds = f"({sql.epoch(sql.now)} - {sql.number('age')})"
    return f"SELECT digest, day FROM {sql.email_soft_failures} WHERE day < {seconds} / 86400 - 1"


OLD_EVENTS, OLD_LOG_LINES = old_rows("email_events", "id", _events), old_rows("email_suppression_log", "id", _log_lines)
OLD_SIGNED_REQUESTS = old_rows("email_signed_requests", "id", _signed_requests)
# Locked: one that is prolonged meanwhile stays.
ENDED_SUPPRESSIONS = old_rows("email_suppressions", "id", _ended, Sql.lock)
OLD_SET_ASIDE = old_rows("email_reports_read", "digest", _set_aside, Sql.lock)
OLD_SOFT_FAILURES = old_rows("email_soft_failures", "digest, day", _past)
