"""What a worker changes of Python's search for garbage, and leaves as it was."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from effects import Done, enqueue
from effects.worker import Worker
from effects.worker.lasting import OBJECTS, PYTHONS_OWN, lasting
from tests.conftest import AppFactory
from tests.support.scripted import Scripted


@pytest.fixture(autouse=True)
def _as_python_begins() -> Iterator[None]:
    """Whatever another test's worker, which may still end, has left behind; and again afterwards."""
    gc.unfreeze()
    gc.set_threshold(PYTHONS_OWN[0], 10, 10)
    yield
    gc.unfreeze()
    gc.set_threshold(PYTHONS_OWN[0], 10, 10)


def test_meanwhile_what_lasts_is_frozen_and_garbage_is_looked_for_less_often() -> None:
    with lasting():
        assert gc.get_threshold() == (OBJECTS, 10, 10)
        assert gc.get_freeze_count() > 1000
    assert gc.get_threshold() == (PYTHONS_OWN[0], 10, 10)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("own", [0, 123, 50_000], ids=["off", "often", "seldom"])
def test_what_the_app_has_set_stays(own: int) -> None:
    gc.set_threshold(own, 5, 5)
    gc.freeze()
    newer: list[object] = []
    with lasting():
        assert gc.get_threshold() == (own, 5, 5)
        assert any(tracked is newer for tracked in gc.get_objects()), "not frozen, as what the app has frozen is"
    assert gc.get_threshold() == (own, 5, 5)
    assert gc.get_freeze_count() > 1000


def test_of_two_workers_in_a_process_the_last_leaves_it_as_the_first_found_it() -> None:
    first, second = lasting(), lasting()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert (gc.get_threshold()[0], gc.get_freeze_count()) == (PYTHONS_OWN[0], 0)


def test_this_python_has_one_of_the_thresholds_known_as_its_own() -> None:
    own = subprocess.check_output([sys.executable, "-c", "import gc; print(gc.get_threshold()[0])"])
    assert int(own) in PYTHONS_OWN


def test_a_drain_restores_them(app_factory: AppFactory) -> None:
    seen: list[int] = []

    class Looks(Scripted):
        def perform(self, payload: object, attempt: object) -> Done:
            seen.append(gc.get_threshold()[0])
            return Done()

    app = app_factory(job_types=[Looks()])
    enqueue("scripted", {}, effects=app)
    Worker(app).drain()
    assert (seen, gc.get_threshold()) == ([OBJECTS], (PYTHONS_OWN[0], 10, 10))
