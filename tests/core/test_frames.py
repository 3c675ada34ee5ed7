"""Where an exception came through: the app's own frames first, no value of any."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

import effects
from effects.kit import frames
from effects.kit.frames import error_frames, place

SHOP = """
import json

def charge(text):
    try:
        return json.loads(text)
    except ValueError as error:
        raise RuntimeError(f"no {text}") from error

def endless(text):
    return endless(text)
"""


def raised(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BaseException:
    """What `shop.jobs.<function>` raises."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    jobs = importlib.import_module("shop.jobs")
    try:
        getattr(jobs, function)("rosebud{")
    except Exception as error:
        return error
    finally:
        del sys.modules["shop.jobs"], sys.modules["shop"]
    raise AssertionError("it raised nothing")


def test_the_apps_innermost_frame_comes_first_and_causes_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = error_frames(raised("charge", tmp_path, monkeypatch))
    assert frames[0] == "shop/jobs.py:8 charge"
    assert frames[1].endswith(" raised")
    assert frames[2:4] == ["caused by JSONDecodeError", "shop/jobs.py:6 charge"]
    assert frames[4].startswith("json/decoder.py:")
    assert "rosebud" not in str(frames)


def test_a_deep_recursion_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = error_frames(raised("endless", tmp_path, monkeypatch))
    assert len(frames) == 50
    assert frames[0] == "shop/jobs.py:11 endless"


def test_files_are_named_from_the_import_path_or_by_their_last_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert place(str(tmp_path / "jobs.py"), 7, "perform") == "jobs.py:7 perform"
    assert place(json.__file__, 7, "loads") == "json/__init__.py:7 loads"
    assert place("/nowhere/shop/jobs.py", 7, "perform") == "shop/jobs.py:7 perform"
    assert place("<stdin>", 7, "perform") == "<stdin>:7 perform"


def test_the_frame_that_called_a_handler_is_told_by_a_file_that_is_there() -> None:
    """Wherever the module stands: what the worker called with is no news, and effects is no app."""
    assert Path(effects.__file__).parent == frames._OURS
    assert Path(frames._WORKER).is_file()
