"""The finding `clock`, on a host whose clock is wrong and is set right by what its section says to type."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.runbooks import blocks, sections

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
# This machine's clock is not a test's to set: they stand for what the operator types, on one process's clock.
STAND_INS = {"sudo": 'exec "$@"', "timedatectl": 'test "$*" = "set-ntp true" && echo +0 > "$FAKETIME_TIMESTAMP_FILE"'}


def findings(environment: dict[str, str]) -> list[Any]:
    """What `effects doctor` prints about the clock, without what is in order."""
    command = [str(Path(sys.executable).with_name("effects")), "doctor", "--json"]
    faked = {**environment, "LD_PRELOAD": "/usr/$LIB/faketime/libfaketime.so.1"}
    done = subprocess.run(command, env=faked, capture_output=True, text=True, timeout=60, check=False)
    return [row for row in json.loads(done.stdout) if row["check"] == "clock" and row["level"] != "ok"]


def test_a_wrong_clock_is_found_until_the_line_of_its_section_has_set_it(database_url: str, tmp_path: Path) -> None:
    needs.program("faketime")
    for name, script in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o700)
    (tmp_path / "offset").write_text("-10m\n")
    environment = {
        **os.environ, "EFFECTS_DATABASE_URL": database_url, "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "offset"),
        "FAKETIME_DONT_FAKE_MONOTONIC": "1", "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip
    assert findings(environment)
    [(_, line)] = blocks(sections("findings.md")["clock"])
    subprocess.run(["bash", "-euc", line], env=environment, timeout=60, check=True)
    assert findings(environment) == []
