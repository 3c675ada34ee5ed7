"""What a worker does with schedules: it looks at those that run, locks one, takes its slots.

One row a slot, unique, written in the commit that writes its job: any number of workers may look at the same
schedule at the same moment, and no leader is needed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from sqlalchemy import Connection

from effects.errors import ConfigurationError
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.schedules.definitions import Definition, definition_of, select_definition

SlotOutcome: TypeAlias = Literal["enqueued", "existing", "skipped", "failed"]


class ActiveSchedules(NamedTuple):
    """The schedules that run, and the names of those whose rows are not valid.

    `now`: the database's time, in seconds since 1970; None where there are no schedules.
    """

    definitions: list[Definition]
    invalid: list[str]
    now: float | None


def active(store: Store, connection: Connection, types: Sequence[str]) -> ActiveSchedules:
    """The schedules of job types that are known here.

    A row may be invalid where a plain INSERT wrote it, or where a zone has been renamed.
    """
    schedules = ActiveSchedules([], [], None)
    for row in store.all(connection, _active, types=as_json(types)):
        schedules = schedules._replace(now=float(row.now))
        try:
            schedules.definitions.append(definition_of(row))
        except ConfigurationError:
            schedules.invalid.append(row.name)
    return schedules


def lock(store: Store, connection: Connection, definition_id: int) -> Definition | None:
    """The schedule as it is now, held until the transaction ends; None where it does not run or another holds it."""
    row = store.row(connection, _lock, id=definition_id)
    return definition_of(row) if row is not None else None


def take_slot(store: Store, connection: Connection, definition_id: int, slot: dt.datetime) -> bool:
    """Write the slot's row; False where it is there already, and the slot is not ours."""
    return store.row(connection, _take, id=definition_id, slot=slot.timestamp()) is not None


def has_live_job(store: Store, connection: Connection, definition_id: int) -> bool:
    return store.row(connection, _live, id=definition_id) is not None


def name_job(store: Store, connection: Connection, job_id: int, definition_id: int, slot: dt.datetime) -> None:
    """Write into a new job which slot it is."""
    store.write(connection, _name_job, job_id=job_id, id=definition_id, slot=slot.timestamp())


def end_slot(
    store: Store,
    connection: Connection,
    definition_id: int,
    slot: dt.datetime,
    outcome: SlotOutcome,
    *,
    job_id: int | None = None,
    reason: str | None = None,
) -> None:
    """Record what became of a slot that was taken in this transaction."""
    values = {"outcome": outcome, "job_id": job_id, "reason": reason}
    store.write(connection, _end, id=definition_id, slot=slot.timestamp(), **values)


def advance(store: Store, connection: Connection, definition_id: int, slot: dt.datetime) -> None:
    """Slots up to this one have been dealt with."""
    store.write(connection, _advance, id=definition_id, slot=slot.timestamp())


def turn_back(store: Store, connection: Connection, definition_id: int, *, beyond: dt.datetime) -> None:
    """Go on from now, where the slots up to a time beyond this one seem to have been dealt with."""
    store.write(connection, _turn_back, id=definition_id, slot=beyond.timestamp())


# -- the statements --------------------------------------------------------------------------------------


def _active(sql: Sql) -> str:
    return f"""
    {select_definition(sql)}, {sql.epoch(sql.now)} AS now FROM {sql.job_definitions} AS d
    WHERE d.enabled AND NOT d.retired AND d.job_type {sql.any_of("types")} ORDER BY d.id"""


def _lock(sql: Sql) -> str:
    return f"""
    {select_definition(sql)} FROM {sql.job_definitions} AS d
    WHERE d.id = :id AND d.enabled AND NOT d.retired {sql.lock(of="d")}"""


def _take(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.definition_runs} (definition_id, slot, created_at)
    VALUES (:id, {sql.time(_number(sql))}, {sql.now}) ON CONFLICT DO NOTHING RETURNING definition_id"""


def _live(sql: Sql) -> str:
    return f"SELECT id FROM {sql.jobs} WHERE definition_id = :id LIMIT 1"


def _name_job(sql: Sql) -> str:
    return f"""
    UPDATE {sql.jobs} SET definition_id = :id, slot = {sql.time(_number(sql))} WHERE id = :job_id"""


def _end(sql: Sql) -> str:
    return f"""
    UPDATE {sql.definition_runs} SET outcome = :outcome, job_id = :job_id, reason = :reason
    WHERE definition_id = :id AND slot = {sql.time(_number(sql))}"""


def _advance(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_definitions} SET last_slot = {sql.time(_number(sql))}, updated_at = {sql.now}
    WHERE id = :id AND last_slot < {sql.time(_number(sql))}"""


def _turn_back(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_definitions} SET last_slot = {sql.now}, updated_at = {sql.now}
    WHERE id = :id AND last_slot > {sql.time(_number(sql))}"""


def _number(sql: Sql) -> str:
    return sql.number("slot")
