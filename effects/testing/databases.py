"""The database of a test: a temporary SQLite file, or one that the test names and that is called a test's."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from sqlalchemy import URL, create_engine, text
from sqlalchemy.engine import make_url

from effects.errors import ConfigurationError
from effects.process.private_files import private_file
from effects.settings import Settings
from effects.store.db.engine import create_engine as own_engine
from effects.store.db.store import Store, TableBuilder
from effects.store.migrations import migrate

OWN = "own"  # the word for the app's own database


def choose_database(database: str | None, own: URL, folder: Path, builders: tuple[TableBuilder, ...]) -> URL:
    """The URL of the database to use.

    Args:
        database: None for a temporary one, `own`, or a URL.
        own: what the app itself is set up for.
        folder: where a temporary one is made.
        builders: whose tables a temporary one has.

    Raises:
        ConfigurationError: the database is not called a test's.
    """
    if database is None:
        path = folder / "effects.db"
        with private_file(path) as file:
            file.write(_empty_file(builders))
        return make_url(f"sqlite:///{path}")
    url = own if database == OWN else make_url(Settings(database_url=database).database_url)
    check_name(url.database)
    return url


def check_name(name: str | None) -> None:
    """Refuse a database that is not called a test's: the rows of effects in it are deleted, and its jobs are run.

    Raises:
        ConfigurationError: its name does not contain `test`.
    """
    if "test" not in Path(name or "").name.lower():
        raise ConfigurationError(
            f"the database {Path(name or '').name!r} is not called a test's. The toolkit empties the tables of effects "
            "and runs the jobs in it: give one whose name contains `test`, such as shop_test, or leave `database` out "
            "for a temporary one"
        )


@functools.cache
def _empty_file(builders: tuple[TableBuilder, ...]) -> bytes:
    """A SQLite database with all tables. Migrating one takes much longer than copying it."""
    with tempfile.TemporaryDirectory(prefix="effects-toolkit-") as folder:
        path = Path(folder) / "template.db"
        engine = own_engine(f"sqlite:///{path}")
        migrate.init(Store(engine, builders=builders))
        engine.dispose()
        plain = create_engine(f"sqlite:///{path}")
        with plain.connect() as connection:
            connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)"))
        plain.dispose()
        return path.read_bytes()


def empty_tables(store: Store) -> None:
    """Create the tables that are missing, and delete every row of effects and its packages."""
    migrate.init(store)
    names = [table.fullname for table in store.metadata.sorted_tables]
    with store.begin() as connection:
        if store.is_postgresql:
            connection.execute(text(f"TRUNCATE {', '.join(names)} RESTART IDENTITY"))
        else:
            for name in reversed(names):
                connection.execute(text(f"DELETE FROM {name}"))


def restart_schedules(store: Store) -> None:
    """Let no schedule be due by a slot from before the test."""
    with store.begin() as connection:
        connection.execute(text(f"UPDATE {store.sql.job_definitions} SET last_slot = {store.sql.now}"))
