"""What a worker changes of Python's search for garbage, and leaves as it was.

Each in a Python of its own: workers of a process share one search, and those of other tests may still be ending.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from effects.worker.machine.runtime import OBJECTS, PYTHONS_OWN

BEGIN = "import gc, json; from effects.worker.machine.runtime import rare_collections; own = gc.get_threshold()\n"


def printed(code: str, *arguments: str) -> Any:
    """What this code, after `BEGIN`, prints as JSON in a fresh Python."""
    command = [sys.executable, "-c", BEGIN + dedent(code), *arguments]
    return json.loads(subprocess.check_output(command, text=True))


def test_meanwhile_what_lasts_is_frozen_and_garbage_is_looked_for_less_often() -> None:
    code = """
        with rare_collections():
            within, frozen = gc.get_threshold(), gc.get_freeze_count()
        print(json.dumps([own, within, frozen, gc.get_threshold(), gc.get_freeze_count()]))
    """
    own, within, frozen, afterwards, left = printed(code)
    assert own[0] in PYTHONS_OWN, "else it would be taken for the app's own"
    assert within == [OBJECTS, *own[1:]]
    assert frozen > 1000
    assert (afterwards, left) == (own, 0)


@pytest.mark.slow
@pytest.mark.parametrize("own", [0, 123, 50_000], ids=["off", "often", "seldom"])
def test_what_the_app_has_set_stays(own: int) -> None:
    code = f"""
        gc.set_threshold({own}, 5, 5)
        gc.freeze()
        newer = []
        with rare_collections():
            within, tracked = gc.get_threshold(), any(each is newer for each in gc.get_objects())
        print(json.dumps([within, tracked, gc.get_threshold(), gc.get_freeze_count()]))
    """
    within, tracked, afterwards, frozen = printed(code)
    assert within == afterwards == [own, 5, 5]
    assert tracked, "not frozen, as what the app has frozen is"
    assert frozen > 1000


@pytest.mark.slow
def test_of_two_workers_in_a_process_the_last_leaves_it_as_the_first_found_it() -> None:
    code = """
        first, second = rare_collections(), rare_collections()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        second.__exit__(None, None, None)
        print(json.dumps([own, gc.get_threshold(), gc.get_freeze_count()]))
    """
    own, afterwards, frozen = printed(code)
    assert (afterwards, frozen) == (own, 0)


@pytest.mark.slow
def test_a_drain_restores_them(tmp_path: Path) -> None:
    code = """
        import sys
        from effects import Effects, enqueue
        from effects.worker import Worker

        app, seen = Effects(sys.argv[1], log_level="ERROR"), []

        @app.job("looks")
        def look() -> None:
            seen.append(gc.get_threshold()[0])

        app.create_tables()
        enqueue("looks", {}, effects=app)
        Worker(app).drain()
        print(json.dumps([seen, own, gc.get_threshold()]))
    """
    seen, own, afterwards = printed(code, f"sqlite:///{tmp_path / 'app.db'}")
    assert (seen, afterwards) == ([OBJECTS], own)
