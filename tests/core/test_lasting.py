"""What a worker changes of Python's search for garbage, and leaves as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from effects import Done, enqueue
from effects.worker import Worker
from effects.worker.lasting import OBJECTS, PYTHONS_OWN, lasting
from tests.conftest import AppFactory
from tests.support.scripted import Scripted


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def test_meanwhile_what_lasts_is_frozen_and_garbage_is_looked_for_less_often() -> None:
    gc.set_threshold(PYTHONS_OWN[0], 10, 10)
    with lasting():
        assert gc.get_threshold() == (OBJECTS, 10, 10)
        assert gc.get_freeze_count() > 1000
    assert gc.get_threshold() == (PYTHONS_OWN[0], 10, 10)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("own", [0, 123, 50_000], ids=["off", "often", "seldom"])
def test_what_the_app_has_set_stays(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    gc.freeze()
    frozen = gc.get_freeze_count()
    with lasting():
        assert gc.get_threshold() == (own, 5, 5)
        assert gc.get_freeze_count() == frozen
    assert gc.get_threshold() == (own, 5, 5)
    assert gc.get_freeze_count() == frozen


def test_this_python_has_one_of_the_thresholds_known_as_its_own() -> None:
    assert gc.get_threshold()[0] in PYTHONS_OWN


def test_a_drain_restores_them(app_factory: AppFactory) -> None:
    seen: list[int] = []

    class Looks(Scripted):
        def perform(self, payload: object, attempt: object) -> Done:
            seen.append(gc.get_threshold()[0])
            return Done()

    before = gc.get_threshold()
    app = app_factory(job_types=[Looks()])
    enqueue("scripted", {}, effects=app)
    Worker(app).drain()
    assert (seen, gc.get_threshold()) == ([OBJECTS], before)
