"""The engine that an app brings: taken as it is, or replaced by one of ours to the same URL."""

from __future__ import annotations

import sys
from typing import Any

from sqlalchemy import Engine

from effects.errors import ConfigurationError
from effects.store.db.urls import database_url
from effects.text.wording import described

_DRIVERS = ("psycopg", "pysqlite")


def callers_engine(engine: Any) -> Engine:
    """The engine that the app's sessions use: of an asynchronous one, the one inside.

    Raises:
        ConfigurationError: it is no engine of SQLAlchemy, or of another database.
    """
    asyncio = sys.modules.get("sqlalchemy.ext.asyncio")
    if asyncio is not None and isinstance(engine, asyncio.AsyncEngine):
        engine = engine.sync_engine
    if not isinstance(engine, Engine):
        raise ConfigurationError(f"engine is {described(engine)}; give sqlalchemy.create_engine(…), or a URL")
    if engine.dialect.name not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"engine is for {engine.dialect.name}; effects works on sqlite and postgresql")
    return engine


def can_carry(engine: Engine) -> bool:
    """Whether our own statements can go through it; else they need an engine of ours to its URL."""
    return engine.driver in _DRIVERS and not engine.dialect.is_async


def url_of(engine: Engine) -> str | None:
    """Its URL as a setting; None where it names no database that others could reach, as one in memory."""
    text = engine.url.render_as_string(hide_password=False)
    try:
        database_url(text)
    except ConfigurationError:
        return None
    return text
