"""What happens at a slot: its row and its job, in one commit."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import msgspec
from sqlalchemy import Connection

from effects.app.effects import Effects
from effects.errors import EnqueueError
from effects.kit.crashpoints import point
from effects.kit.logs import own_logger
from effects.kit.moments import moment
from effects.model.job import NewJob
from effects.model.schedules import Schedule
from effects.store import schedules as schedule_definitions
from effects.store import schedules as schedule_slots
from effects.store.audit_log import AuditAction, note
from effects.store.enqueue.enqueuing import enqueue_job
from effects.store.schedules import Definition, SlotOutcome

SLOTS_PER_COMMIT = 50
_RUN = AuditAction("schedule", "run")
_log = own_logger("effects.schedules")


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one slot."""

    name: str
    slot: datetime
    outcome: SlotOutcome
    job_id: int | None = None
    reason: str | None = None


def fire_due(app: Effects, definition: Definition) -> list[Fired]:
    """Run the slots of a schedule that are due by the database's clock, at most 50, in one transaction.

    Any number of callers at once make each slot once: the schedule's row is locked, and the slot's row is unique.
    A crash before the commit leaves neither slot nor job. A slot whose job cannot be enqueued (its key belongs
    to another payload, its payload no longer fits) is recorded as failed, and the next one runs.

    Raises:
        StoreUnavailable: the database is unavailable; calling again is safe.
    """
    store = app.store
    with store.begin() as connection:
        locked = schedule_slots.lock(store, connection, definition.id)
        if locked is None:
            return []
        now = moment(store.now(connection))
        slots = locked.schedule.missed(locked.last_slot, now)[:SLOTS_PER_COMMIT]
        fired = [result for slot in slots if (result := _fire(app, connection, locked, slot)) is not None]
        passed = slots or locked.schedule.times.newest(now, since=locked.last_slot)  # dropped ones are dealt with too
        if passed:
            schedule_slots.advance(store, connection, locked.id, passed[-1])
        point("fire.before_commit")
    point("fire.committed")
    _tell_of_dropped(locked, slots, passed)
    _tell(app, locked.schedule, fired)
    return fired


def fire_now(app: Effects, name: str, *, actor: str, slot: datetime | None = None, reason: str | None = None) -> Fired:
    """Run a schedule by hand, as if this moment, or `slot`, were one of its slots; paused ones too.

    Overlap is not looked at, except that with `queue` the job waits for its turn. The same slot twice runs once: so a
    slot that has not come yet is refused, because it would not run again at its time.

    Args:
        actor, reason: who and why, for the slot's record and the audit log.

    Raises:
        ConfigurationError: there is no such schedule.
        EnqueueError: the slot has not come yet, or has run already; or its job cannot be enqueued. Nothing was
            written.
    """
    store = app.store
    with store.begin() as connection:
        definition = schedule_definitions.get(store, connection, name)
        now = moment(store.now(connection))
        slot = (slot or now).astimezone(UTC).replace(microsecond=0)
        if slot > now:
            raise EnqueueError(
                f"schedule {name!r}: the slot {slot.isoformat()} has not come yet. Run now, it would be taken, and not "
                "run at its time; give one that has passed, or none for this moment"
            )
        if not schedule_slots.take_slot(store, connection, definition.id, slot):
            raise EnqueueError(f"schedule {name!r}: the slot {slot.isoformat()} has run already")
        fired = _enqueue(app, connection, definition, slot, reason=f"run by {actor}{f': {reason}' if reason else ''}")
        detail = {"slot": slot.isoformat(), "job": fired.job_id, "outcome": fired.outcome}
        note(store, connection, _RUN, name, actor=actor, reason=reason, detail=detail)
    _tell(app, definition.schedule, [fired])
    return fired


def _fire(app: Effects, connection: Connection, definition: Definition, slot: datetime) -> Fired | None:
    """None where another has had this slot."""
    store, schedule = app.store, definition.schedule
    if not schedule_slots.take_slot(store, connection, definition.id, slot):
        return None
    if schedule.overlap == "skip" and schedule_slots.has_live_job(store, connection, definition.id):
        return _end(app, connection, definition, slot, "skipped", reason="a job of this schedule is still live")
    try:
        return _enqueue(app, connection, definition, slot)
    except EnqueueError as error:
        return _end(app, connection, definition, slot, "failed", reason=str(error))


def _enqueue(
    app: Effects, connection: Connection, definition: Definition, slot: datetime, reason: str | None = None
) -> Fired:
    schedule = definition.schedule
    job = NewJob(
        job_type=schedule.job_type,
        payload=schedule.payload_of(slot),
        key=schedule.key_of(slot),
        group_key=schedule.group_key,
        max_attempts=schedule.max_attempts,
    )
    receipt = enqueue_job(app, job, connection, slot=(definition.id, slot.timestamp()))
    outcome: SlotOutcome = "existing" if receipt.existing else "enqueued"
    return _end(app, connection, definition, slot, outcome, job_id=receipt.job_id, reason=reason)


def _end(
    app: Effects,
    connection: Connection,
    definition: Definition,
    slot: datetime,
    outcome: SlotOutcome,
    *,
    job_id: int | None = None,
    reason: str | None = None,
) -> Fired:
    schedule_slots.end_slot(app.store, connection, definition.id, slot, outcome, job_id=job_id, reason=reason)
    return Fired(name=definition.schedule.name, slot=slot, outcome=outcome, job_id=job_id, reason=reason)


def _tell_of_dropped(definition: Definition, slots: list[datetime], passed: list[datetime]) -> None:
    """Missed slots that `catch_up` leaves out."""
    first = next(definition.schedule.times.after(definition.last_slot), None)
    if passed and first is not None and first < (slots[0] if slots else passed[-1] + timedelta(minutes=1)):
        fields = {"schedule": definition.schedule.name, "from": first.isoformat(), "to": passed[-1].isoformat()}
        _log.warning("schedule.missed", extra={**fields, "catch_up": definition.schedule.catch_up})


def _tell(app: Effects, schedule: Schedule, fired: list[Fired]) -> None:
    """After the commit: the log, and the idle workers of the queue."""
    for result in fired:
        level = logging.ERROR if result.outcome == "failed" else logging.INFO
        fields = {
            "schedule": result.name,
            "slot": result.slot.isoformat(),
            "outcome": result.outcome,
            "job": result.job_id,
        }
        _log.log(level, "schedule.slot", extra={**fields, **({"reason": result.reason} if result.reason else {})})
    if any(result.outcome == "enqueued" for result in fired):
        app.notifier.send([app.job_types.get(schedule.job_type).queue])  # routed elsewhere, polling finds it
