"""What ended attempts mean for their limit keys: pauses, tokens given back, a breaker that opens or closes.

In the transaction that records the outcomes, behind the same fence. Rows are locked in the order of their keys, and
only those that change: a batch of successes under a closed breaker writes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.limits import Breaker, Circuit, PauseState, Result, extend_pause, fold_results, outlasts
from effects.model.settlement import MESSAGE_CHARS_MAX, Settlement
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.key_limits import rate_of
from effects.store.limits.rows import limit_columns

_ANSWERED = ("succeeded", "refused")  # the peer responded, whatever its response
_FAILED = ("failed", "unknown", "timed_out")  # a lost worker is no evidence about the peer


class _BatchSummary(msgspec.Struct):
    """What one batch means for one key."""

    pause_seconds: float = 0.0
    reason: str | None = None
    parent_pause_seconds: float = 0.0  # of the parent key; of this key if it has no parent
    parent_reason: str | None = None
    unused: int = 0  # attempts that were claimed and not begun
    results: list[tuple[float, Result]] = []

    def pause(self, seconds: float, reason: str | None) -> None:
        if seconds > self.pause_seconds:
            self.pause_seconds, self.reason = seconds, reason

    def add_child(self, child: _BatchSummary) -> None:
        """Add a child's results to its parent's; its pauses only where they are the parent's."""
        self.unused += child.unused
        self.results = self.results + child.results
        self.pause(child.parent_pause_seconds, child.parent_reason)


class _Change(msgspec.Struct):
    limit_key: str
    lasts: float | None
    run: float
    begins: bool
    pauses: bool
    reason: str | None
    tokens: float | None
    state: str
    failures: int
    turned: bool


def write_results(store: Store, connection: Connection, accepted: Sequence[Settlement], now: float) -> None:
    """Record the results of settlements for their limit keys. `now` is monotonic and measures their age."""
    summaries = _summaries(accepted, now)
    if not summaries:
        return
    paused = sorted(
        key for key, summary in summaries.items() if summary.pause_seconds > 0 or summary.parent_pause_seconds > 0
    )
    if paused:
        store.write(connection, _add_missing, rows=as_json([{"limit_key": key} for key in paused]))
    limits = store.all(connection, _read, keys=as_json(sorted(summaries)))
    _add_to_parents(summaries, limits)
    touched = sorted(row.limit_key for row in limits if _concerns(row, summaries.get(row.limit_key)))
    if touched:
        rows = store.all(connection, _lock, keys=as_json(touched))
        changes = [_change(row, summaries[row.limit_key]) for row in rows]
        store.write(connection, _write, rows=as_json(changes))


def _summaries(accepted: Sequence[Settlement], now: float) -> dict[str, _BatchSummary]:
    summaries: dict[str, _BatchSummary] = {}
    for settlement in accepted:
        if settlement.job.limit_key is None:
            continue
        summary = summaries.setdefault(settlement.job.limit_key, _BatchSummary())
        if not settlement.pause_parent:
            summary.pause(settlement.pause_seconds, settlement.message)
        elif settlement.pause_seconds > summary.parent_pause_seconds:
            summary.parent_pause_seconds, summary.parent_reason = settlement.pause_seconds, settlement.message
        summary.unused += settlement.refund_attempt and not settlement.outcome  # a job that waited has taken no token
        if settlement.ended_at_monotonic and settlement.outcome in _ANSWERED + _FAILED:  # it was performed
            age = max(0.0, now - settlement.ended_at_monotonic)
            result = Result(settlement.outcome in _ANSWERED, age + settlement.duration_seconds)
            summary.results = [*summary.results, (-age, result)]
    return summaries


def _add_to_parents(summaries: dict[str, _BatchSummary], limits: Sequence[Row[Any]]) -> None:
    for row in limits:
        if row.limit_key not in summaries:
            continue
        summary = summaries[row.limit_key]
        if row.parent_key is not None:
            summaries.setdefault(row.parent_key, _BatchSummary()).add_child(summary)
        else:
            summary.pause(summary.parent_pause_seconds, summary.parent_reason)


def _concerns(row: Row[Any], summary: _BatchSummary | None) -> bool:
    if summary is None:
        return False
    if summary.pause_seconds > 0 or (summary.unused and row.rate_tokens is not None):
        return True
    if row.breaker_after is None or not summary.results:
        return False
    healthy = row.breaker_state == "closed" and row.breaker_failures == 0
    return not (healthy and all(result.answered for _, result in summary.results))


def _change(row: Row[Any], summary: _BatchSummary) -> _Change:
    paused = PauseState(row.paused_left, row.paused_seconds)
    reason, pauses = None, False
    if outlasts(summary.pause_seconds, paused):
        paused, reason, pauses = extend_pause(paused, summary.pause_seconds), summary.reason, True
    before = Circuit(row.breaker_state == "open", row.breaker_failures, row.breaker_age or 0.0)
    circuit = before
    if row.breaker_after is not None:
        breaker = Breaker(row.breaker_after, row.breaker_seconds)
        circuit = fold_results(before, [result for _, result in sorted(summary.results)], breaker)
        if circuit.open and circuit != before and outlasts(breaker.seconds, paused):
            begins = paused.begins_run
            paused, pauses = extend_pause(paused, breaker.seconds), True
            paused = paused._replace(begins_run=begins or paused.begins_run)
            reason = f"the breaker opened after {circuit.failures} failures in a row"
    tokens, rate = row.tokens, rate_of(row)
    if rate is not None and tokens is not None:
        tokens = min(float(rate.size), tokens + summary.unused)
    return _Change(
        limit_key=row.limit_key, lasts=paused.left_seconds, run=paused.run_seconds, begins=paused.begins_run,
        pauses=pauses, reason=reason[:MESSAGE_CHARS_MAX] if reason else None, tokens=tokens,
        state="open" if circuit.open else "closed", failures=circuit.failures, turned=circuit != before,
    )  # fmt: skip


# -- the statements ----------------------------------------------------------------------------------------


def _add_missing(sql: Sql) -> str:
    return f"""
    INSERT INTO {sql.limits} (limit_key, updated_at)
    SELECT r.limit_key, {sql.now} FROM {sql.rows("rows", {"limit_key": "text"})} AS r WHERE true
    ON CONFLICT DO NOTHING"""


def _read(sql: Sql) -> str:
    """These keys and their parents, without a lock."""
    return f"""
    SELECT limit_key, parent_key, rate_tokens, breaker_after, breaker_state, breaker_failures FROM {sql.limits}
    WHERE limit_key {sql.any_of("keys")}
    OR limit_key IN (SELECT parent_key FROM {sql.limits} WHERE limit_key {sql.any_of("keys")})"""


def _lock(sql: Sql) -> str:
    return f"""
    SELECT {limit_columns(sql)} FROM {sql.limits}
    WHERE limit_key {sql.any_of("keys")} ORDER BY limit_key {sql.lock(skip=False)}"""


def _write(sql: Sql) -> str:
    name = sql.limits
    return f"""
    UPDATE {name} SET
        paused_until = CASE WHEN r.pauses THEN {sql.after("r.lasts")} ELSE paused_until END,
        paused_from = CASE WHEN r.pauses AND r.begins THEN {sql.now} ELSE paused_from END,
        paused_seconds = CASE WHEN r.pauses THEN r.run ELSE paused_seconds END,
        pause_reason = CASE WHEN r.pauses THEN r.reason ELSE pause_reason END,
        tokens = r.tokens, breaker_state = r.state, breaker_failures = r.failures,
        breaker_changed_at = CASE WHEN r.turned THEN {sql.now} ELSE breaker_changed_at END, updated_at = {sql.now}
    FROM {sql.rows("rows", _Change)} AS r WHERE {name}.limit_key = r.limit_key"""
