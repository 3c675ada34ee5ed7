"""Named fault points: kill, raise or pause at the n-th passing, and nothing at all outside tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from effects.kit import crashpoints
from effects.kit.crashpoints import POINTS, CrashPoint, install, install_from_environment, plan, point


def test_without_a_plan_crash_points_do_nothing() -> None:
    passed: list[str] = []
    for hook in (passed.append, None):
        install(hook)
        for name in POINTS:
            point(name)
    assert passed == list(POINTS)  # once, while a hook was installed


@pytest.mark.parametrize("nth", [1, 3])
def test_a_plan_strikes_at_the_nth_passing_of_its_crash_point(nth: int) -> None:
    install(plan("settle.before", nth=nth, action="raise"))
    for _ in range(nth - 1):
        point("settle.before")
    point("settle.applied")
    with pytest.raises(CrashPoint, match=r"settle\.before"):
        point("settle.before")
    point("settle.before")


def test_a_removed_plan_no_longer_strikes() -> None:
    planned = plan("claim.committed", nth=2, action="raise")
    install(planned)
    point("claim.committed")
    install(None)
    point("claim.committed")
    install(planned)
    with pytest.raises(CrashPoint):  # it has counted one: what was passed meanwhile was none of its business
        point("claim.committed")


def test_packages_may_declare_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashpoints, "POINTS", dict(POINTS))
    crashpoints.declare({"pager.rung": "rung, not recorded"})
    assert crashpoints.POINTS["pager.rung"]
    assert crashpoints.POINTS["settle.before"]


@pytest.mark.parametrize(
    ("text", "passings"),
    [("claim.committed:1:raise", 1), ("claim.committed:3:raise", 3)],
)
def test_the_environment_may_hold_the_plan(monkeypatch: pytest.MonkeyPatch, text: str, passings: int) -> None:
    monkeypatch.setenv("EFFECTS_CRASHPOINT", text)
    install_from_environment()
    for _ in range(passings - 1):
        point("claim.committed")
    with pytest.raises(CrashPoint):
        point("claim.committed")


def test_an_empty_environment_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFFECTS_CRASHPOINT", raising=False)
    passed: list[str] = []
    install(passed.append)
    install_from_environment()
    point("claim.committed")
    assert passed == ["claim.committed"]  # what was installed by hand stays


@pytest.mark.slow
@pytest.mark.parametrize(("text", "passings"), [("settle.before", 1), ("settle.before:2", 2)])
def test_kill_is_the_default_action(text: str, passings: int) -> None:
    code = (
        "from effects.kit.crashpoints import *\ninstall_from_environment()\n"
        f"for n in range({passings}):\n    print(n, flush=True)\n    point('settle.before')\nprint('alive')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "EFFECTS_CRASHPOINT": text},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert ran.stdout.split() == [str(n) for n in range(passings)]
