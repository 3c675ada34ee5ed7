"""PostgreSQL's dialect for connections that carry our statements alone: what it must know, the login has told."""

from __future__ import annotations

from typing import Any, NoReturn

from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg


class LoginDialect(PGDialect_psycopg):
    """SQLAlchemy's own for psycopg, without its statements at the first connection of a process.

    What it leaves unknown, the default schema and isolation level, is for reflection and for other isolation levels.
    """

    supports_statement_cache = True

    def _get_server_version_info(self, connection: Connection) -> tuple[int, int]:
        major, minor = divmod(_info(connection).server_version, 10_000)
        return major, minor

    def _get_default_schema_name(self, connection: Connection) -> str:
        raise NotImplementedError  # SQLAlchemy's word for "not known"

    def get_default_isolation_level(self, dbapi_conn: Any) -> NoReturn:
        raise NotImplementedError

    def _set_backslash_escapes(self, connection: Connection) -> None:
        self._backslash_escapes = _info(connection).parameter_status("standard_conforming_strings") == "off"


def _info(connection: Connection) -> Any:
    driver: Any = connection.connection.driver_connection
    return driver.info
