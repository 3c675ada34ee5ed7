"""`python manage.py test`: nothing leaves the process."""

from django.test import TestCase, TransactionTestCase

from effects import status
from effects.contrib.django.testing import EffectsTests
from effects_reports import open_result, request_report
from effects_webhooks import add_endpoint
from orders.models import Order

PAID = {"email": "Ann <ann@example.com>", "total": "9.90"}


class PayTests(EffectsTests, TestCase):
    """In a transaction that Django rolls back."""

    def test_what_follows_is_enqueued(self) -> None:
        order = self.client.post("/pay", PAID).json()["order"]
        self.effects.assert_enqueued("orders.pack", order=order, times=1)
        [mail] = self.effects.emails
        assert (mail.to, mail.subject) == (["ann@example.com"], f"Order {order} is paid")
        assert status(key=f"order:{order}:paid", job_type="orders.pack").state == "intended"

    def test_nothing_follows_where_the_request_fails(self) -> None:
        with self.assertRaisesMessage(ValueError, "declined"):
            self.client.post("/pay", {**PAID, "card": "declined"})
        assert self.effects.jobs == []


class PackTests(EffectsTests, TransactionTestCase):
    """With a worker."""

    def test_a_paid_order_is_packed_and_told(self) -> None:
        add_endpoint("https://partner.example/hooks", ["order.*"])
        order = self.client.post("/pay", PAID).json()["order"]
        self.effects.drain()
        assert Order.objects.get(id=order).packed
        assert len(self.effects.captured("webhook.deliver")) == 1

    def test_the_report_of_the_orders(self) -> None:
        Order.objects.create(email="ann@example.com", total=1)
        run = request_report("orders", format="csv").run_id
        self.effects.drain()
        assert b"ann@example.com" in b"".join(open_result(run))
