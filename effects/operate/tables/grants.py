"""Which job types a role may enqueue by `effects_enqueue(…)`: rows of `effects_grants`, which that function reads."""

from __future__ import annotations

import datetime as dt

import msgspec
from sqlalchemy import Connection

from effects.errors import ConfigurationError
from effects.model.job_type import JobType
from effects.store.audit_log import AuditAction, note
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json

_ADD, _REMOVE = AuditAction("grant", "add"), AuditAction("grant", "remove")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """A job type that a role, and each that inherits from it, may enqueue."""

    role: str
    job_type: str
    created_at: dt.datetime


def list_grants(store: Store, connection: Connection, role: str | None = None) -> list[Grant]:
    """The grants, or those of one role, by role and job type."""
    return [record(Grant, row) for row in store.all(connection, _list, role=role)]


def add(
    store: Store, connection: Connection, role: str, job_type: JobType[object], *, actor: str, reason: str | None
) -> bool:
    """Let a role enqueue jobs of this type, in the given transaction; False if it already may.

    Raises:
        ConfigurationError: the database is SQLite, which has no roles; it has no such role; or the type is internal.
    """
    _refuse_sqlite(store)
    if job_type.internal:
        raise ConfigurationError(
            f"{job_type.name} is a step that only effects enqueues: its payload names rows by their ids, and is not "
            "checked against who asks. docs/plain-sql.md has the built-in types that can be granted"
        )
    if store.row(connection, _role, role=role) is None:
        raise ConfigurationError(f"the database has no role {role!r}: create it first (CREATE ROLE … LOGIN)")
    fields = as_json(job_type.trusted_fields)
    is_new = store.write(connection, _add, role=role, job_type=job_type.name, fields=fields) == 1
    if is_new:
        note(store, connection, _ADD, f"{role} {job_type.name}", actor=actor, reason=reason)
    return is_new


def remove(store: Store, connection: Connection, role: str, job_type: str, *, actor: str, reason: str | None) -> bool:
    """Take a grant back, in the given transaction; False if there was none. Jobs that were enqueued still run."""
    was_there = store.write(connection, _remove, role=role, job_type=job_type) == 1
    if was_there:
        note(store, connection, _REMOVE, f"{role} {job_type}", actor=actor, reason=reason)
    return was_there


def _refuse_sqlite(store: Store) -> None:
    if not store.is_postgresql:
        raise ConfigurationError(
            "SQLite has no roles: whoever may write the file may enqueue anything. Grants are for PostgreSQL"
        )


# -- the statements ----------------------------------------------------------------------------------------


def _list(sql: Sql) -> str:
    return f"""
    SELECT role, job_type, {sql.epoch("created_at")} AS created_at FROM {sql.grants}
    WHERE role = COALESCE(CAST(:role AS text), role) ORDER BY role, job_type"""


def _role(sql: Sql) -> str:
    return "SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = :role"


def _add(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.grants} (role, job_type, trusted_fields) VALUES (:role, :job_type, CAST(:fields AS jsonb))
    ON CONFLICT DO NOTHING"""


def _remove(sql: Sql) -> str:
    return f"DELETE FROM {sql.grants} WHERE role = :role AND job_type = :job_type"
