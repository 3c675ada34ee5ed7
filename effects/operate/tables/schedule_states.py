"""How schedules stand, for people: each with its next slot and the last one."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
from sqlalchemy import Row

from effects.errors import ConfigurationError
from effects.kit.moments import moment, moment_or_none
from effects.store.db.records import record
from effects.store.db.sql import Sql
from effects.store.db.store import Store
from effects.store.schedules import definition_of, select_definition

STATES = ("active", "paused", "retired", "invalid")  # of a ScheduleState


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule for people. `state` is `active`, `paused`, `retired` or `invalid` (its row makes no schedule);
    `last_*` is its newest slot.
    """

    name: str
    job_type: str
    cron: str
    zone: str
    catch_up: str
    overlap: str
    state: str
    paused_by: str | None
    in_code: bool
    next_slot: dt.datetime | None
    last_slot: dt.datetime | None
    last_outcome: str | None
    last_reason: str | None
    last_job_id: int | None


def read_states(store: Store) -> list[ScheduleState]:
    """Every schedule by name, with its next slot and the last one."""
    with store.read() as connection:
        now = moment(store.now(connection))
        return [_state(row, now) for row in store.all(connection, _states)]


def _state(row: Row[Any], now: dt.datetime) -> ScheduleState:
    state, next_slot = "retired" if row.retired else "active" if row.enabled else "paused", None
    if state == "active":
        try:
            next_slot = next(definition_of(row).schedule.times.after(now), None)
        except ConfigurationError:
            state = "invalid"
    return record(
        ScheduleState, row, state=state, next_slot=next_slot, last_slot=moment_or_none(row.slot),
        last_outcome=row.outcome, last_reason=row.reason, last_job_id=row.job_id,
    )  # fmt: skip


def _states(sql: Sql) -> str:
    return f"""
    {select_definition(sql)}, {sql.epoch("r.slot")} AS slot, r.outcome, r.reason, r.job_id
    FROM {sql.job_definitions} AS d LEFT JOIN {sql.definition_runs} AS r ON r.definition_id = d.id
        AND r.slot = (SELECT max(slot) FROM {sql.definition_runs} WHERE definition_id = d.id)
    ORDER BY d.name"""
