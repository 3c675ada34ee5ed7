"""Databases to read from: none of our own tables, and no prepared statements, whose types would be remembered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.support import databases


@pytest.fixture(scope="session")
def postgresql_engine(postgresql_server: str) -> Iterator[sa.Engine]:
    with databases.postgresql_database(postgresql_server) as url:
        address = url.replace("postgresql://", "postgresql+psycopg://")
        engine = sa.create_engine(address, connect_args={"prepare_threshold": None})
        yield engine
        engine.dispose()


@pytest.fixture
def postgresql(postgresql_engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that is rolled back."""
    with postgresql_engine.connect() as connection:
        yield connection
