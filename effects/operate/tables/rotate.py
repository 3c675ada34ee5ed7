"""Encrypted values: the keys they need, and online rotation to the newest key.

A batch is one short transaction: lock up to 200 free values, open, seal under the first key,
write. A crash leaves a batch done or not done. Running it again continues with the rest, which is
whatever the database still has under another key; there is no list of work that could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import KeyUnavailable, PayloadInvalid
from effects.keys.encryption import KeyRing
from effects.keys.sealing import SealedColumn, attempt_row, reseal_payload, reseal_text
from effects.kit.importing import entry_points
from effects.store.audit_log import AuditAction, note
from effects.store.db.sql import Sql
from effects.store.db.store import Statement, Store, as_json

BATCH = 200
PASSES_MAX = 10  # each finds what the one before could not lock, or what was sealed meanwhile

_ROTATE = AuditAction("key", "rotate")

OnProgress: TypeAlias = Callable[[str, int], None]


class KeyCount(msgspec.Struct, frozen=True):
    """How many values of one place need one key."""

    place: str
    key_id: str
    values: int


class Rotation(msgspec.Struct, frozen=True):
    """What a rotation did, and what is not under the newest key after it.

    `unreadable` are values that did not open, by their place: their key is not in EFFECTS_KEYS, or they were altered.
    """

    newest: str
    rotated: int
    left: list[KeyCount]
    unreadable: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class _JobPayloads:
    """The sealed fields in the payloads of a table of jobs."""

    table: str
    column: str = "payload"
    id_column: str = "id"
    columns: tuple[str, ...] = ("job_type",)
    where: str = "true"


@dataclass(frozen=True, slots=True)
class _OfAttempts(_JobPayloads):
    """What is kept of attempts, the texts of their exceptions and their results; a job may have several."""

    columns: tuple[str, ...] = ("lease_token",)


_KEPT_OF_ATTEMPTS = (
    ("attempt_log", "error_text", "job_id"), ("attempt_log", "result", "job_id"), ("job_history", "result", "id"),
)  # fmt: skip
_Source: TypeAlias = SealedColumn | _JobPayloads


def sources() -> Iterator[_Source]:
    """Every place with sealed values: live and ended jobs (a dead one may be requeued), then the packages'."""
    yield _JobPayloads("jobs")
    yield _JobPayloads("job_history")
    for table, column, id_column in _KEPT_OF_ATTEMPTS:
        yield _OfAttempts(table, column, id_column, where=f"{column} IS NOT NULL")
    for entry in entry_points("effects.sealed"):
        offer: Callable[[], Sequence[SealedColumn]] = entry.load()
        yield from offer()


def _place(source: _Source) -> str:
    """What people call it: the table, whose results are a place of their own."""
    return f"{source.table}.result" if source.column == "result" else source.table


def count_keys(store: Store, *, quick: bool = False) -> list[KeyCount]:
    """The keys in use, place by place. Reads every row of those tables once.

    Args:
        quick: leave out the longest: succeeded jobs, whose payloads are not opened again, and what is kept of attempts.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    counts = []
    with store.read() as connection:
        for source in sources():
            if quick and isinstance(source, _OfAttempts):
                continue
            if quick and isinstance(source, _JobPayloads) and source.table == "job_history":
                source = replace(source, where="status <> 'succeeded'")  # noqa: PLW2901 - part of the same place
            for row in store.all(connection, _count(source)):
                counts.append(KeyCount(_place(source), row.key_id, row.found))  # noqa: PERF401 - reads better
    return counts


def rotate(
    store: Store, keys: KeyRing, on_progress: OnProgress | None = None, *, actor: str, reason: str | None = None
) -> Rotation:
    """Seal every value under the first key of EFFECTS_KEYS. Safe while workers run, and to kill and repeat.

    Values that do not open are left as they are and reported.

    Args:
        on_progress: called after each batch with its place and the number of values that it wrote.
        actor, reason: who and why, for the audit log. Written as it begins, so that a rotation which is cut short is
            in it too.

    Raises:
        KeyUnavailable: EFFECTS_KEYS holds no key.
        StoreUnavailable: the database is unavailable; committed batches stay.
    """
    if not keys.ids:
        raise KeyUnavailable("EFFECTS_KEYS is not set: there is no key to seal with (see `effects keys generate`)")
    newest = keys.ids[0]
    with store.begin() as connection:
        note(store, connection, _ROTATE, newest, actor=actor, reason=reason)
    rotated, unreadable = 0, {}
    for _ in range(PASSES_MAX):
        written = 0
        for source in sources():
            walk = _Walk(store, keys, source, newest)
            for count in walk:
                written += count
                if on_progress is not None:
                    on_progress(_place(source), count)
            unreadable.update(dict.fromkeys(walk.unreadable))
        rotated += written
        left = [count for count in count_keys(store) if count.key_id != newest]
        if sum(count.values for count in left) <= len(unreadable):
            break
    return Rotation(newest, rotated, left, list(unreadable))


class _Walk:
    """One pass over a place, batch by batch, in the order of its primary key."""

    def __init__(self, store: Store, keys: KeyRing, source: _Source, newest: str) -> None:
        self._store, self._keys, self._source, self._newest = store, keys, source, newest
        self.unreadable: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[int]:
        """The number of values written by each batch.

        It ends at what was the last row when it began: beside someone who continues sealing with an old key, it
        would never end.
        """
        with self._store.read() as connection:
            until = self._store.value(connection, _last(self._source))
        after: Any = None
        while until is not None and (ids := self._next_ids(after, until)):
            after = ids[-1]
            with self._store.begin() as connection:
                written = self._write(connection, ids)
            yield written

    def _next_ids(self, after: Any, until: Any) -> list[Any]:
        behind = {} if after is None else {"after": after}
        statement = _ids(self._source, bool(behind))
        with self._store.read() as connection:
            rows = self._store.all(connection, statement, newest=self._newest, until=until, **behind)
        return [row.id for row in rows]

    def _write(self, connection: Connection, ids: Sequence[Any]) -> int:
        rows = self._store.all(connection, _lock(self._source), ids=as_json(ids), newest=self._newest)
        written = []
        for row in rows:
            try:
                own = {"lease_token": row.lease_token} if isinstance(self._source, _OfAttempts) else {}
                written.append({"id": row.id, "value": self._reseal(row), **own})
            except (KeyUnavailable, PayloadInvalid):
                self.unreadable.append((_place(self._source), str(row.id)))
        if written:
            self._store.write_each(connection, _update(self._source), written)
        return len(written)

    def _reseal(self, row: Row[Any]) -> str | bytes:
        if isinstance(self._source, SealedColumn):
            context: Mapping[str, str] = self._source.context(row)
            return self._keys.reseal(bytes(row.sealed), **context)
        if isinstance(self._source, _OfAttempts):
            return reseal_text(self._keys, row.sealed, attempt_row(row.id, row.lease_token), self._source.column)
        return reseal_payload(self._keys, row.job_type, row.sealed)


# -- the statements --------------------------------------------------------------------------------------


def _key_of(source: _Source, sql: Sql) -> str:
    """The key id of a sealed value, or NULL."""
    column = source.column
    if isinstance(source, _JobPayloads):
        if sql.postgresql:
            return f"{column} #>> '{{$sealed,key}}'"
        return f"CASE WHEN json_valid({column}) THEN {column} ->> '$.\"$sealed\".key' END"
    if sql.postgresql:
        named = f"encode(substring({column} FROM 3 FOR get_byte({column}, 1)), 'escape')"
        return f"CASE WHEN length({column}) > 2 THEN {named} END"
    return f"CAST(substr({column}, 3, unicode(CAST(substr({column}, 2, 1) AS TEXT))) AS TEXT)"


@cache
def _count(source: _Source) -> Statement:
    where = source.where if isinstance(source, _JobPayloads) else "true"

    def build(sql: Sql) -> str:
        return f"""
        SELECT key_id, count(*) AS found FROM (
            SELECT {_key_of(source, sql)} AS key_id FROM {_table(source, sql)} WHERE {where}) AS t
        WHERE key_id IS NOT NULL GROUP BY key_id ORDER BY key_id"""

    return build


@cache
def _last(source: _Source) -> Statement:
    def build(sql: Sql) -> str:
        return f"SELECT max({source.id_column}) FROM {_table(source, sql)}"

    return build


@cache
def _ids(source: _Source, further: bool) -> Statement:
    def build(sql: Sql) -> str:
        behind = f"{source.id_column} > :after AND" if further else ""
        within = f"{behind} {source.id_column} <= :until"
        return f"""
        SELECT DISTINCT {source.id_column} AS id FROM {_table(source, sql)}
        WHERE {within} AND {_key_of(source, sql)} <> :newest ORDER BY {source.id_column} LIMIT {BATCH}"""

    return build


@cache
def _lock(source: _Source) -> Statement:
    """Leave locked rows to the next pass: we never wait for a lock, so we cannot deadlock."""

    def build(sql: Sql) -> str:
        jobs = isinstance(source, _JobPayloads)
        value = sql.json_text(source.column) if jobs else source.column
        chosen = sql.any_of("ids", "int" if jobs else "text")
        more = "".join(f", {column}" for column in source.columns)
        return f"""
        SELECT {source.id_column} AS id, {value} AS sealed{more} FROM {_table(source, sql)}
        WHERE {source.id_column} {chosen} AND {_key_of(source, sql)} <> :newest
        ORDER BY {source.id_column} {sql.lock()}"""

    return build


@cache
def _update(source: _Source) -> Statement:
    def build(sql: Sql) -> str:
        jobs = isinstance(source, _JobPayloads)
        value = "CAST(:value AS jsonb)" if jobs and sql.postgresql else ":value"
        own = " AND lease_token = :lease_token" if isinstance(source, _OfAttempts) else ""
        return f"UPDATE {_table(source, sql)} SET {source.column} = {value} WHERE {source.id_column} = :id{own}"

    return build


def _table(source: _Source, sql: Sql) -> str:
    return str(getattr(sql, source.table))
