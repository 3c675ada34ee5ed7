"""Which versions of a template were sent, of the newest messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from effects.extend import Sql, Store

SPAN = 5_000  # messages that are looked at: no index knows templates


def read_versions(store: Store, connection: Connection, template: str) -> Sequence[Row[Any]]:
    """Version, locale, messages, first and last time; the newest version first, of the newest 5,000 messages."""
    return store.all(connection, _versions, template=template)


def _versions(sql: Sql) -> str:
    return f"""
    SELECT template_version AS version, locale, count(*) AS messages, min(created) AS first_at, max(created) AS last_at
    FROM (
        SELECT template, template_version, locale, {sql.epoch("e.created_at")} AS created
        FROM {sql.sent_emails} AS e ORDER BY e.created_at DESC, e.job_id DESC LIMIT {SPAN}) AS newest
    WHERE template = :template GROUP BY template_version, locale ORDER BY last_at DESC"""
