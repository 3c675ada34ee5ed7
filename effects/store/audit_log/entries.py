"""Reading the audit log, newest first, a page at a time; and deleting what is past its retention.

A statement is built for each set of filters, with their conditions alone, so that each may use its index.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from effects.store.db.old_rows import old_rows
from effects.store.db.records import Moment, shown_json, shown_moment
from effects.store.db.sql import ANY_TIME, Sql, Window, and_each, set_filters
from effects.store.db.store import Statement, Store


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action: by whom, through what, on what, why and when.

    Args:
        via: `cli`, `web`, `api` or `schedule`.
        detail: what was changed; an object, if our own code wrote it.
    """

    id: int
    created_at: Moment
    actor: str
    via: str
    action: str
    subject_kind: str
    subject: str
    tenant: str | None
    reason: str | None
    detail: Any


class LogFilters(msgspec.Struct, frozen=True, kw_only=True):
    """What `list_entries` shows; None is no filter.

    Args:
        before: only entries older than the one with this id: the last id of a page continues with the next.
        window: when they were written.
    """

    actor: str | None = None
    action: str | None = None
    subject_kind: str | None = None
    subject: str | None = None
    before: int | None = None
    window: Window = ANY_TIME
    limit: int = 50


def list_entries(store: Store, filters: LogFilters) -> list[AuditEntry]:
    """Entries that match, newest first, at most `filters.limit`.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    values = {name: getattr(filters, name) for name in _EQUAL} | {"before": filters.before}
    parameters = set_filters(values | filters.window.parameters())
    with store.read() as connection:
        rows = store.all(connection, _list(frozenset(parameters)), limit=filters.limit, **parameters)
        return [
            AuditEntry(
                id=row.id, created_at=shown_moment(row.created_at), actor=row.actor, via=row.via, action=row.action,
                subject_kind=row.subject_kind, subject=row.subject, tenant=row.tenant, reason=row.reason,
                detail=shown_json(row.detail),
            )
            for row in rows
        ]  # fmt: skip


# -- the statements --------------------------------------------------------------------------------------

_EQUAL = ("actor", "action", "subject_kind", "subject")


@cache
def _list(filters: frozenset[str]) -> Statement:
    def build(sql: Sql) -> str:
        equal = {name: f"{name} = :{name}" for name in _EQUAL}
        # By time alone in the order of its index: PostgreSQL might otherwise walk down the ids to an old time.
        by_time = not filters & {*_EQUAL} and not filters <= {"before"}
        order = "audit_log.created_at DESC, id DESC" if by_time else "id DESC"
        last = f"SELECT b.created_at, b.id FROM {sql.audit_log} AS b WHERE b.id = :before"
        before = f"(created_at, id) < ({last})" if by_time else "id < :before"  # an id may be older than one before it
        conditions = and_each({**equal, "before": before, **sql.bounds("created_at")}, filters)
        return f"""
        SELECT id, {sql.epoch("created_at")} AS created_at, actor, via, action, subject_kind, subject, tenant, reason,
            {sql.json_text("detail")} AS detail
        FROM {sql.audit_log} AS audit_log WHERE true{conditions} ORDER BY {order} LIMIT :limit"""

    return build


def _old(sql: Sql) -> str:
    return f"SELECT id FROM {sql.audit_log} WHERE created_at <= {sql.after('-' + sql.number('age'))}"


OLD_ENTRIES = old_rows("audit_log", "id", _old)
