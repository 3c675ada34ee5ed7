"""Which Effects a call means: the one it was given, that of the session's engine, or the process's own."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, text

from effects.app.effects import Effects
from effects.errors import ConfigurationError, EnqueueError
from effects.kit.text.wording import described
from effects.settings import DEFAULT_DATABASE_URL
from effects.store.sessions.asynchronous import ALONE, run_in_async
from effects.store.sessions.databases import living, those_on
from effects.store.sessions.joining import AnySession, engines_of, joined

if TYPE_CHECKING:
    from effects.store.sessions.asynchronous import AnyAsyncSession

Result = TypeVar("Result")

_default: Effects | None = None
_of_environment: Effects | None = None
_collected: frozenset[int] = frozenset()
_default_lock = threading.RLock()  # collecting garbage may run code of the app


def app_of(effects: Effects | None, session: AnySession | None = None) -> Effects:
    """Find the Effects that a call means.

    Args:
        effects: what the call was given; it wins. That its database is the session's is checked when it joins it.
        session: else the one Effects that was made for the session's engine; else the one whose database is the
            session's: the process's own if it was set, or else any that was made.

    Raises:
        EnqueueError: it is no Effects; several have the session's engine or database; or none has.
        ConfigurationError: there is no session either, several Effects were made, and none was set.
    """
    if effects is not None:
        if not isinstance(effects, Effects):
            raise EnqueueError(f"effects is {described(effects)}; give an Effects, or none for the process's own")
        return effects
    if session is None or session is ALONE:
        return default()
    for engine in engines_of(session):
        if (app := _app_on(engine, session)) is not None:
            return app
    return _default_of(session)


async def in_async(call: Callable[..., Result], *, session: AnyAsyncSession | None = None, **arguments: Any) -> Result:
    """Carry out a call that takes `session=`, awaited: in that transaction, in the current one, or alone in a thread.

    Its awaitable form has the same parameters but for the type of `session`, and consists of
    `return await in_async(call, **locals())`.

    Raises:
        EnqueueError: the session is a synchronous one or none at all; or as `app_of`.
        Whatever the call raises.
    """
    if session is None:
        session = app_of(arguments.get("effects")).current_session()
    return await run_in_async(call, session=session, **arguments)


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
    """The one Effects whose database is the session's: the process's own if it was set, else any that was made."""
    with _default_lock:
        candidates = _living() if _default is None else [_default]
    errors: list[EnqueueError] = []
    reached = [app for app in candidates if _reaches(session, app, errors)]
    if len(_without_duplicate(reached)) > 1:
        raise EnqueueError(f"{len(reached)} Effects have the database of this session: pass effects= with one of them")
    if reached:
        return _without_duplicate(reached)[0]
    is_named = "EFFECTS_DATABASE_URL" in os.environ
    if not candidates or (is_named and _default is None):
        app = _app_of_environment()
        candidates.append(app)
        if _reaches(session, app, errors):
            return app
    if is_named or candidates[0].settings.database_url != DEFAULT_DATABASE_URL:
        raise errors[0]
    raise EnqueueError(f"{errors[0]}. EFFECTS_DATABASE_URL is not set")


def _reaches(session: AnySession, app: Effects, errors: list[EnqueueError]) -> bool:
    try:
        with joined(session, app.database):
            return True
    except EnqueueError as error:
        errors.append(error)
        return False


def default() -> Effects:
    """The process's Effects: the one given to `set_default`; else the only one that it has made and not disposed of.

    If it has made none, it is built from the environment now, once.

    Raises:
        ConfigurationError: several were made; or a setting in the environment is wrong.
    """
    with _default_lock:
        if _default is not None:
            return _default
        apps = _without_duplicate(_living())
    if len(apps) > 1:
        databases = ", ".join(sorted({str(app.database) for app in apps}))
        raise ConfigurationError(
            f"{len(apps)} Effects were made in this process ({databases}): pass effects= with the one that is meant, "
            "or make one the process's own by set_default(app)"
        )
    return apps[0] if apps else _app_of_environment()


def _living() -> list[Effects]:
    """Each that is in use, without garbage that is still to be collected: its turn would depend on chance."""
    global _collected  # noqa: PLW0603 - what was true when garbage was last collected
    apps = living(Effects)
    if {id(app) for app in apps} != _collected:
        del apps
        gc.collect()
        apps = living(Effects)
        _collected = frozenset(id(app) for app in apps)
    return apps


def _without_duplicate(apps: list[Effects]) -> list[Effects]:
    """Leave out the one of the environment where the app has made one of the same database itself."""
    own = [app for app in apps if app is not _of_environment]
    places = {(app.store.engine.url, app.store.schema) for app in apps}
    return own if own and len(places) == 1 else apps


def _app_of_environment() -> Effects:
    global _of_environment  # noqa: PLW0603 - made once
    with _default_lock:
        if _of_environment is None or _of_environment.disposed:
            _of_environment = Effects()
        return _of_environment


def set_default(effects: Effects | None) -> None:
    """Make this the process's Effects; None forgets it, and the one of the environment.

    Args:
        effects: the Effects; None for none.
    """
    global _of_environment  # noqa: PLW0603 - forgotten as well
    replace_default(effects)
    with _default_lock:
        _of_environment = None


def replace_default(effects: Effects | None) -> Effects | None:
    """Set the default and return the previous one, or None."""
    global _default
    with _default_lock:
        before, _default = _default, effects
        return before
