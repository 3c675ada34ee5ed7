"""The demo as a stranger runs it: the installed command, its account, and the commands that it offers."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from effects.demo.run import bundled_events

EVENTS = 6


def _effects(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("effects")), *arguments]
    environment = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def test_every_event_is_accounted_for(tmp_path: Path) -> None:
    done = _effects("demo", "--events", str(EVENTS), "--json", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    account: dict[str, Any] = json.loads(done.stdout)
    good, shaky, gone = account["partners"]
    assert (account["events"], account["complete"], account["findings"]) == (EVENTS, True, [])
    assert (good["delivered"], good["retried"], good["dead"]) == (EVENTS, 0, 0)
    assert (shaky["delivered"], shaky["retried"], shaky["dead"]) == (EVENTS, EVENTS, 0)
    assert (gone["delivered"], gone["dead"]) == (0, EVENTS)
    assert [partner["duplicates"] for partner in account["partners"]] == [0, 0, 0]
    assert (good["signatures_verified"], shaky["signatures_verified"]) == (EVENTS, 3 * EVENTS)


def test_the_summary_fits_a_terminal_and_its_commands_run(tmp_path: Path) -> None:
    done = _effects("demo", "--events", "2", folder=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "Every event is accounted for." in done.stdout
    offered = [shlex.split(line) for line in done.stdout.splitlines() if " --database-url " in line]
    assert len(offered) == 3
    prose = [line for line in done.stdout.splitlines() if " --database-url " not in line]
    assert max(len(line) for line in prose) <= 80
    for _, *arguments in offered:
        shown = _effects(*arguments, folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert "webhook.deliver" in shown.stdout


def test_the_bundled_events_are_all_there() -> None:
    events = list(bundled_events())

    assert len(events) == 273
    assert len({event.type for event in events}) == 163
    assert len({event.key for event in events}) == 273


@pytest.mark.parametrize("option", ["--events=0", "--no-such"])
def test_a_wrong_option_is_one_clear_line(tmp_path: Path, option: str) -> None:
    done = _effects("demo", option, folder=tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
