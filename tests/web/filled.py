"""Full shops that are filled once and copied for each test: filling one takes a second."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sqlalchemy.engine import make_url

from tests.support import databases
from tests.web.full_shop import FullShop, fill, full_app

FRESH_SECONDS = 120  # its newest minutes are of now, and its worker is not silent yet


@dataclass(frozen=True)
class _Filled:
    """`folder` has the files, and on SQLite the database; `name` is that of the one on PostgreSQL."""

    shop: FullShop
    folder: Path
    name: str | None
    begun: float


class FilledShops:
    """One for each of the two databases.

    Args:
        folder: for the files of those that are copied.
        receiver: the address of a partner that lives as long as this.
    """

    def __init__(self, folder: Path, receiver: str) -> None:
        self._folder, self._receiver = folder, receiver
        self._filled: dict[str | None, _Filled] = {}
        self._stack = ExitStack()
        self._count = 0

    @contextmanager
    def copy(self, folder: Path, server: str | None, template: str | None) -> Iterator[FullShop]:
        """A shop of its own for a test.

        Args:
            folder: the test's.
            server, template: of PostgreSQL, and a database with our tables; None: an SQLite file.
        """
        filled = self._filled.get(server)
        if filled is None or time.monotonic() - filled.begun > FRESH_SECONDS:
            filled = self._filled[server] = self._fill(server, template)
        shutil.copytree(filled.folder, folder, dirs_exist_ok=True)
        with ExitStack() as stack:
            url = _sqlite(folder)
            if server is not None and filled.name is not None:
                url = stack.enter_context(databases.postgresql_database(server, filled.name))
            app = full_app(url, folder)
            stack.callback(app.dispose)
            yield replace(filled.shop, app=app)

    def close(self) -> None:
        self._stack.close()

    def _fill(self, server: str | None, template: str | None) -> _Filled:
        begun, folder = time.monotonic(), self._folder / str(self._count)
        self._count += 1
        folder.mkdir()
        url, name = _sqlite(folder), None
        if server is not None:
            url = self._stack.enter_context(databases.postgresql_database(server, template or "template1"))
            name = str(make_url(url).database)
        app = full_app(url, folder)
        app.create_tables()
        shop = fill(app, self._receiver)
        app.dispose()
        if server is not None and name is not None:
            databases.disconnect_all(server, name)
        return _Filled(shop, folder, name, begun)


def _sqlite(folder: Path) -> str:
    return f"sqlite:///{folder / 'shop.db'}"
