"""Tests of a project with two databases, run by `manage.py test`."""

from __future__ import annotations

import pytest
from django.db import transaction
from django.test import TransactionTestCase
from orders.jobs import pack_order

from effects import ALONE, SessionForgotten
from effects.contrib.django.testing import EffectsTests


class BesideTests(EffectsTests, TransactionTestCase):
    """What is open on a database without effects."""

    databases = frozenset({"default", "archive"})

    def test_a_block_on_another_database_alone_is_refused(self) -> None:
        with transaction.atomic(using="archive"), pytest.raises(SessionForgotten, match=r"'archive'.*in 'default'"):
            pack_order.enqueue(1)
        assert self.effects.jobs == []

    def test_it_may_be_alone(self) -> None:
        with transaction.atomic(using="archive"):
            pack_order.using(session=ALONE).enqueue(1)
        self.effects.assert_enqueued("orders.pack", order=1, times=1)

    def test_ours_is_joined_where_both_are_open(self) -> None:
        with transaction.atomic(using="archive"), transaction.atomic():
            pack_order.enqueue(2)
            transaction.set_rollback(True)
        assert self.effects.jobs == []
