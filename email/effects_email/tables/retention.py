"""Forgetting what messages said, some days after their end. The row stays, with the hash of the bytes."""

from __future__ import annotations

from collections.abc import Callable

from effects.store.dead_letters import closed
from effects.store.prune import Page
from effects.store.sql import Sql
from effects.store.store import Store, as_json
from effects_email.tables.sent_schema import KEPT

PAGE = 500


def forget_content(store: Store, cursor: int | None, *, keep_seconds: float, dry_run: bool) -> Page:
    """One page by job id: the content of messages that ended so long ago. One that waits for a person keeps its own."""
    with store.read() as connection:
        page = store.all(connection, _page, cursor=cursor or 0, keep=keep_seconds)
    keys = [row.key for row in page if row.eligible]
    taken = len(keys)
    if keys and not dry_run:
        with store.single() as connection:
            taken = store.write(connection, _forget, keys=as_json(keys), keep=keep_seconds)
    ends = len(page) < PAGE or not any(row.old for row in page)
    return Page(taken, None if ends else page[-1].job_id)


def _keep(sql: Sql) -> str:
    return "CAST(:keep AS double precision)" if sql.postgresql else ":keep"


def _may_go(sql: Sql) -> str:
    """Ended, aged, and not open: an open one is dead or unknown and nobody has closed it."""
    ended = f"FROM {sql.job_history} AS h WHERE h.id = l.job_id"
    return f"""
    l.state NOT IN ('intended', 'released') AND {sql.seconds("l.updated_at")} >= {_keep(sql)}
    AND NOT {sql.found(f"FROM {sql.jobs} AS j WHERE j.id = l.job_id")}
    AND NOT {sql.found(f"{ended} AND (h.status = 'dead' OR l.state = 'unknown') AND NOT {closed(sql)}")}"""


def _page(sql: Sql) -> str:
    columns = "key, job_id, state, created_at, updated_at"
    return f"""
    SELECT l.key, l.job_id, {_may_go(sql)} AS eligible, {sql.seconds("l.created_at")} >= {_keep(sql)} AS old
    FROM (SELECT {columns} FROM {sql.sent_emails} WHERE ({KEPT}) AND job_id > :cursor
        ORDER BY job_id LIMIT {PAGE}) AS l
    ORDER BY l.job_id"""


def _forget(sql: Sql) -> str:
    return f"""
    UPDATE {sql.sent_emails} AS l SET content = NULL, sealed = NULL
    WHERE l.key {sql.any_of("keys")} AND {_may_go(sql)}"""


def forget_all(store: Store, *, keep_seconds: float, dry_run: bool, go_on: Callable[[], bool]) -> int:
    """Page after page, as long as `go_on()` says so; how many messages were forgotten, or would be."""
    taken, cursor = 0, None
    while go_on():
        page = forget_content(store, cursor, keep_seconds=keep_seconds, dry_run=dry_run)
        taken += page.taken
        if page.cursor is None:
            break
        cursor = page.cursor
    return taken
