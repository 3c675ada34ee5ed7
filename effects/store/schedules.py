"""Schedules in the database: as code and operators declare them, and what a worker does with them.

A worker looks at those that run, locks one and takes its slots. A slot is a unique row, written in the commit that
writes its job: any number of workers may look at the same schedule at the same moment, and no leader is needed.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import ConfigurationError
from effects.kit.moments import exact_moment
from effects.kit.text.unsafe import nearest
from effects.model.schedules import Schedule
from effects.store.audit_log import AuditAction, note
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json

_ADD, _PAUSE, _RESUME = (AuditAction("schedule", name) for name in ("add", "pause", "resume"))


class Definition(msgspec.Struct, frozen=True):
    """A stored schedule; its slots up to `last_slot` have been dealt with."""

    id: int
    schedule: Schedule
    last_slot: dt.datetime


class Registered(msgspec.Struct, frozen=True):
    """What registering the app's schedules changed, by name."""

    added: list[str]
    changed: list[str]
    retired: list[str]


def register(store: Store, schedules: Sequence[Schedule], *, retire_types: Iterable[str] = ()) -> Registered:
    """Make the database's schedules those of the app's code.

    A pause stays. A changed cron text or zone starts over: no slot before this moment runs. A schedule of
    a job type among `retire_types` that was in code and no longer is does not run until it is in code again.
    Running it again changes nothing; a crash half-way writes nothing.
    """
    with store.begin() as connection:
        before = {row.name: row for row in store.all(connection, _rows)}
        rows = [_columns(schedule) for schedule in schedules]
        store.write(connection, _upsert, rows=as_json(rows))
        keep = as_json([schedule.name for schedule in schedules])
        gone = store.all(connection, _retire, keep=keep, types=as_json(sorted(retire_types)))
    return Registered(
        added=[schedule.name for schedule in schedules if schedule.name not in before],
        changed=[row["name"] for row in rows if row["name"] in before and _differs(before[row["name"]], row)],
        retired=sorted(row.name for row in gone),
    )


def not_registered(store: Store, schedules: Sequence[Schedule]) -> list[str]:
    """The names of those that `register` would add or change."""
    with store.read() as connection:
        there = {row.name: row for row in store.all(connection, _rows)}
    return [
        schedule.name
        for schedule in schedules
        if schedule.name not in there or _differs(there[schedule.name], _columns(schedule))
    ]


def add(store: Store, schedule: Schedule, *, actor: str, reason: str | None = None) -> None:
    """Write an operator's schedule; its first slot is the next one.

    Raises:
        ConfigurationError: there is one of this name.
    """
    with store.begin() as connection:
        if store.row(connection, _by_name, name=schedule.name) is not None:
            raise ConfigurationError(f"there is a schedule {schedule.name!r} already")
        store.write(connection, _upsert, rows=as_json([{**_columns(schedule), "in_code": False}]))
        detail = {"job_type": schedule.job_type, "cron": schedule.cron, "zone": schedule.zone}
        note(store, connection, _ADD, schedule.name, actor=actor, reason=reason, detail=detail)


def ensure_schedule(store: Store, connection: Connection, schedule: Schedule) -> None:
    """Write a schedule that belongs to rows of a package; its first slot is the next one. Nothing if it is there."""
    store.write(connection, _upsert, rows=as_json([{**_columns(schedule), "in_code": False}]))


def retire_schedule(store: Store, connection: Connection, name: str, *, unless: Callable[[], bool]) -> None:
    """Let no further slot of a schedule run, until `ensure_schedule` writes it again.

    Args:
        unless: asked while the schedule's row is locked, which `ensure_schedule` waits for: whether it is needed still.
    """
    store.row(connection, _lock_name, name=name)
    if not unless():
        store.write(connection, _retire_one, name=name)


def pause(store: Store, name: str, *, actor: str, reason: str | None = None) -> None:
    """Skip every slot until `resume`; slots that fall into the pause are never caught up.

    Raises:
        ConfigurationError: there is no such schedule.
    """
    with store.begin() as connection:
        said = f"{actor}: {reason}" if reason else actor
        if not store.write(connection, _disable, name=name, paused_by=said):
            raise _unknown(store, connection, name)
        note(store, connection, _PAUSE, name, actor=actor, reason=reason)


def resume(store: Store, name: str, *, actor: str, reason: str | None = None) -> None:
    """Go on with the next slot.

    Raises:
        ConfigurationError: there is no such schedule, or the app's code no longer has it.
    """
    with store.begin() as connection:
        row = store.row(connection, _by_name, name=name)
        if row is None:
            raise _unknown(store, connection, name)
        if row.retired:
            raise ConfigurationError(f"schedule {name!r} is no longer in the app's code: put it back, and run init")
        store.write(connection, _enable, name=name)
        note(store, connection, _RESUME, name, actor=actor, reason=reason)


def get(store: Store, connection: Connection, name: str) -> Definition:
    """Find a schedule by its name, in any state.

    Raises:
        ConfigurationError: there is no such schedule, or its row is not valid any more.
    """
    row = store.row(connection, _by_name, name=name)
    if row is None:
        raise _unknown(store, connection, name)
    return definition_of(row)


def _unknown(store: Store, connection: Connection, name: str) -> ConfigurationError:
    names = [row.name for row in store.all(connection, _rows)]
    return ConfigurationError(
        f"there is no schedule {name!r} (known: {', '.join(names) or 'none'}){nearest(name, names)}"
    )


def _columns(schedule: Schedule) -> dict[str, Any]:
    return {
        "name": schedule.name,
        "job_type": schedule.job_type,
        "payload": msgspec.Raw(schedule.template().encode()),
        "cron": schedule.cron,
        "zone": schedule.zone,
        "max_attempts": schedule.max_attempts,
        "overlap": schedule.overlap,
        "catch_up": schedule.catch_up,
        "catch_up_max": schedule.catch_up_max,
        "key": schedule.key,
        "in_code": True,
    }


def _differs(row: Row[Any], new: dict[str, Any]) -> bool:
    same = all(getattr(row, name) == value for name, value in new.items() if name not in ("payload", "in_code"))
    return not same or bool(row.retired) or json.loads(row.payload) != json.loads(bytes(new["payload"]))


def definition_of(row: Row[Any]) -> Definition:
    """
    Raises:
        ConfigurationError: the row is not a valid schedule; the message quotes no value.
    """
    try:
        return Definition(row.id, _schedule_of(row), exact_moment(row.last_slot))
    except ConfigurationError:
        raise
    except (ValueError, TypeError, AttributeError, OverflowError, OSError, RecursionError) as error:
        raise ConfigurationError(f"the row of schedule {row.id} is not valid ({type(error).__name__})") from None


def _schedule_of(row: Row[Any]) -> Schedule:
    payload = json.loads(row.payload)
    if not isinstance(payload, dict):
        raise ConfigurationError(f"the payload of schedule {row.id} is no JSON object")
    return Schedule(**{field.name: getattr(row, field.name) for field in fields(Schedule)} | {"payload": payload})


# -- the statements --------------------------------------------------------------------------------------

_DECLARED = {
    "name": "text", "job_type": "text", "payload": "json", "cron": "text", "zone": "text", "max_attempts": "int",
    "overlap": "text", "catch_up": "text", "catch_up_max": "int", "key": "text", "in_code": "bool",
}  # fmt: skip
_PLAIN = ", ".join(f"d.{name}" for name in _DECLARED if name != "payload")


def select_definition(sql: Sql) -> str:
    return (
        f"SELECT d.id, {_PLAIN}, {sql.json_text('d.payload')} AS payload, d.enabled, d.retired, d.paused_by, "
        f"{sql.epoch('d.last_slot')} AS last_slot"
    )


def _rows(sql: Sql) -> str:
    return f"{select_definition(sql)} FROM {sql.job_definitions} AS d ORDER BY d.name"


def _by_name(sql: Sql) -> str:
    return f"{select_definition(sql)} FROM {sql.job_definitions} AS d WHERE d.name = :name"


def _upsert(sql: Sql) -> str:
    names = ", ".join(_DECLARED)
    taken = ", ".join(f"{name} = excluded.{name}" for name in _DECLARED if name != "name")
    old = sql.job_definitions
    moved = f"{old}.cron <> excluded.cron OR {old}.zone <> excluded.zone OR {old}.retired"
    return f"""
    INSERT INTO {old} ({names}, last_slot, created_at, updated_at)
    SELECT {", ".join(f"r.{name}" for name in _DECLARED)}, {sql.now}, {sql.now}, {sql.now}
    FROM {sql.rows("rows", _DECLARED)} AS r WHERE true ORDER BY r.name
    ON CONFLICT (name) DO UPDATE SET {taken}, retired = false, updated_at = {sql.now},
        last_slot = CASE WHEN {moved} THEN {sql.now} ELSE {old}.last_slot END"""


def _retire(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_definitions} SET retired = true, updated_at = {sql.now}
    WHERE in_code AND NOT retired AND job_type {sql.any_of("types")} AND NOT (name {sql.any_of("keep")})
    RETURNING name"""


def _lock_name(sql: Sql) -> str:
    return f"SELECT id FROM {sql.job_definitions} WHERE name = :name {sql.lock(skip=False)}"


def _retire_one(sql: Sql) -> str:
    return f"UPDATE {sql.job_definitions} SET retired = true, updated_at = {sql.now} WHERE name = :name"


def _disable(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_definitions} SET enabled = false, paused_by = :paused_by, updated_at = {sql.now}
    WHERE name = :name"""


def _enable(sql: Sql) -> str:
    return f"""
    UPDATE {sql.job_definitions} SET paused_by = NULL, updated_at = {sql.now},
        last_slot = CASE WHEN enabled THEN last_slot ELSE {sql.now} END, enabled = true
    WHERE name = :name"""


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
