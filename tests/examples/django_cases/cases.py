"""Tests of the shop as a Django user would write them, run by `manage.py test` on each kind of database."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from orders.jobs import pack_order
from orders.models import Order

from effects import SessionForgotten, SessionForgottenWarning, status
from effects.contrib.django import app
from effects.contrib.django.testing import EffectsTests, project_toolkit
from effects.errors import ConfigurationError
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook

PAID = {"email": "Ann <ann@example.com>", "total": "9.90"}


def is_in_memory() -> bool:
    return "memory" in str(connection.settings_dict["NAME"])


def order() -> Order:
    return Order.objects.create(email="ann@example.com", total=1)


@contextmanager
def without_a_word() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


class WhatIsForgotten:
    """In both kinds of test cases."""

    def test_a_session_is_forgotten_in_a_block_that_has_written(self: TestCase) -> None:
        with without_a_word(), transaction.atomic():
            order()
            with pytest.raises(SessionForgotten, match="session="):
                pack_order.enqueue(1)

    def test_a_session_is_forgotten_after_a_savepoint(self: TestCase) -> None:
        with without_a_word(), transaction.atomic():
            with transaction.atomic():
                order()
            with pytest.raises(SessionForgotten, match="session="):
                pack_order.enqueue(1)

    def test_none_is_forgotten_outside_of_a_block(self) -> None:
        with without_a_word():
            order()
            pack_order.enqueue(1)
            with transaction.atomic():
                order()
            pack_order.enqueue(2)
        self.effects.assert_enqueued("orders.pack", times=2)

    def test_none_is_forgotten_where_it_is_given(self) -> None:
        with without_a_word(), transaction.atomic():
            pack_order.using(session=connection).enqueue(order().id)
        self.effects.assert_enqueued("orders.pack", times=1)

    def test_what_is_rolled_back_is_not_enqueued(self) -> None:
        with suppress(ValueError), transaction.atomic():
            pack_order.using(session=connection).enqueue(order().id)
            raise ValueError
        with transaction.atomic():
            with suppress(ValueError), transaction.atomic():
                pack_order.using(session=connection).enqueue(order().id)
                raise ValueError
            pack_order.using(key="kept", session=connection).enqueue(order().id)
        [job] = self.effects.jobs
        assert job.key == "kept"


class RolledBackTests(WhatIsForgotten, EffectsTests, TestCase):
    """In a transaction of Django's that is rolled back."""

    def test_a_request(self) -> None:
        order_id = self.client.post("/pay", PAID).json()["order"]
        self.effects.assert_enqueued("orders.pack", order=order_id, times=1)
        [mail] = self.effects.emails
        assert mail.to == ["ann@example.com"]
        assert status(key=f"order:{order_id}:paid", job_type="orders.pack").state == "intended"

    def test_a_block_that_only_reads_in_a_test_that_has_written(self) -> None:
        order()
        with without_a_word(), transaction.atomic():
            assert Order.objects.count() == 1
            if not app.settings.database_url.startswith("sqlite"):  # its blocks lock the file from the beginning
                pack_order.enqueue(1)

    def test_callbacks_of_the_commit_are_the_apps(self) -> None:
        with self.captureOnCommitCallbacks() as callbacks, transaction.atomic():
            transaction.on_commit(print)
            order()
        assert len(callbacks) == 1

    def test_a_worker_sees_nothing_of_it(self) -> None:
        for work in (self.effects.drain, lambda: self.effects.crash_at("perform.before")):
            with pytest.raises(ConfigurationError, match=r"TransactionTestCase|is in memory"):
                work()

    def test_a_connection_that_another_thread_opens_leaves_ours_alone(self) -> None:
        def visit() -> None:
            connections["default"].ensure_connection()
            connections["default"].close()

        thread = Thread(target=visit)
        thread.start()
        thread.join()
        pack_order.enqueue(1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects_jobs")
            assert cursor.fetchone() == (1,)

    def test_a_second_toolkit_of_a_fixture(self) -> None:
        pack_order.using(session=connection).enqueue(1)
        with project_toolkit() as toolkit:
            toolkit.assert_enqueued("orders.pack", times=1)


class OfTheClassTests(EffectsTests, TestCase):
    """What `setUpTestData` enqueues is there in each test, and rolled back with the class."""

    @classmethod
    def setUpTestData(cls) -> None:
        with without_a_word():
            cls.order = order()
            pack_order.using(key="setup").enqueue(cls.order.id)
            pack_order.using(key="joined", session=connection).enqueue(cls.order.id)
            add_endpoint("https://partner.example/hooks", ["order.*"])

    def test_its_rows_are_there(self) -> None:
        self.effects.assert_enqueued("orders.pack", key="setup", order=self.order.id)
        assert pack_order.using(key="setup").enqueue(self.order.id).existing
        deliver_webhook(WebhookEvent("order.paid", {"order": 1}))
        [event] = self.effects.webhooks
        assert event.data == {"order": 1}

    def test_and_in_the_next_test_as_they_were(self) -> None:
        assert [job.key for job in self.effects.jobs] == ["setup", "joined"]


class OptOutTests(EffectsTests, TestCase):
    """A forgotten session is what the settings make of it."""

    sessions_required = False

    def test_a_forgotten_session_is_a_warning_where_the_database_admits_it(self) -> None:
        kind = SessionForgottenWarning if connection.vendor == "postgresql" else SessionForgotten
        with without_a_word(), transaction.atomic():
            order()
            with pytest.raises(kind, match="session="):
                pack_order.enqueue(1)


class WithoutRestTests(EffectsTests, TestCase):
    """The other tests have left nothing."""

    def test_there_are_no_jobs(self) -> None:
        assert self.effects.jobs == []

    @classmethod
    def setUpTestData(cls) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects_jobs")
            assert cursor.fetchone() == (0,)


class CommittedTests(WhatIsForgotten, EffectsTests, TransactionTestCase):
    """With rows that are committed."""

    def test_a_block_that_only_reads(self) -> None:
        order()
        with without_a_word(), transaction.atomic():
            assert Order.objects.count() == 1
            if connection.vendor == "postgresql":
                pack_order.enqueue(1)

    def test_a_worker(self) -> None:
        pack_order.enqueue(order().id)
        if is_in_memory():
            with pytest.raises(ConfigurationError, match=r"is in memory.*TEST"):
                self.effects.drain()
            return
        self.effects.drain()
        assert Order.objects.get().packed


class PlainTests(TestCase):
    """Without a toolkit."""

    def test_a_call_in_the_locked_file_is_answered_at_once(self) -> None:
        order()
        pack_order.using(session=connection).enqueue(1)
        if connection.vendor == "sqlite" and not is_in_memory():
            with pytest.raises(SessionForgotten, match=r"\(EffectsTests, TestCase\)"):
                pack_order.enqueue(1)


class MisuseTests(SimpleTestCase):
    """What is wrong about a test case is said."""

    def test_the_order_of_the_bases(self) -> None:
        with pytest.raises(ConfigurationError, match=r"class PayTests\(EffectsTests, TestCase\)"):
            type("PayTests", (TestCase, EffectsTests), {})

    def test_a_test_case_without_a_database(self) -> None:
        kind = type("PayTests", (EffectsTests, SimpleTestCase), {"test_it": lambda self: None})
        with pytest.raises(ConfigurationError, match="PayTests has no database 'default'"):
            kind.setUpClass()

    def test_a_set_up_that_leaves_ours_out(self) -> None:
        with pytest.raises(ConfigurationError, match=r"RolledBackTests.setUp did not call super\(\).setUp\(\)"):
            _ = RolledBackTests("test_a_request").effects
