"""PostgreSQL databases that go from test to test: emptied, which takes a tenth of dropping one and cloning another.

A session of the pool's stays in each: a new one would first read the catalogue, which takes longer than all its work.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from sqlalchemy.engine import make_url

from tests.support.databases import execute

# Whatever a test may alter besides rows. Clones of one template have the same object ids.
_SHAPE = """
    SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
        SELECT concat_ws(' ', 'class', oid, relname, relnamespace, relkind, relowner, relacl, reloptions) AS part
            FROM pg_class WHERE oid >= 16384 AND relkind <> 't'
        UNION ALL SELECT concat_ws(' ', 'attribute', attrelid, attname, atttypid, attnotnull, attacl)
            FROM pg_attribute WHERE attrelid >= 16384 AND attnum > 0
        UNION ALL SELECT concat_ws(' ', 'constraint', oid, conname, convalidated) FROM pg_constraint WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', 'default', oid, adbin) FROM pg_attrdef WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', 'function', oid, proname, prosrc, proacl) FROM pg_proc WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', 'trigger', oid, tgname, tgenabled) FROM pg_trigger WHERE oid >= 16384
        UNION ALL SELECT concat_ws(' ', 'index', indexrelid, indisvalid) FROM pg_index WHERE indexrelid >= 16384
        UNION ALL SELECT concat_ws(' ', 'schema', oid, nspname, nspacl)
            FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
        UNION ALL SELECT concat_ws(' ', 'statistics', count(*)) FROM pg_statistic WHERE starelid >= 16384
        UNION ALL SELECT concat_ws(' ', 'large objects', count(*)) FROM pg_largeobject_metadata
        UNION ALL SELECT concat_ws(' ', 'prepared', count(*))
            FROM pg_prepared_xacts WHERE database = current_database()
        UNION ALL SELECT concat_ws(' ', 'setting', setrole, setconfig)
            FROM pg_db_role_setting JOIN pg_database ON setdatabase = pg_database.oid
            WHERE datname = current_database()
    ) AS parts"""
_WITH_ROWS = """
    SELECT oid::regclass::text FROM pg_class
    WHERE relkind = 'r' AND oid >= 16384 AND pg_relation_size(oid) > 0"""
_END_OTHERS = """
    SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()"""
_RESTART_SEQUENCES = "SELECT count(setval(seqrelid::regclass, seqstart, false)) FROM pg_sequence"


class DatabasePool:
    """Clones of one template. Not for a database whose tests set it up otherwise, nor for one behind a pooler."""

    def __init__(self, server: str, template: str) -> None:
        self._server, self._template = server, template
        self._free: list[str] = []
        self._sessions: dict[str, psycopg.Connection] = {}
        self._fresh: tuple[str, frozenset[str], str] | None = None

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database with our tables; for the next test emptied, or dropped if it was altered."""
        name = self._free.pop() if self._free else self._clone()
        yield make_url(self._server).set(drivername="postgresql", database=name).render_as_string(False)
        with suppress(psycopg.Error):
            if self._emptied(name):
                self._free.append(name)
                return
        self._drop(name)

    def close(self) -> None:
        while self._free:
            self._drop(self._free.pop())

    def _clone(self) -> str:
        name = f"effects_test_{uuid.uuid4().hex}"
        execute(self._server, f'CREATE DATABASE "{name}" TEMPLATE "{self._template}"')
        if self._fresh is None:
            self._fresh = self._look(self._session(name))
        return name

    def _drop(self, name: str) -> None:
        if (session := self._sessions.pop(name, None)) is not None:
            session.close()
        execute(self._server, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _emptied(self, name: str) -> bool:
        """Remove what a test wrote; whether the database is as it was after cloning."""
        assert self._fresh is not None
        session = self._session(name)
        session.execute(_END_OTHERS)
        written = self._tables_with_rows(session) - self._fresh[1]
        if written:
            session.execute(f"TRUNCATE {', '.join(sorted(written))} CASCADE".encode())
        session.execute(_RESTART_SEQUENCES)
        return self._look(session) == self._fresh

    def _look(self, connection: psycopg.Connection) -> tuple[str, frozenset[str], str]:
        tables = self._tables_with_rows(connection)
        contents = [str(connection.execute(f"SELECT * FROM {name}".encode()).fetchall()) for name in sorted(tables)]
        return self._value(connection, _SHAPE), tables, "".join(contents)

    @staticmethod
    def _tables_with_rows(connection: psycopg.Connection) -> frozenset[str]:
        return frozenset(name for (name,) in connection.execute(_WITH_ROWS))

    @staticmethod
    def _value(connection: psycopg.Connection, query: str) -> str:
        row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return str(row[0])

    def _session(self, name: str) -> psycopg.Connection:
        """That of this database; another one where a test has ended it."""
        session = self._sessions.get(name)
        if session is not None and not self._is_alive(session):
            session = None
        if session is None:
            plain = make_url(self._server).set(drivername="postgresql", database=name)
            session = psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True)
            self._sessions[name] = session
        return session

    @staticmethod
    def _is_alive(session: psycopg.Connection) -> bool:
        try:
            session.execute("SELECT 1")
        except psycopg.Error:
            session.close()
            return False
        return True
