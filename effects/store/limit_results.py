"""What ended attempts mean for their limit keys: pauses, tokens given back, a breaker that opens or closes.

In the transaction that records the outcomes, behind the same fence. Rows are locked in the order of their keys, and
only those that change: a batch of successes under a closed breaker writes nothing here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Row

from effects.limits import Breaker, Circuit, Rest, Result, fold_results, rest
from effects.settlement import MESSAGE_CHARS_MAX, Settlement
from effects.store.limits import limit_columns
from effects.store.sql import Sql
from effects.store.store import Store, as_json

_ANSWERED = ("succeeded", "refused")  # the peer is there, whatever it said
_FAILED = ("failed", "unknown", "timed_out")  # a lost worker says nothing of the peer


class _News(msgspec.Struct):
    """What one batch has to say about one key."""

    pause_seconds: float = 0.0
    reason: str | None = None
    parent_pause_seconds: float = 0.0  # of the key above; of this one where there is none
    parent_reason: str | None = None
    unused: int = 0  # attempts that were claimed and not begun
    results: list[tuple[float, Result]] = []

    def pause(self, seconds: float, reason: str | None) -> None:
        if seconds > self.pause_seconds:
            self.pause_seconds, self.reason = seconds, reason

    def merge(self, other: _News) -> None:
        """What is said of a child holds for its parent too; pauses do not, unless they are the parent's."""
        self.unused += other.unused
        self.results = self.results + other.results
        self.pause(other.parent_pause_seconds, other.parent_reason)


class _Change(msgspec.Struct):
    limit_key: str
    lasts: float | None
    run: float
    begins: bool
    rested: bool
    reason: str | None
    tokens: float | None
    state: str
    failures: int
    turned: bool


_CHANGE = {
    "limit_key": "text", "lasts": "num", "run": "num", "begins": "bool", "rested": "bool", "reason": "text",
    "tokens": "num", "state": "text", "failures": "int", "turned": "bool",
}  # fmt: skip


def write_results(store: Store, connection: Connection, accepted: Sequence[Settlement], now: float) -> None:
    """Record what these settlements say about their keys. `now` is the monotonic time they are aged by."""
    news = _news(accepted, now)
    if not news:
        return
    paused = sorted(key for key, one in news.items() if one.pause_seconds > 0 or one.parent_pause_seconds > 0)
    if paused:
        store.write(connection, _add_missing, rows=as_json([{"limit_key": key} for key in paused]))
    known = store.all(connection, _read, keys=as_json(sorted(news)))
    _tell_parents(news, known)
    touched = sorted(row.limit_key for row in known if _concerns(row, news.get(row.limit_key)))
    if touched:
        rows = store.all(connection, _lock, keys=as_json(touched))
        changes = [_change(row, news[row.limit_key]) for row in rows]
        store.write(connection, _write, rows=as_json(changes))


def _news(accepted: Sequence[Settlement], now: float) -> dict[str, _News]:
    news: dict[str, _News] = {}
    for one in accepted:
        if one.job.limit_key is None:
            continue
        of_key = news.setdefault(one.job.limit_key, _News())
        if not one.pause_parent:
            of_key.pause(one.pause_seconds, one.message)
        elif one.pause_seconds > of_key.parent_pause_seconds:
            of_key.parent_pause_seconds, of_key.parent_reason = one.pause_seconds, one.message
        of_key.unused += not one.outcome
        if one.ended_at_monotonic and one.outcome in _ANSWERED + _FAILED:  # it was performed
            age = max(0.0, now - one.ended_at_monotonic)
            result = Result(one.outcome in _ANSWERED, age + one.duration_seconds)
            of_key.results = [*of_key.results, (-age, result)]
    return news


def _tell_parents(news: dict[str, _News], known: Sequence[Row[Any]]) -> None:
    for row in known:
        if row.limit_key not in news:
            continue
        of_key = news[row.limit_key]
        if row.parent_key is not None:
            news.setdefault(row.parent_key, _News()).merge(of_key)
        else:
            of_key.pause(of_key.parent_pause_seconds, of_key.parent_reason)


def _concerns(row: Row[Any], news: _News | None) -> bool:
    if news is None:
        return False
    if news.pause_seconds > 0 or (news.unused and row.rate_tokens is not None):
        return True
    if row.breaker_after is None or not news.results:
        return False
    healthy = row.breaker_state == "closed" and row.breaker_failures == 0
    return not (healthy and all(result.answered for _, result in news.results))


def _change(row: Row[Any], news: _News) -> _Change:
    resting = Rest(row.paused_left, row.paused_seconds)
    reason, rested = None, False
    if news.pause_seconds > 0:
        resting, reason, rested = rest(resting, news.pause_seconds), news.reason, True
    before = Circuit(row.breaker_state == "open", row.breaker_failures, row.breaker_age or 0.0)
    circuit = before
    if row.breaker_after is not None:
        breaker = Breaker(row.breaker_after, row.breaker_seconds)
        circuit = fold_results(before, [result for _, result in sorted(news.results)], breaker)
        if circuit.open and circuit != before:
            begins = resting.begins_run
            resting, rested = rest(resting, breaker.seconds), True
            resting = resting._replace(begins_run=begins or resting.begins_run)
            reason = f"the breaker opened after {circuit.failures} failures in a row"
    tokens = row.tokens
    if row.rate_tokens is not None and tokens is not None:
        tokens = min(float(row.rate_burst), tokens + news.unused)
    return _Change(
        limit_key=row.limit_key, lasts=resting.left_seconds, run=resting.run_seconds, begins=resting.begins_run,
        rested=rested, reason=reason[:MESSAGE_CHARS_MAX] if reason else None, tokens=tokens,
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
        paused_until = CASE WHEN r.rested THEN {sql.after("r.lasts")} ELSE paused_until END,
        paused_from = CASE WHEN r.rested AND r.begins THEN {sql.now} ELSE paused_from END,
        paused_seconds = CASE WHEN r.rested THEN r.run ELSE paused_seconds END,
        pause_reason = CASE WHEN r.rested THEN r.reason ELSE pause_reason END,
        tokens = r.tokens, breaker_state = r.state, breaker_failures = r.failures,
        breaker_changed_at = CASE WHEN r.turned THEN {sql.now} ELSE breaker_changed_at END, updated_at = {sql.now}
    FROM {sql.rows("rows", _CHANGE)} AS r WHERE {name}.limit_key = r.limit_key"""
