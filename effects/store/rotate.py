"""Sealed values: which keys they need, and their rotation to the newest key while everything goes on.

A batch is one short transaction: lock up to 200 values that nobody else holds, open, seal under the first key,
write. A crash leaves a batch done or not done. Running it again goes on with what is left, because what is left is
what the database says is under another key; there is no list of work that could be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from sqlalchemy import Connection, Row

from effects.errors import KeyUnavailable
from effects.job import Job
from effects.keys import KeyRing
from effects.sealing import SealedColumn, reseal_payload
from effects.store.sql import Sql
from effects.store.store import Statement, Store, as_json

if TYPE_CHECKING:
    from effects.app import Effects

BATCH = 200
PASSES_MAX = 10  # each finds what the one before could not lock, or what was sealed meanwhile

Told: TypeAlias = Callable[[str, int], None]


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


_Source: TypeAlias = SealedColumn | _JobPayloads


def sources() -> Iterator[_Source]:
    """Every place with sealed values: live and ended jobs (a dead one may be requeued), then the packages'."""
    yield _JobPayloads("jobs")
    yield _JobPayloads("job_history")
    for entry in sorted(entry_points(group="effects.sealed"), key=lambda entry: entry.name):
        offer: Callable[[], Sequence[SealedColumn]] = entry.load()
        yield from offer()


def count_keys(store: Store, *, quick: bool = False) -> list[KeyCount]:
    """The keys in use, place by place. Reads every row of those tables once.

    Args:
        quick: leave out jobs that succeeded, which nobody will open again; they are most of the history.

    Raises:
        StoreUnavailable: the database is away.
    """
    counts = []
    with store.read() as connection:
        for source in sources():
            if quick and isinstance(source, _JobPayloads) and source.table == "job_history":
                source = replace(source, where="status <> 'succeeded'")  # noqa: PLW2901 - the same place, part of it
            for row in store.all(connection, _count(source)):
                counts.append(KeyCount(source.table, row.key_id, row.found))  # noqa: PERF401 - reads better
    return counts


def rotate(app: Effects, told: Told | None = None) -> Rotation:
    """Seal every value under the first key of EFFECTS_KEYS; safe beside workers, and to kill and run again.

    Values that do not open are left as they are and reported.

    Args:
        told: called after each batch with its place and the number of values that it wrote.

    Raises:
        KeyUnavailable: EFFECTS_KEYS holds no key.
        StoreUnavailable: the database is away; what was written stays.
    """
    if not app.keys.ids:
        raise KeyUnavailable("EFFECTS_KEYS is not set: there is no key to seal with (see `effects keys generate`)")
    newest = app.keys.ids[0]
    rotated, unreadable = 0, {}
    for _ in range(PASSES_MAX):
        written = 0
        for source in sources():
            walk = _Walk(app.store, app.keys, source, newest)
            for count in walk:
                written += count
                if told is not None:
                    told(source.table, count)
            unreadable.update(dict.fromkeys(walk.unreadable))
        rotated += written
        left = [one for one in count_keys(app.store) if one.key_id != newest]
        if sum(one.values for one in left) <= len(unreadable):
            break
    return Rotation(newest, rotated, left, list(unreadable))


class _Walk:
    """One pass over a place, batch by batch, in the order of its primary key."""

    def __init__(self, store: Store, keys: KeyRing, source: _Source, newest: str) -> None:
        self._store, self._keys, self._source, self._newest = store, keys, source, newest
        self.unreadable: list[tuple[str, str]] = []

    def __iter__(self) -> Iterator[int]:
        """The number of values written by each batch.

        It ends at what was the last row when it began: beside somebody who goes on sealing with an old key, it
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
            found = self._store.all(connection, statement, newest=self._newest, until=until, **behind)
        return [row.id for row in found]

    def _write(self, connection: Connection, ids: Sequence[Any]) -> int:
        rows = self._store.all(connection, _lock(self._source), ids=as_json(ids), newest=self._newest)
        written = []
        for row in rows:
            try:
                written.append({"id": row.id, "value": self._reseal(row)})
            except KeyUnavailable:
                self.unreadable.append((self._source.table, str(row.id)))
        if written:
            connection.execute(self._store.statement(_update(self._source)), written)
        return len(written)

    def _reseal(self, row: Row[Any]) -> str | bytes:
        if isinstance(self._source, SealedColumn):
            context: Mapping[str, str] = self._source.context(row)
            return self._keys.reseal(bytes(row.sealed), **context)
        return reseal_payload(self._keys, row.job_type, row.sealed)


def replace_payload(store: Store, job: Job, payload: str) -> None:
    """Write another form of this attempt's payload, behind its fence."""
    with store.single() as connection:
        store.write(connection, _replace, id=job.id, token=job.lease_token, payload=payload)


# -- the statements --------------------------------------------------------------------------------------


def _key_of(source: _Source, sql: Sql) -> str:
    """The key id of a sealed value; NULL where there is none."""
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
        SELECT {source.id_column} AS id FROM {_table(source, sql)}
        WHERE {within} AND {_key_of(source, sql)} <> :newest ORDER BY {source.id_column} LIMIT {BATCH}"""

    return build


@cache
def _lock(source: _Source) -> Statement:
    """Rows that a worker holds now are left to the next pass: we wait for no one, so nobody waits in a ring."""

    def build(sql: Sql) -> str:
        jobs = isinstance(source, _JobPayloads)
        value = sql.json_text(source.column) if jobs else source.column
        wanted = sql.any_of("ids", "int" if jobs else "text")
        more = "".join(f", {column}" for column in source.columns)
        return f"""
        SELECT {source.id_column} AS id, {value} AS sealed{more} FROM {_table(source, sql)}
        WHERE {source.id_column} {wanted} AND {_key_of(source, sql)} <> :newest
        ORDER BY {source.id_column} {sql.lock()}"""

    return build


@cache
def _update(source: _Source) -> Statement:
    def build(sql: Sql) -> str:
        jobs = isinstance(source, _JobPayloads)
        value = "CAST(:value AS jsonb)" if jobs and sql.postgresql else ":value"
        return f"UPDATE {_table(source, sql)} SET {source.column} = {value} WHERE {source.id_column} = :id"

    return build


def _table(source: _Source, sql: Sql) -> str:
    return str(getattr(sql, source.table))


def _replace(sql: Sql) -> str:
    value = "CAST(:payload AS jsonb)" if sql.postgresql else ":payload"
    return f"UPDATE {sql.jobs} SET payload = {value} WHERE id = :id AND lease_token = :token"
