"""What ended attempts mean for their limit keys: pauses, tokens given back, a breaker that opens or closes.

In the transaction that records the outcomes, behind the same fence. Rows are locked in the order of their keys, and
only those that change: a batch of successes under a closed breaker writes nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.model.limits import Breaker, Circuit, PauseState, Result, extend_pause, fold_results, outlasts
from effects.model.settlement import MESSAGE_CHARS_MAX, Settlement
from effects.store.db.sql import Sql
from effects.store.db.store import Store, as_json
from effects.store.limits.key_limits import limit_columns, rate_of

_ANSWERED = ("succeeded", "refused")  # the peer responded, whatever its response
_FAILED = ("failed", "unknown", "timed_out")  # a lost worker is no evidence about the peer


class _BatchSummary(msgspec.Struct):
    """What one batch means for one key."""

    pause_seconds: float = 0.0
    reason: str | None = None
    parent_pause_seconds: float = 0.0  # of the parent key; of this key if it has no parent
    parent_reason: str | None = None
    lasting: Settlement | None = None  # the attempt that met a fault which lasts: see `Pause.then`
    parent_lasting: Settlement | None = None
    unused: int = 0  # attempts that were claimed and not begun
    results: list[tuple[float, Result]] = []

    @property
    def pauses(self) -> bool:
        return bool(self.pause_seconds > 0 or self.parent_pause_seconds > 0 or self.lasting or self.parent_lasting)

    def pause(self, seconds: float, reason: str | None) -> None:
        if seconds > self.pause_seconds:
            self.pause_seconds, self.reason = seconds, reason

    def add_child(self, child: _BatchSummary) -> None:
        """Add a child's results to its parent's; its pauses only where they are the parent's."""
        self.unused += child.unused
        self.results = self.results + child.results
        self.lasting = _later(self.lasting, child.parent_lasting)
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
    paused = sorted(key for key, summary in summaries.items() if summary.pauses)
    if paused:
        store.write(connection, _add_missing, rows=as_json([{"limit_key": key} for key in paused]))
    limits = store.all(connection, _read, keys=as_json(sorted(summaries)))
    _add_to_parents(summaries, limits)
    touched = sorted(row.limit_key for row in limits if _concerns(row, summaries.get(row.limit_key)))
    if touched:
        rows = store.all(connection, _lock, keys=as_json(touched))
        changes = [_change(row, summaries[row.limit_key], now) for row in rows]
        store.write(connection, _write, rows=as_json(changes))


def _summaries(accepted: Sequence[Settlement], now: float) -> dict[str, _BatchSummary]:
    summaries: dict[str, _BatchSummary] = {}
    for settlement in accepted:
        if settlement.job.limit_key is None:
            continue
        summary = summaries.setdefault(settlement.job.limit_key, _BatchSummary())
        if settlement.pause_then and settlement.pause_parent:
            summary.parent_lasting = _later(summary.parent_lasting, settlement)
        elif settlement.pause_then:
            summary.lasting = _later(summary.lasting, settlement)
        elif not settlement.pause_parent:
            summary.pause(settlement.pause_seconds, settlement.message)
        elif settlement.pause_seconds > summary.parent_pause_seconds:
            summary.parent_pause_seconds, summary.parent_reason = settlement.pause_seconds, settlement.message
        summary.unused += settlement.refund_attempt and not settlement.outcome  # a job that waited has taken no token
        if settlement.ended_at_monotonic and settlement.outcome in _ANSWERED + _FAILED:  # it was performed
            summary.results = [*summary.results, _result(settlement, now)]
    return summaries


def _later(first: Settlement | None, second: Settlement | None) -> Settlement | None:
    """The one that started later: what began before a rest tells nothing of what is now."""
    return max((first, second), key=lambda each: each.ended_at_monotonic - each.duration_seconds if each else -math.inf)


def _result(settlement: Settlement, now: float) -> tuple[float, Result]:
    age = max(0.0, now - settlement.ended_at_monotonic)
    return -age, Result(settlement.outcome in _ANSWERED, age + settlement.duration_seconds)


def _add_to_parents(summaries: dict[str, _BatchSummary], limits: Sequence[Row[Any]]) -> None:
    for row in limits:
        if row.limit_key not in summaries:
            continue
        summary = summaries[row.limit_key]
        if row.parent_key is not None:
            summaries.setdefault(row.parent_key, _BatchSummary()).add_child(summary)
        else:
            summary.pause(summary.parent_pause_seconds, summary.parent_reason)
            summary.lasting = _later(summary.lasting, summary.parent_lasting)


def _concerns(row: Row[Any], summary: _BatchSummary | None) -> bool:
    if summary is None:
        return False
    if summary.pause_seconds > 0 or summary.lasting or (summary.unused and row.rate_tokens is not None):
        return True
    if not summary.results or (row.breaker_after is None and row.breaker_state == "closed"):
        return False
    healthy = row.breaker_state == "closed" and row.breaker_failures == 0
    return not (healthy and all(result.answered for _, result in summary.results))


def _change(row: Row[Any], summary: _BatchSummary, now: float) -> _Change:
    paused = PauseState(row.paused_left, row.paused_seconds)
    reason, pauses = None, False
    if outlasts(summary.pause_seconds, paused):
        paused, reason, pauses = extend_pause(paused, summary.pause_seconds), summary.reason, True
    before = Circuit(row.breaker_state == "open", row.breaker_failures, row.breaker_age or 0.0)
    circuit, seconds, why = _circuit(row, summary, before, now)
    if circuit.open and circuit != before and outlasts(seconds, paused):
        begins = paused.begins_run
        paused, pauses, reason = extend_pause(paused, seconds), True, why
        paused = paused._replace(begins_run=begins or paused.begins_run)
    tokens, rate = row.tokens, rate_of(row)
    if rate is not None and tokens is not None:
        tokens = min(float(rate.size), tokens + summary.unused)
    return _Change(
        limit_key=row.limit_key, lasts=paused.left_seconds, run=paused.run_seconds, begins=paused.begins_run,
        pauses=pauses, reason=reason[:MESSAGE_CHARS_MAX] if reason else None, tokens=tokens,
        state="open" if circuit.open else "closed", failures=circuit.failures, turned=circuit != before,
    )  # fmt: skip


def _circuit(row: Row[Any], summary: _BatchSummary, before: Circuit, now: float) -> tuple[Circuit, float, str | None]:
    """The breaker's state after the batch; for how long, and why, the key rests if that has opened it."""
    breaker = Breaker(row.breaker_after, row.breaker_seconds) if row.breaker_after is not None else None
    results = summary.results
    lasting = (
        None if before.open and (row.paused_left or 0.0) > 0 else summary.lasting
    )  # it was claimed before the rest
    if breaker is None:  # open by a fault that lasts: other failures tell nothing of that one
        results = [(age, result) for age, result in results if result.answered]
    if lasting is not None:
        results, breaker = [*results, _result(lasting, now)], Breaker(1, lasting.pause_seconds)
    circuit = fold_results(before, [result for _, result in sorted(results)], breaker or Breaker(1, 0.0))
    if lasting is not None:
        rests = (lasting.pause_seconds, *lasting.pause_then)
        return circuit, rests[min(circuit.failures if before.open else 1, len(rests)) - 1], lasting.message
    seconds = 0.0 if breaker is None else breaker.seconds
    return circuit, seconds, f"the breaker opened after {circuit.failures} failures in a row"


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
