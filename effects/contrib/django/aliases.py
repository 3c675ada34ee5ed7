"""A database of Django's settings, as the URL that an Effects takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from effects.errors import ConfigurationError
from effects.store.db.urls import file_of

# Options of Django and of its driver; all others are libpq's.
_NOT_LIBPQ = frozenset(
    {"assume_role", "client_encoding", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold",
     "server_side_binding"}
)  # fmt: skip


def url_of(alias: str, settings: Mapping[str, Any]) -> URL:
    """
    Args:
        alias: for messages.
        settings: one of `DATABASES`.

    Raises:
        ConfigurationError: it is neither SQLite nor PostgreSQL.
    """
    backend = str(settings.get("ENGINE", "")).rpartition(".")[2]
    if backend in ("sqlite3", "spatialite"):
        return _sqlite(str(settings["NAME"]))
    if backend in ("postgresql", "postgis"):
        return _postgresql(settings)
    raise ConfigurationError(
        f"EFFECTS: the database {alias!r} is {backend or 'not set'}; effects works on sqlite and postgresql. Name "
        'another of DATABASES by EFFECTS = {"alias": …}'
    )


def is_in_memory(url: URL) -> bool:
    """Whether only Django's connection reaches it."""
    return url.get_backend_name() == "sqlite" and file_of(url) is None


def refuse_memory(alias: str) -> ConfigurationError:
    """For what needs connections of its own, as a worker does."""
    return ConfigurationError(
        f"the database {alias!r} is in memory, which no worker can share. In tests, give it a file: "
        f'DATABASES["{alias}"]["TEST"] = {{"NAME": BASE_DIR / "test.sqlite3"}}'
    )


def _sqlite(name: str) -> URL:
    if name == ":memory:" or "mode=memory" in name:
        return URL.create("sqlite", database=name.partition("?")[0], query={"mode": "memory", "uri": "true"})
    return URL.create("sqlite", database=str(Path(name).absolute()))


def _postgresql(settings: Mapping[str, Any]) -> URL:
    own = {name: value for name, value in settings.get("OPTIONS", {}).items() if name not in _NOT_LIBPQ}
    query = {**own, "host": settings.get("HOST"), "port": settings.get("PORT")}
    return URL.create(
        "postgresql",
        username=settings.get("USER") or None,
        password=settings.get("PASSWORD") or None,
        database=settings.get("NAME") or None,
        query={name: str(value) for name, value in query.items() if value},
    )
