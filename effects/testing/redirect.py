"""An app's Effects on another database for the time of a test, whoever holds it, and exactly as before afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from sqlalchemy import URL, Engine, event

from effects.app import Effects
from effects.errors import ConfigurationError
from effects.notifier import Notifier
from effects.secrets.keys import KeyRing, generate_key
from effects.sessions.constructed import living
from effects.sessions.databases import CallersDatabase
from effects.storage import open_storage
from effects.store.db.engine import close_for_good, create_engine
from effects.store.db.store import Store, TableBuilder
from effects.store.db.urls import file_of

_REDIRECTED = "_redirected"  # an attribute of an Effects that has a toolkit

Connect: TypeAlias = Callable[[Any, Any, list[Any], dict[str, Any]], Any]


@contextmanager
def redirected(
    app: Effects, url: URL, folder: Path, builders: tuple[TableBuilder, ...], connect: Connect | None = None
) -> Iterator[None]:
    """Let everything that holds `app`, or its engine, use this database, and a storage in `folder`.

    An engine of the app's own kind of database stays the engine that it is: its new connections go to the test's, so
    that sessions bound to it long before go there too. Where the test's is of another kind, `app.engine` is another
    engine meanwhile, and connections of the app's own are refused. So are those of every other Effects of the process,
    unless it has a toolkit too.

    Args:
        connect: opens the connections in place of the driver.

    Raises:
        ConfigurationError: from the app's own engine meanwhile, where it cannot be redirected.
    """
    before = dict(vars(app))
    shift_before = app.store.sql.shift_seconds
    with ExitStack() as stack:
        stack.callback(_restore, app, before, shift_before)
        others = [_engines(app_beside) for app_beside in living(Effects) if not _is_redirected(app_beside)]
        for engine in set().union(*others) - _engines(app):
            stack.enter_context(_connecting(engine, engine.url, _refuse_other))
        _redirect_engines(app, url, builders, stack, connect)
        is_within = _is_redirected(app)  # in another toolkit, whose rows this one may have to read
        storage_url = app.settings.storage_url if is_within else f"file:{folder / 'files'}"
        values: dict[str, Any] = {
            "settings": replace(
                app.settings,
                database_url=_setting(url) or app.settings.database_url,
                schema=app.store.schema,
                storage_url=storage_url,
            ),
            "storage": open_storage(storage_url),
            "notifier": Notifier(app.store),
            "database": CallersDatabase(app.store, app.database.engine),
            _REDIRECTED: True,
            "_states": {},
            "_adopted": [],
        }
        if not app.settings.keys and not is_within:
            values["keys"] = KeyRing(f"test={generate_key()},digest={generate_key()}")
        vars(app).update(values)
        if connect is not None:
            app.notifier.close()  # its thread would interfere with the savepoints, and nothing is committed anyway
        yield


def _setting(url: URL) -> str | None:
    """None for a database in memory, which a process of its own could not reach."""
    is_in_memory = url.get_backend_name() == "sqlite" and file_of(url) is None
    return None if is_in_memory else url.render_as_string(hide_password=False)


def _engines(app: Effects) -> set[Engine]:
    return {*app.store.engines, app.database.engine}


def _is_redirected(app: Effects) -> bool:
    return _REDIRECTED in vars(app)


def _restore(app: Effects, before: dict[str, Any], shift_seconds: float) -> None:
    app.notifier.close()
    for engine in vars(app)["_adopted"]:
        close_for_good(engine)
    vars(app).clear()
    vars(app).update(before)
    app.store.shift_clock(shift_seconds - app.store.sql.shift_seconds)


def _redirect_engines(
    app: Effects, url: URL, builders: tuple[TableBuilder, ...], stack: ExitStack, connect: Connect | None
) -> None:
    for engine in _engines(app):
        if engine.dialect.name == url.get_backend_name():
            stack.enter_context(_connecting(engine, url, connect or _to(engine, url)))
        else:
            stack.enter_context(_connecting(engine, engine.url, _refuse))
    if app.engine.dialect.name != url.get_backend_name():
        engine = create_engine(url.render_as_string(hide_password=False))
        if connect is not None:
            _listen_first(engine, connect)
        store = Store(engine, builders=builders)
        stack.callback(store.dispose)
        vars(app).update(engine=engine, store=store, database=CallersDatabase(store, engine))


@contextmanager
def _connecting(engine: Engine, url: URL, connect: Connect) -> Iterator[None]:
    """Open this engine's connections so, also those of engines derived from it; none of before is used meanwhile."""
    own_url = engine.url

    def listener(*arguments: Any) -> Any:  # one for each time, so that a toolkit within another removes its own
        return connect(*arguments)

    _listen_first(engine, listener)
    engine.dispose(close=not engine.dialect.is_async)  # one of async code is closed in its event loop
    engine.url = url
    try:
        yield
    finally:
        engine.url = own_url
        event.remove(engine, "do_connect", listener)
        engine.dispose(close=not engine.dialect.is_async)


def _listen_first(engine: Engine, connect: Connect) -> None:
    """Before others, such as one that creates the file; `insert=True` has no effect on this event."""
    event.listen(engine, "do_connect", connect)
    engine.dialect.dispatch.do_connect.listeners.rotate(1)


def _to(engine: Engine, url: URL) -> Connect:
    """Connect to `url` with all else that the engine was made with."""
    arguments, options = engine.dialect.create_connect_args(url)
    _, own = engine.dialect.create_connect_args(engine.url)

    def connect(dialect: Any, record: Any, positional: list[Any], values: dict[str, Any]) -> Any:
        kept = {name: value for name, value in values.items() if name not in own}
        return dialect.connect(*arguments, **{**kept, **options})

    return connect


def _refuse(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    raise ConfigurationError(
        f"this engine speaks to the app's own database ({dialect.name}), and the test's is another kind: bind the "
        "Session to `app.engine` when it is made, or give Toolkit(app, database=…) a test's database of this kind"
    )


def _refuse_other(dialect: Any, record: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    raise ConfigurationError(
        "another Effects than the toolkit's was used in a test, and would have written to its own database: give it a "
        "toolkit too, as in `with Toolkit(app) as toolkit, Toolkit(other):`"
    )
