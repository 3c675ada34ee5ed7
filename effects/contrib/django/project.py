"""The Effects of a Django project: it knows Django's transactions, and can go through Django's connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction
from sqlalchemy import Connection

from effects.app import Effects
from effects.contrib.django import transactions
from effects.contrib.django.handlers import close_connections_around
from effects.errors import SessionForgotten
from effects.model.job_type import JobType
from effects.sessions.borrowed import borrowed
from effects.sessions.drivers import driver_of
from effects.sessions.forgotten import check_not_forgotten
from effects.store.db.faults import translated
from effects.store.db.store import Store

INIT_COMMAND = "manage.py migrate"
_TEST_CASE = (
    "this TestCase is one transaction, which has locked the database: derive the test from (EffectsTests, TestCase), "
    "with EffectsTests from effects.contrib.django.testing, or pass session=connection"
)


class ProjectEffects(Effects):
    """Made from Django's settings.

    Args:
        alias: of its database in `DATABASES`.
        *arguments, **options: of Effects.
    """

    _is_made = False

    def __init__(self, alias: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._is_made = True
        self.alias = alias
        self.store.init_command = INIT_COMMAND

    def add(self, *job_types: JobType[Any]) -> None:
        """As that of `Effects`. Django's connections are closed around each attempt that may use them: what the
        packages do on the event loop uses none.
        """
        super().add(*job_types)
        for job_type in job_types:
            if self._is_made or not job_type.is_async:
                close_connections_around(job_type)

    def _check_not_forgotten(self) -> None:
        connection = transactions.open_connection(self.alias)
        has_written = connection is not None and transactions.has_written(connection)
        if has_written and transactions.is_in_test_case_alone(connection):
            has_written = False
            if connection.vendor == "sqlite" and not is_through_django(self.store):
                raise SessionForgotten(_TEST_CASE)
        check_not_forgotten(self.database, self.settings.sessions, has_written=has_written)


def is_through_django(store: Store) -> bool:
    """Whether its statements go through Django's connection."""
    return "begin" in vars(store)


def go_through_django(store: Store, alias: str) -> None:
    """Let all statements of a store go through this thread's connection of Django.

    A transaction of ours is one of Django's, or a savepoint in it. There can be no worker: it has threads of its own.
    """

    @contextmanager
    def begin() -> Iterator[Connection]:
        with translated(), transaction.atomic(using=alias), _borrowed(alias) as connection:
            yield connection

    @contextmanager
    def reading(connect: object) -> Iterator[Connection]:
        with translated(), ExitStack() as stack:
            if not connections[alias].in_atomic_block:
                stack.enter_context(transaction.atomic(using=alias))
            yield stack.enter_context(_borrowed(alias))

    vars(store).update(begin=begin, _reading=reading)


def leave_django(store: Store) -> None:
    """Let its statements go through its own engine again."""
    vars(store).pop("begin", None)
    vars(store).pop("_reading", None)


@contextmanager
def _borrowed(alias: str) -> Iterator[Connection]:
    driver = driver_of(connections[alias])
    assert driver is not None  # it is Django's
    with borrowed(*driver) as connection:
        yield connection
