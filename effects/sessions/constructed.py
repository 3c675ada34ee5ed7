"""Every Effects of this process that is still in use: the engine of a session leads to its own."""

from __future__ import annotations

import weakref
from typing import Protocol, TypeVar

from sqlalchemy import Engine

from effects.sessions.databases import CallersDatabase


class HasDatabase(Protocol):
    """An Effects, which imports this module."""

    database: CallersDatabase
    disposed: bool


App = TypeVar("App", bound=HasDatabase)
_constructed: weakref.WeakSet[HasDatabase] = weakref.WeakSet()


def register(app: HasDatabase) -> None:
    """Remember an Effects for as long as it lives."""
    _constructed.add(app)


def living(kind: type[App]) -> list[App]:
    """Each Effects that was not disposed of."""
    return [app for app in list(_constructed) if isinstance(app, kind) and not app.disposed]


def those_on(engine: Engine, kind: type[App]) -> list[App]:
    """Each Effects that was made for this engine and was not disposed of."""
    return [app for app in living(kind) if app.database.has_engine(engine)]
