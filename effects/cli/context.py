"""What every command is given: the Effects to work on, and one way to print."""

from __future__ import annotations

import getpass
import importlib
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from sqlalchemy.engine import make_url

from effects import app as composition
from effects import logs
from effects.app import Effects
from effects.cli.output import Table, print_value
from effects.errors import ConfigurationError, SchemaMismatch
from effects.store import revisions


@dataclass
class Context:
    """The global options, and what follows from them on first use.

    Args:
        app_path: `module:attribute` of the app's own Effects; without it one is built from the environment.
        database_url, schema: over the environment's; not together with `app_path`.
        log_format, log_level: over the settings'.
    """

    app_path: str | None = None
    database_url: str | None = None
    schema: str | None = None
    log_format: str | None = None
    log_level: str | None = None

    @cached_property
    def bare_app(self) -> Effects:
        """The Effects, whatever its database holds; also the process's default from now on.

        Raises:
            ConfigurationError: `--app` names nothing that we can use, or a setting is wrong.
        """
        if self.app_path is None:
            made = Effects(self.database_url, schema=self.schema)
        elif self.database_url or self.schema:
            raise ConfigurationError(
                "--app brings its own database: leave out --database-url and --schema, or leave out --app"
            )
        else:
            made = load_app(self.app_path)
        composition.set_default(made)
        logs.configure(self.log_format or made.settings.log_format, self.log_level or made.settings.log_level)
        return made

    @property
    def waiting_app(self) -> Effects:
        """The Effects for a worker that stays: it checks the tables itself, and waits for a database that is away."""
        refuse_missing_file(self.bare_app.settings.database_url)
        return self.bare_app

    @cached_property
    def app(self) -> Effects:
        """The Effects, its tables checked.

        Raises:
            SchemaMismatch: the database has no tables or those of another version; says what to run.
            StoreUnavailable: the database is away.
        """
        revisions.check(self.waiting_app.store)
        return self.bare_app

    def echo(self, value: Any, as_json: bool = False) -> None:
        """Print a text, a Table, a struct or a mapping; with `as_json` as one JSON document."""
        print_value(value, as_json=as_json)

    def close(self) -> None:
        """Send waiting hints and close the connections, where there are any."""
        if "bare_app" in self.__dict__:
            self.bare_app.dispose()


pass_context = click.make_pass_decorator(Context)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")

__all__ = ["Context", "Table", "json_option", "load_app", "pass_context", "refuse_missing_file"]


def load_app(path: str) -> Effects:
    """Import `module:attribute`, from the working directory too, as uvicorn does.

    Raises:
        ConfigurationError: says whether the form, the module, the attribute or its type is wrong.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ConfigurationError(f"--app is {path!r}; give module:attribute, such as shop.effects:app")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"--app: importing {module_name} failed: {error}") from error
        raise ConfigurationError(f"--app: there is no module {error.name!r} here or on sys.path") from None
    except Exception as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"--app: importing {module_name} failed: {type(error).__name__}: {error}") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"--app: {module_name} has no attribute {attribute!r}")
        found = getattr(found, name)
    if not isinstance(found, Effects):
        raise ConfigurationError(f"--app: {path} is a {type(found).__name__}; it must be an effects.Effects")
    return found


def actor() -> str:
    """Who acts, for the audit: the login name, behind sudo too, at the command line."""
    try:
        return f"cli:{os.environ.get('SUDO_USER') or getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name, as in a container
        return f"cli:{os.getuid()}"


def refuse_missing_file(database_url: str) -> None:
    """Opening a SQLite file would make it; only `effects init` creates a database.

    Raises:
        SchemaMismatch: the URL names a SQLite file that is not there.
    """
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite" and url.database and not url.database.startswith("file:"):
        file = Path(url.database)
        if not file.exists():
            raise SchemaMismatch(f"there is no database {file.name!r} yet: run `effects init`")
