"""For tests of Django apps: a toolkit beside Django's own test cases.

    class PayTests(EffectsTests, TestCase):
        def test_a_paid_order_is_packed(self) -> None:
            self.client.post("/pay", {"email": "ann@example.com", "total": "9.90"})
            self.effects.assert_enqueued("orders.pack", order=1)

Nothing leaves the process. Within `TestCase` no job can run: its rows are in a transaction that is rolled back, and no
worker sees them; those of `setUpTestData` are in the transaction of the class. A test that drains is a
`TransactionTestCase`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from django.db import connections
from django.test import SimpleTestCase, TestCase

from effects.app.effects import Effects, installed_tables
from effects.contrib.django.project import (
    ProjectEffects,
    go_through_django,
    is_in_memory,
    is_through_django,
    leave_django,
    project_app,
    refuse_memory,
)
from effects.errors import ConfigurationError
from effects.testing import Toolkit
from effects.testing.databases import OWN, empty_tables, redirected
from effects.worker import DrainResult

if TYPE_CHECKING:
    from django.test import SimpleTestCase as Case
else:
    Case = object


class EffectsTests(Case):
    """Before `TestCase` or `TransactionTestCase`, and beside it: `self.effects` is the toolkit of each test."""

    effects: Toolkit

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        order = cls.__mro__
        if SimpleTestCase in order and order.index(SimpleTestCase) < order.index(EffectsTests):
            bases = ", ".join(base.__name__ for base in sorted(cls.__bases__, key=_is_test_case))
            raise ConfigurationError(
                f"{cls.__module__}.{cls.__name__}: EffectsTests comes first among the bases: "
                f"class {cls.__name__}({bases})"
            )

    @classmethod
    def setUpClass(cls) -> None:
        app, databases = project_app(), getattr(cls, "databases", ())
        if databases != "__all__" and app.alias not in databases:
            raise ConfigurationError(
                f"{cls.__name__} has no database {app.alias!r}, where the effects are: derive it from "
                f'(EffectsTests, TestCase), with databases = {{"{app.alias}"}} if that is not the default'
            )
        if issubclass(cls, TestCase):  # before the transaction of the class, in which setUpTestData runs
            connections[app.alias].ensure_connection()  # where that goes, the Effects goes
            cls.enterClassContext(_ThroughDjango(app, empties=False))
        super().setUpClass()

    def setUp(self) -> None:
        super().setUp()
        self.effects = self.enterContext(project_toolkit())

    def __getattr__(self, name: str) -> Any:
        if name == "effects":
            raise ConfigurationError(f"{type(self).__name__}.setUp did not call super().setUp(), which makes it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _is_test_case(base: type) -> bool:
    return issubclass(base, SimpleTestCase)


def project_toolkit() -> Toolkit:
    """The toolkit of a test that has the project's test database: for a fixture, as with pytest-django's `db`."""
    app = project_app()
    connection = connections[app.alias]
    connection.ensure_connection()
    if connection.in_atomic_block or is_through_django(app.store):
        return _ThroughDjango(app, empties=not connection.in_atomic_block)
    return Toolkit(app, database=OWN)


class _ThroughDjango(Toolkit):
    """On what Django's own connection sees: a transaction that is rolled back, or a database in memory.

    Args:
        empties: whether rows that a test has committed are deleted first.
    """

    app: ProjectEffects

    def __init__(self, app: ProjectEffects, *, empties: bool) -> None:
        super().__init__(app, database=OWN)
        self._empties = empties

    def _redirected(self, folder: Path) -> AbstractContextManager[None]:
        if is_in_memory(self.app.engine.url):
            return redirected(self.app, self.app.engine.url, folder, tuple(installed_tables()))
        return super()._redirected(folder)

    def _prepare(self, app: Effects) -> Callable[[], object]:
        app.notifier.close()  # its thread would open a connection of Django's, which would stay open
        if self._empties:
            empty_tables(app.store)
        if is_through_django(app.store):
            return lambda: None
        go_through_django(app.store, self.app.alias)
        return lambda: leave_django(app.store)

    def _register_schedules(self) -> None:
        """No worker would look at them."""

    def drain(
        self, max_seconds: float = 0.0, *, raises: bool = True, expect_dead: str | Collection[str] = ()
    ) -> DrainResult:
        """
        Raises:
            ConfigurationError: always.
        """
        self._refuse_worker()

    def crash_at(self, point: str, *, nth: int = 1) -> None:
        """
        Raises:
            ConfigurationError: always.
        """
        self._refuse_worker()

    def _refuse_worker(self) -> NoReturn:
        if is_in_memory(self.app.engine.url):
            raise refuse_memory(self.app.alias)
        raise ConfigurationError(
            "no worker sees the rows of a TestCase, which are rolled back: make this test a TransactionTestCase"
        )
