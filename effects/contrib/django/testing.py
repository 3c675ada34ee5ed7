"""For tests of Django apps: a toolkit beside Django's own test cases.

    class PayTests(EffectsTests, TestCase):
        def test_a_paid_order_is_packed(self) -> None:
            self.client.post("/pay", {"email": "ann@example.com", "total": "9.90"})
            self.effects.assert_enqueued("orders.pack", order=1)

Nothing leaves the process. Within `TestCase` no job can run: its rows are in a transaction that is rolled back, and no
worker sees them. A test that drains is a `TransactionTestCase`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections
from sqlalchemy import Connection

from effects.app import Effects
from effects.contrib.django.configuration import project_app
from effects.errors import ConfigurationError
from effects.sessions.borrowed import borrowed
from effects.sessions.drivers import driver_of
from effects.testing import Toolkit
from effects.worker import DrainResult

if TYPE_CHECKING:
    from django.test import SimpleTestCase as Case
else:
    Case = object


class EffectsTests(Case):
    """Beside `TestCase` or `TransactionTestCase`, and before it: `self.effects` is the toolkit of each test."""

    effects: Toolkit

    def setUp(self) -> None:
        super().setUp()
        connection = connections[apps.get_app_config("effects").alias]
        toolkit = (
            _RolledBackToolkit(connection) if connection.in_atomic_block else Toolkit(project_app(), database="own")
        )
        self.effects = self.enterContext(toolkit)


class _RolledBackToolkit(Toolkit):
    """On the rows of a transaction that is rolled back, through Django's own connection."""

    def __init__(self, connection: Any) -> None:
        super().__init__(project_app(), database="own")
        self._connection = connection

    def _prepare(self, app: Effects) -> Callable[[], object]:
        store = vars(app.store)

        @contextmanager
        def read() -> Iterator[Connection]:
            with borrowed(*_driver(self._connection)) as connection:
                yield connection

        store["read"] = read
        return lambda: store.pop("read")

    def drain(self, max_seconds: float = 0.0, *, raises: bool = True) -> DrainResult:
        """
        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            "no worker sees the rows of a TestCase, which are rolled back: make this test a TransactionTestCase"
        )


def _driver(connection: Any) -> tuple[str, Any]:
    driver = driver_of(connection)
    assert driver is not None  # it is Django's
    return driver
