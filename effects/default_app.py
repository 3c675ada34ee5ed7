"""Which Effects a call means: the one it was given, that of the session's engine, or the process's own."""

from __future__ import annotations

import gc
import os
import threading

from sqlalchemy import Engine, text

from effects.app import Effects
from effects.errors import EnqueueError
from effects.sessions.constructed import those_on
from effects.sessions.joining import AnySession, engines_of, joined
from effects.settings import DEFAULT_DATABASE_URL

_default: Effects | None = None
_default_lock = threading.Lock()


def app_of(effects: Effects | None, session: AnySession | None = None) -> Effects:
    """Find the Effects that a call means.

    Args:
        effects: what the call was given; it wins. That its database is the session's is checked when it joins it.
        session: else the one Effects that was made for the session's engine; else the process's own, if that
            is the session's database.

    Raises:
        EnqueueError: it is no Effects; several have the session's engine; or none has its database.
    """
    if effects is not None:
        if not isinstance(effects, Effects):
            raise EnqueueError(f"effects is a {type(effects).__name__}; give an Effects, or none for the process's own")
        return effects
    if session is None:
        return default()
    for engine in engines_of(session):
        if (app := _app_on(engine, session)) is not None:
            return app
    return _default_of(session)


def _app_on(engine: Engine, session: AnySession) -> Effects | None:
    """The Effects that was made for an engine, if there is one."""
    if len(those_on(engine, Effects)) > 1:
        gc.collect()  # one that is no longer held is no candidate
    apps = those_on(engine, Effects)
    return _by_schema(apps, session) if len(apps) > 1 else next(iter(apps), None)


def _by_schema(apps: list[Effects], session: AnySession) -> Effects:
    """Of several on one engine: the one in whose schema the session works, else the process's own if it is of them."""
    by_schema = {app.store.schema: app for app in apps}
    if len(by_schema) == len(apps):
        schema = _schema(session, apps[0])
        if schema in by_schema and schema is not None:
            return by_schema[schema]
        if _default in apps:
            return default()
    raise EnqueueError(f"{len(apps)} Effects were made for the engine of this session: pass effects= with one of them")


def _schema(session: AnySession, app: Effects) -> str | None:
    if not app.store.is_postgresql:
        return None
    with joined(session, app.database) as connection:
        schema: str | None = connection.execute(text("SELECT current_schema()")).scalar()
    return schema


def _default_of(session: AnySession) -> Effects:
    """The process's own, if its database is the session's."""
    app = default()
    try:
        with joined(session, app.database):
            pass
    except EnqueueError as error:
        if os.environ.get("EFFECTS_DATABASE_URL") or app.settings.database_url != DEFAULT_DATABASE_URL:
            raise
        raise EnqueueError(f"{error}. EFFECTS_DATABASE_URL is not set") from None
    return app


def default() -> Effects:
    """The process's Effects: the one given to `set_default`, else one built from the environment now."""
    global _default  # noqa: PLW0603 - the one global there is
    with _default_lock:
        if _default is None:
            _default = Effects()
        return _default


def set_default(effects: Effects | None) -> None:
    """Make this the process's Effects; None forgets it.

    Args:
        effects: the Effects; None for none.
    """
    replace_default(effects)


def replace_default(effects: Effects | None) -> Effects | None:
    """Set the default and return the previous one, or None."""
    global _default
    with _default_lock:
        before, _default = _default, effects
        return before
