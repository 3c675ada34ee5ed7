"""Limit keys as apps and operators set them: rows of `effects_limits`, one a key.

A key without a row has no limits. A key may have a parent (one level): both must be open, and the parent's cap and
rate count the jobs of all its children. What operators change is in the audit log.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, TypedDict, Unpack

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import ConfigurationError, LimitNotFound
from effects.kit.moments import FOREVER_SECONDS, moment
from effects.kit.text.scrub import KEY_CHARS_MAX
from effects.kit.text.unsafe import nearest
from effects.model.limits import Breaker, PauseState, Rate, end_pause, extend_pause, outlasts
from effects.store.audit_log import AuditAction, note
from effects.store.db.sql import Sql
from effects.store.db.store import Store

_WORDS = {"max_in_flight": "{} in flight", "rate": "{}", "breaker": "breaker {}", "parent": "under {}"}


class KeyLimits(msgspec.Struct, frozen=True):
    """What a key may: so many at once, a rate, its parent, a breaker. None: no such limit."""

    max_in_flight: int | None = None
    rate: Rate | None = None
    parent: str | None = None
    breaker: Breaker | None = None

    def check(self, key: str) -> None:
        """Refuse limits that this key cannot have.

        Raises:
            ConfigurationError: the message says which.
        """
        _check_key(key)
        if self.parent is not None:
            _check_key(self.parent)
        if self.max_in_flight is not None and self.max_in_flight < 1:
            raise ConfigurationError("most in flight is at least 1; to stop a key, pause it")
        if self.parent == key:
            raise ConfigurationError(f"the key {key!r} cannot be its own parent")
        if self.rate is not None:
            self.rate.check()
        if self.breaker is not None:
            self.breaker.check()

    def columns(self) -> dict[str, Any]:
        """The values of its columns in `effects_limits`."""
        return {
            "parent_key": self.parent,
            "max_in_flight": self.max_in_flight,
            "rate_tokens": self.rate.tokens if self.rate else None,
            "rate_period_seconds": self.rate.period_seconds if self.rate else None,
            "rate_burst": self.rate.size if self.rate else None,
            "breaker_after": self.breaker.failures if self.breaker else None,
            "breaker_seconds": self.breaker.seconds if self.breaker else None,
        }

    def detail(self) -> dict[str, Any]:
        """Those that there are, for the audit log."""
        rate, breaker = self.rate, self.breaker
        limits = {
            "max_in_flight": self.max_in_flight,
            "rate": f"{rate.tokens} per {rate.period_seconds:g} s (burst {rate.size})" if rate else None,
            "breaker": f"{breaker.failures} failures, {breaker.seconds:g} s" if breaker else None,
            "parent": self.parent,
        }
        return {name: value for name, value in limits.items() if value is not None}

    def text(self) -> str:
        """Those that there are, for people: `2 in flight, under mail`."""
        return ", ".join(_WORDS[name].format(value) for name, value in self.detail().items())


class LimitOptions(TypedDict, total=False):
    """Limits of a key by name. None: no such limit."""

    max_in_flight: int | None
    rate: Rate | None
    parent: str | None
    breaker: Breaker | None


NO_LIMITS = KeyLimits()
LIMIT_COLUMNS = tuple(NO_LIMITS.columns())


def _check_key(key: str) -> None:
    """Refuse a text that is no limit key.

    Raises:
        ConfigurationError: it is empty or too long.
    """
    if not key or len(key) > KEY_CHARS_MAX:
        raise ConfigurationError(f"a limit key has 1 to {KEY_CHARS_MAX} characters")


def limits_of(row: Row[Any]) -> KeyLimits:
    """The limits in a row of `effects_limits`."""
    breaker = Breaker(row.breaker_after, row.breaker_seconds) if row.breaker_after is not None else None
    return KeyLimits(row.max_in_flight, rate_of(row), row.parent_key, breaker)


def rate_of(row: Row[Any]) -> Rate | None:
    """The rate in a row of `effects_limits`."""
    return Rate(row.rate_tokens, row.rate_period_seconds, row.rate_burst) if row.rate_tokens is not None else None


_SET, _PAUSE, _RESUME = (AuditAction("limit", name) for name in ("set", "pause", "resume"))


def ensure_limit(store: Store, connection: Connection, key: str, **limits: Unpack[LimitOptions]) -> None:
    """Limit a key that has no limits yet; what an operator has set stays, also that there are none. In the given
    transaction.

    Args:
        limits: `max_in_flight`, `rate` (a `Rate`), `parent` (another key) and `breaker` (a `Breaker`); default none.

    Raises:
        ConfigurationError: a limit that cannot be, or a parent that has a parent itself.
    """
    _check(store, connection, key, initial := KeyLimits(**limits))
    added = store.write(connection, _add, limit_key=key, **initial.columns())
    if not added and initial != NO_LIMITS:  # a pause, or a child that was declared first, may have made the row
        store.write(connection, _set_first, limit_key=key, **initial.columns())


def set_limit(
    store: Store,
    connection: Connection,
    key: str,
    *,
    actor: str,
    reason: str | None = None,
    **changes: Unpack[LimitOptions],
) -> None:
    """Set the limits of a key; None removes one, omitted ones keep their value. Workers apply them at their next claim.

    Args:
        actor, reason: who and why, for the audit log.
        changes: those of `ensure_limit`.

    Raises:
        ConfigurationError: a limit that cannot be, or a parent that has a parent itself.
    """
    store.write(connection, _add, limit_key=key, **NO_LIMITS.columns())
    limits = msgspec.structs.replace(limits_of(_locked(store, connection, key)), **changes)
    _check(store, connection, key, limits)
    store.write(connection, _set, limit_key=key, **limits.columns())
    note(store, connection, _SET, key, actor=actor, reason=reason, detail=limits.detail())


def _check(store: Store, connection: Connection, key: str, limits: KeyLimits) -> None:
    """Refuse limits that this key cannot have, and see that their parent has a row."""
    limits.check(key)
    if limits.parent is not None:
        store.write(connection, _add, limit_key=limits.parent, **NO_LIMITS.columns())
        _check_parent(store, connection, key, limits.parent)


def pause(
    store: Store,
    connection: Connection,
    key: str,
    *,
    actor: str,
    seconds: float | None = None,
    reason: str | None = None,
    create: bool = False,
) -> dt.datetime:
    """Pause a limit key for `seconds`, or until `resume`. Running jobs finish.

    Args:
        create: also a key that has no limits and no live job: it is paused before its first job comes.

    Returns:
        When the pause ends: that of a pause under way, if it is later; that one keeps its reason as well.

    Raises:
        LimitNotFound: unknown key (without `create`); the message names the most similar one.
    """
    _check_key(key)
    if not create:
        refuse_unknown(store, connection, key)
    store.write(connection, _add, limit_key=key, **NO_LIMITS.columns())
    under_way, length = _pause_of(_locked(store, connection, key)), FOREVER_SECONDS if seconds is None else seconds
    if outlasts(length, under_way):
        _write_pause(store, connection, key, extend_pause(under_way, length), reason)
    note(store, connection, _PAUSE, key, actor=actor, reason=reason, detail={"seconds": seconds})
    return moment(_locked(store, connection, key).paused_until)


def refuse_unknown(store: Store, connection: Connection, key: str) -> None:
    """Refuse a key that is neither limited nor a live job's: it is probably mistyped.

    Raises:
        LimitNotFound: names the most similar key, and how to create one.
    """
    if store.value(connection, _exists, limit_key=key) is None:
        similar = nearest_key(store, connection, key)
        raise LimitNotFound(f"no limits and no waiting job have the key {key!r}{similar} (a new one: --create)")


def resume(store: Store, connection: Connection, key: str, *, actor: str, reason: str | None = None) -> bool:
    """End the key's pause and close its breaker; its failures are forgotten.

    Args:
        actor, reason: who and why, for the audit log.

    Returns:
        Whether it was paused or its breaker open.

    Raises:
        LimitNotFound: unknown key.
    """
    was_blocked = unblock_limit(store, connection, key)
    note(store, connection, _RESUME, key, actor=actor, reason=reason, detail={"was_blocked": was_blocked})
    return was_blocked


def unblock_limit(store: Store, connection: Connection, key: str) -> bool:
    """What `resume` does, as part of another action, which is noted in its place.

    Returns:
        Whether it was paused or its breaker open.

    Raises:
        LimitNotFound: unknown key.
    """
    row = _locked(store, connection, key)
    was_blocked = row.breaker_state != "closed" or (row.paused_left or 0.0) > 0
    _write_pause(store, connection, key, end_pause(_pause_of(row)), None)
    store.write(connection, _close_breaker, limit_key=key)
    return was_blocked


def _write_pause(store: Store, connection: Connection, key: str, paused: PauseState, reason: str | None) -> None:
    store.write(
        connection, _set_pause, limit_key=key, left=paused.left_seconds, run=paused.run_seconds,
        begins=int(paused.begins_run), reason=reason,
    )  # fmt: skip


def _locked(store: Store, connection: Connection, key: str) -> Row[Any]:
    row = store.row(connection, _lock, limit_key=key)
    if row is None:
        raise LimitNotFound(f"there are no limits for the key {key!r}{nearest_key(store, connection, key)}")
    return row


def nearest_key(store: Store, connection: Connection, key: str) -> str:
    """The end of an error about an unknown key."""
    names = [row.limit_key for row in store.all(connection, _names)]
    return nearest(key, names)


def _check_parent(store: Store, connection: Connection, key: str, parent: str) -> None:
    """Refuse nested parents."""
    if store.value(connection, _has_parent, limit_key=parent):
        raise ConfigurationError(f"the key {parent!r} has a parent itself; parents cannot be nested")
    if store.value(connection, _is_parent, limit_key=key):
        raise ConfigurationError(f"the key {key!r} is a parent itself; parents cannot be nested")


def _pause_of(row: Row[Any]) -> PauseState:
    return PauseState(row.paused_left, row.paused_seconds)


# -- the statements ----------------------------------------------------------------------------------------

_VALUES = ", ".join(f"{column} = :{column}" for column in LIMIT_COLUMNS)


def _add(sql: Sql) -> str:
    values = ", ".join(f":{column}" for column in LIMIT_COLUMNS)
    return f"""
    INSERT INTO {sql.limits} (limit_key, {", ".join(LIMIT_COLUMNS)}, updated_at)
    VALUES (:limit_key, {values}, {sql.now})
    ON CONFLICT DO NOTHING"""


def _set_first(sql: Sql) -> str:
    none = " AND ".join(f"{column} IS NULL" for column in LIMIT_COLUMNS)
    return f"""
    UPDATE {sql.limits} SET {_VALUES}, updated_at = {sql.now}
    WHERE limit_key = :limit_key AND {none} AND NOT EXISTS (
        SELECT 1 FROM {sql.audit_log} AS a
        WHERE a.subject_kind = '{_SET.subject_kind}' AND a.action = '{_SET.name}' AND a.subject = :limit_key)"""


def limit_columns(sql: Sql) -> str:
    """The columns of a row that the store reads before changing its state."""
    return f"""
    limit_key, {", ".join(LIMIT_COLUMNS)}, tokens, COALESCE({sql.seconds("refilled_at")}, 0) AS elapsed,
    {sql.epoch(sql.now)} AS now_epoch, {sql.seconds(sql.now, "paused_until")} AS paused_left, paused_seconds,
    breaker_state, breaker_failures, {sql.seconds("breaker_changed_at")} AS breaker_age"""


def _exists(sql: Sql) -> str:
    return f"""
    SELECT 1 FROM {sql.limits} WHERE limit_key = :limit_key
    UNION ALL SELECT 1 FROM {sql.jobs} WHERE limit_key = :limit_key LIMIT 1"""


def _names(sql: Sql) -> str:
    """Those with limits, and some of the others."""
    return f"""
    SELECT limit_key FROM {sql.limits}
    UNION SELECT limit_key FROM (SELECT limit_key FROM {sql.jobs} WHERE limit_key IS NOT NULL LIMIT 10000) AS live"""


def _lock(sql: Sql) -> str:
    return f"""
    SELECT {limit_columns(sql)}, {sql.epoch("paused_until")} AS paused_until
    FROM {sql.limits} WHERE limit_key = :limit_key {sql.lock(skip=False)}"""


def _set(sql: Sql) -> str:
    """A bucket of another size begins full, and without a breaker none is open."""
    whole = "integer" if sql.postgresql else "INTEGER"
    changed = f"rate_burst IS DISTINCT FROM CAST(:rate_burst AS {whole})"
    gone = f"CAST(:breaker_after AS {whole}) IS NULL"
    return f"""
    UPDATE {sql.limits} SET {_VALUES},
        tokens = CASE WHEN {changed} THEN NULL ELSE tokens END,
        breaker_state = CASE WHEN {gone} THEN 'closed' ELSE breaker_state END,
        breaker_failures = CASE WHEN {gone} THEN 0 ELSE breaker_failures END,
        updated_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _set_pause(sql: Sql) -> str:
    left = sql.number("left")
    return f"""
    UPDATE {sql.limits} SET paused_until = CASE WHEN {left} IS NULL THEN NULL ELSE {sql.after(left)} END,
        paused_from = CASE WHEN :begins = 1 THEN {sql.now} ELSE paused_from END,
        paused_seconds = {sql.number("run")}, pause_reason = CAST(:reason AS text), updated_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _close_breaker(sql: Sql) -> str:
    return f"""
    UPDATE {sql.limits} SET breaker_state = 'closed', breaker_failures = 0, breaker_changed_at = {sql.now}
    WHERE limit_key = :limit_key"""


def _has_parent(sql: Sql) -> str:
    return f"SELECT parent_key FROM {sql.limits} WHERE limit_key = :limit_key"


def _is_parent(sql: Sql) -> str:
    return f"SELECT 1 FROM {sql.limits} WHERE parent_key = :limit_key LIMIT 1"
