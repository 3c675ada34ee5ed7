"""Tests of the shop as a Django user would write them, run by `manage.py test` on each kind of database."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread

import pytest
from django.db import connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase
from orders.jobs import pack_order
from orders.models import Order

from effects import ALONE, status
from effects.contrib.django.testing import EffectsTests, project_toolkit
from effects.errors import ConfigurationError
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook

PAID = {"email": "Ann <ann@example.com>", "total": "9.90"}


def is_in_memory() -> bool:
    return "memory" in str(connection.settings_dict["NAME"])


def order() -> Order:
    return Order.objects.create(email="ann@example.com", total=1)


class WhatIsJoined:
    """In both kinds of test cases."""

    def test_a_call_in_a_block_joins_it(self: TestCase) -> None:
        with suppress(ValueError), transaction.atomic():
            order()
            pack_order.enqueue(1)
            deliver_webhook(WebhookEvent("order.paid", {"order": 1}))
            raise ValueError
        assert self.effects.jobs == []
        assert self.effects.webhooks == []

    def test_a_savepoint_that_is_rolled_back_takes_its_calls_along(self: TestCase) -> None:
        with transaction.atomic():
            with suppress(ValueError), transaction.atomic():
                pack_order.using(key="gone").enqueue(1)
                raise ValueError
            pack_order.using(key="kept").enqueue(order().id)
        assert [job.key for job in self.effects.jobs] == ["kept"]

    def test_a_call_sees_what_its_block_has_enqueued(self: TestCase) -> None:
        with transaction.atomic():
            pack_order.using(key="k").enqueue(1)
            assert status(key="k").state == "intended"

    def test_a_call_outside_of_a_block_has_a_transaction_of_its_own(self: TestCase) -> None:
        order()
        pack_order.enqueue(1)
        with transaction.atomic():
            order()
        pack_order.enqueue(2)
        self.effects.assert_enqueued("orders.pack", times=2)

    def test_a_call_that_is_to_be_alone_is(self: TestCase) -> None:
        """On SQLite that needs a block that has not locked the file."""
        if connection.vendor == "sqlite" and not is_in_memory():
            return
        with suppress(ValueError), transaction.atomic():
            pack_order.using(session=ALONE).enqueue(1)
            raise ValueError
        assert len(self.effects.jobs) == (0 if connection.in_atomic_block or is_in_memory() else 1)

    def test_a_session_that_is_given_is_joined(self: TestCase) -> None:
        with transaction.atomic():
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


class RolledBackTests(WhatIsJoined, EffectsTests, TestCase):
    """In a transaction of Django's that is rolled back."""

    def test_a_request(self) -> None:
        order_id = self.client.post("/pay", PAID).json()["order"]
        self.effects.assert_enqueued("orders.pack", order=order_id, times=1)
        [mail] = self.effects.emails
        assert mail.to == ["ann@example.com"]
        assert status(key=f"order:{order_id}:paid", job_type="orders.pack").state == "intended"

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


class WithoutRestTests(EffectsTests, TestCase):
    """The other tests have left nothing."""

    def test_there_are_no_jobs(self) -> None:
        assert self.effects.jobs == []

    @classmethod
    def setUpTestData(cls) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM effects_jobs")
            assert cursor.fetchone() == (0,)


class CommittedTests(WhatIsJoined, EffectsTests, TransactionTestCase):
    """With rows that are committed."""

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

    def test_a_call_joins_the_transaction_of_the_test(self) -> None:
        order()
        pack_order.using(key="k").enqueue(1)
        assert status(key="k").state == "intended"


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
