"""Links whose downloads are counted: one row each, deleted with its run's row."""

from __future__ import annotations

from sqlalchemy import Connection

from effects.extend import Sql, Store

RESUME_SECONDS = 3600.0  # within which a later part of the file belongs to the download that has begun


def _insert(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.report_links} (id, run_id, uses_max, created_at) VALUES (:id, :run_id, :uses_max, {sql.now})"""


def insert_link(store: Store, connection: Connection, link_id: str, run_id: str, uses_max: int) -> None:
    """Begin to count."""
    store.write(connection, _insert, id=link_id, run_id=run_id, uses_max=uses_max)


def _use(sql: Sql) -> str:
    return f"""
    UPDATE {sql.report_links} SET uses = uses + 1, used_at = {sql.now} WHERE id = :id AND uses < uses_max"""


def _resumed(sql: Sql) -> str:
    return f"""
    SELECT id FROM {sql.report_links}
    WHERE id = :id AND {sql.epoch("used_at")} > {sql.epoch(sql.now)} - {RESUME_SECONDS}"""


def use_link(store: Store, link_id: str, *, resumed: bool) -> bool:
    """Count one download, in a transaction of its own; False where there have been as many as there may be.

    Args:
        resumed: the bytes asked for begin later than the file does: within an hour of a download's begin, a part of it.
    """
    with store.begin() as connection:
        if resumed and store.row(connection, _resumed, id=link_id) is not None:
            return True
        return store.write(connection, _use, id=link_id) == 1
