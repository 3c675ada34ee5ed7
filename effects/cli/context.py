"""What every command is given: the Effects to work on, and one way to print."""

from __future__ import annotations

import getpass
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from sqlalchemy.engine import make_url

from effects.app.default import set_default
from effects.app.effects import Effects
from effects.errors import ConfigurationError, SchemaMismatch, StoreConflict
from effects.kit import logs
from effects.kit.importing import importing, place_of_error, reason_of_error
from effects.kit.text.wording import described
from effects.settings import DEFAULT_DATABASE_URL
from effects.store.db import revisions
from effects.store.db.deadlines import Bounds
from effects.store.db.faults import is_locked_out
from effects.store.sessions.databases import refuse_other_database

# Of a command's transactions: how long a person watches it wait for a lock. A statement may take as long as it takes.
BOUNDS = Bounds(lock_seconds=10.0, seconds=float("inf"))


@dataclass
class Context:
    """The global options, and what follows from them on first use.

    Args:
        app_path: `module:attribute` of the app's own Effects; without it one is built from the environment.
        database_url, schema: over the environment's. With `app_path`, the app must take its own from the environment.
        log_format, log_level: over the settings'.
    """

    app_path: str | None = None
    database_url: str | None = None
    schema: str | None = None
    log_format: str | None = None
    log_level: str | None = None
    _bounds: ExitStack = field(default_factory=ExitStack, init=False, repr=False)

    @cached_property
    def bare_app(self) -> Effects:
        """Load the Effects without checking its tables, and make it the process's default.

        Raises:
            ConfigurationError: `--app` does not name an Effects, or a setting is wrong.
        """
        if self.app_path is None:
            app = Effects(self.database_url, schema=self.schema)
        else:
            with _in_environment(EFFECTS_DATABASE_URL=self.database_url, EFFECTS_SCHEMA=self.schema):
                app = load_app(self.app_path)
            _check_database(app, self.database_url, self.schema)
        set_default(app)
        level = self.log_level or app.settings.log_level
        logs.configure(self.log_format or app.settings.log_format, level, overriding=self.log_level is not None)
        return app

    @property
    def waiting_app(self) -> Effects:
        """The Effects for a long-running worker, which checks the tables itself and waits for its database."""
        refuse_missing_file(self.bare_app)
        return self.bare_app

    @cached_property
    def app(self) -> Effects:
        """`checked_app`. Until `close`, no transaction of this thread waits long for a lock.

        Raises:
            SchemaMismatch: tables are missing or of another version; the message names the command to run.
            StoreUnavailable: the database is unavailable.
        """
        app = self.checked_app
        self._bounds.enter_context(app.store.within(BOUNDS))
        return app

    @property
    def checked_app(self) -> Effects:
        """The Effects, its tables checked, for a worker: it bounds its transactions itself.

        Raises:
            SchemaMismatch, StoreUnavailable: as `app`.
        """
        revisions.check(self.waiting_app.store)
        return self.bare_app

    @property
    def has_app(self) -> bool:
        """Whether the command has used the Effects, and so its database."""
        return "bare_app" in self.__dict__

    def with_holder(self, error: StoreConflict) -> StoreConflict:
        """The error, and who holds the lock that a command did not get in time."""
        return StoreConflict(f"{error}: {self.bare_app.store.lock_holder()}") if is_locked_out(error) else error

    def close(self) -> None:
        """Send waiting hints and close the connections, where there are any."""
        self._bounds.close()
        if self.has_app:
            self.bare_app.dispose()


pass_context = click.make_pass_decorator(Context)


def load_app(path: str) -> Effects:
    """Import `module:attribute`, from the working directory too, as uvicorn does.

    Raises:
        ConfigurationError: the form, the module, the attribute or its type is wrong.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"--app is {path!r}; give module:attribute, such as shop.effects:app")
    with suppress(FileNotFoundError):  # it was deleted
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.insert(0, here)
    try:
        with importing():
            target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_error(module_name, error) from error
        raise ConfigurationError(f"--app: there is no module {error.name!r} here or on sys.path") from None
    except (Exception, SystemExit) as error:
        raise _import_error(module_name, error) from error
    for name in attribute.split("."):
        if not hasattr(target, name):
            names = [name for name, value in vars(target).items() if isinstance(value, Effects)]
            there = f"give {module_name}:{names[0]}" if names else "make one there, such as app = Effects()"
            raise ConfigurationError(f"--app: {module_name} has no attribute {attribute!r}; {there}")
        target = getattr(target, name)
    if not isinstance(target, Effects):
        raise ConfigurationError(f"--app: {path} is {described(target)}; it must be an effects.Effects")
    return target


def _import_error(module_name: str, error: BaseException) -> ConfigurationError:
    """Say where in the app's own code its import failed, and why."""
    reason = reason_of_error(error)
    where = place_of_error(error)
    at = "" if where is None or where in reason else f" at {where}"
    cure = "; install it, or run effects in the folder that holds it" if isinstance(error, ModuleNotFoundError) else ""
    return ConfigurationError(f"--app: importing {module_name} failed{at}: {reason}{cure}")


def actor() -> str:
    """Who acts, for the audit: the login name, behind sudo too, at the command line."""
    try:
        return f"cli:{os.environ.get('SUDO_USER') or getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in a container
        return f"cli:{os.getuid()}"


@contextmanager
def _in_environment(**variables: str | None) -> Iterator[None]:
    """Set those that have a value for as long as an app is imported: it reads its settings then."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update({name: value for name, value in variables.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _check_database(app: Effects, database_url: str | None, schema: str | None) -> None:
    """Refuse an app that took another database than the one that was named.

    Raises:
        ConfigurationError: it names its own; the message tells what to change.
    """
    refuse_other_database(app.engine, database_url or os.environ.get("EFFECTS_DATABASE_URL"))
    if schema not in (None, app.store.schema):
        raise ConfigurationError("--app has a schema of its own: leave out --schema, or let it read EFFECTS_SCHEMA")


def refuse_missing_file(app: Effects) -> None:
    """Opening a SQLite file would make it; only `effects init` creates a database.

    Raises:
        SchemaMismatch: the app's engine is for a SQLite file that is not there; says where it was looked for, and
            whether it was named at all.
    """
    url = app.engine.url
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith("file:"):
        return
    file = Path(url.database)
    if file.exists():
        return
    if url == make_url(DEFAULT_DATABASE_URL) and "EFFECTS_DATABASE_URL" not in os.environ:
        raise SchemaMismatch(
            f"EFFECTS_DATABASE_URL is not set, and the default {file.absolute()} does not exist: set it, or run "
            f"`{app.store.init_command()}` to create that file"
        )
    raise SchemaMismatch(f"there is no database {str(file)!r} yet: run `{app.store.init_command()}`")
