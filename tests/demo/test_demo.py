"""The demo as a newcomer runs it: the command, its account, and the commands that it offers."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from examples.demo.events import bundled_events
from examples.demo.flights import bundled_flights
from examples.demo.signups import NAMES
from tests.support.waiting import PATIENCE_SECONDS

EVENTS, FLIGHTS = 6, 45_000


ROOT = Path(__file__).parents[2]


def _demo(*options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-m", "examples.demo", *options, folder=folder)


def _run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder), "COLUMNS": "80"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_every_effect_is_accounted_for(tmp_path: Path) -> None:
    done = _demo("--events", str(EVENTS), "--flights", str(FLIGHTS), "--json", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    account: dict[str, Any] = json.loads(done.stdout)
    users = len(NAMES)
    assert account["signups"] == {
        "users": users, "welcomed": users, "crm_retried": users, "crm_dead": users, "strays": 0,
    }  # fmt: skip
    good, shaky, gone = account["partners"]
    assert (account["events"], account["complete"], account["findings"]) == (EVENTS, True, [])
    assert (good["delivered"], good["retried"], good["dead"]) == (EVENTS, 0, 0)
    assert (shaky["delivered"], shaky["retried"], shaky["dead"]) == (EVENTS, EVENTS, 0)
    assert (gone["delivered"], gone["dead"]) == (0, EVENTS)
    assert [partner["duplicates"] for partner in account["partners"]] == [0, 0, 0]
    assert (good["signatures_verified"], shaky["signatures_verified"]) == (EVENTS, 3 * EVENTS)
    signups, flights = account["reports"]
    assert (signups["report"], signups["rows_read"], signups["announced"]) == ("signups", users, True)
    assert (flights["rows"], flights["rows_read"], flights["chunks"]) == (FLIGHTS, FLIGHTS, 3)
    assert flights["announced"]


def test_the_summary_fits_a_terminal_and_its_commands_run(tmp_path: Path) -> None:
    done = _demo("--events", "2", "--flights", "1000", folder=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every effect is accounted for." in done.stdout
    offered = [shlex.split(line) for line in done.stdout.splitlines() if " --database-url " in line]
    prose = [line for line in done.stdout.splitlines() if " --database-url " not in line]
    assert max(len(line) for line in prose) <= 80
    expected = ["webhook.deliver", "webhook.deliver", "webhook.deliver", "flights"]
    *commands, dashboard = offered
    for command, word in zip(commands, expected, strict=True):
        shown = _run(*command, folder=tmp_path)
        assert shown.returncode == 0, shown.stderr
        assert word in shown.stdout

    assert "web" in dashboard
    assert "sign in, once" in _first_lines([*dashboard, "--port", "0"], folder=tmp_path)


def _first_lines(command: list[str], *, folder: Path) -> str:
    """What a server prints at its start; it is stopped then, and ends well."""
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        lines = "".join(server.stdout.readline() for _ in range(2))
        server.terminate()  # SIGINT may be ignored here, as in a job of a shell's background
    assert server.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM)
    return lines


def test_at_a_terminal_it_ends_with_the_dashboard(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "120", "TERM": "dumb"}
    command = [sys.executable, "-m", "examples.demo", "--events", "1", "--flights", "1000"]
    demo = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while b"ends the demo." not in seen and (piece := os.read(master, 65_536)):
            seen += piece
        address = re.search(rb"http://127.0.0.1:\d+/sign-in\?token=\S+", seen)
        assert address is not None, seen[-2_000:]
        page = httpx.get(address[0].decode(), timeout=PATIENCE_SECONDS).text
        demo.send_signal(signal.SIGINT)
        while os.read(master, 65_536):
            pass
    assert demo.wait(60) == 0
    os.close(master)
    assert "Continue as you" in page


def test_all_bundled_events_exist() -> None:
    events = list(bundled_events())

    assert len(events) == 273
    assert len({event.type for event in events}) == 163
    assert len({event.key for event in events}) == 273


def test_all_bundled_flights_exist() -> None:
    flights = list(bundled_flights())

    assert len(flights) == 336_776
    assert sum(flight["delay"] is None for flight in flights) == 8_255


@pytest.mark.parametrize("option", ["--events=0", "--flights=0", "--no-such"])
def test_a_wrong_option_is_one_clear_line(tmp_path: Path, option: str) -> None:
    done = _demo(option, folder=tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
