"""Modules that are imported on first use, by any thread."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from effects.kit import lazy
from tests.support.waiting import wait_until

SOURCE = """
import lazy_gate

lazy_gate.began.set()
assert lazy_gate.go.wait(30)
NAME = "imported"
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the module waits for in the midst of its import."""
    gate: Any = ModuleType("lazy_gate")
    gate.began, gate.go = threading.Event(), threading.Event()
    (tmp_path / "lazy_slow.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "lazy_gate", gate)
    monkeypatch.delitem(sys.modules, "lazy_slow", raising=False)
    return gate


def test_a_thread_waits_for_the_import_that_another_one_has_begun(gate: Any) -> None:
    module, seen = lazy._LazyModule("lazy_slow"), list[str]()

    def look() -> None:
        try:
            seen.append(module.NAME)
        except AttributeError as error:
            seen.append(str(error))

    threads = [threading.Thread(target=look) for _ in range(4)]
    threads[0].start()
    assert gate.began.wait(30)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: all(_waits(thread) for thread in threads))
    gate.go.set()
    for thread in threads:
        thread.join(30)
    assert seen == ["imported"] * 4
    sys.modules.pop("lazy_slow", None)


def _waits(thread: threading.Thread) -> bool:
    """Whether it is inside the import, or has ended."""
    frame = sys._current_frames().get(thread.ident or 0)
    names = set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return not thread.is_alive() or "import_module" in names


def test_a_module_that_is_missing_is_named_where_it_is_used() -> None:
    missing = lazy._LazyModule("no_such_module_here")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_here"):
        missing.anything  # noqa: B018
