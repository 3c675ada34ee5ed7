"""The steps of docs/retention-and-secrets.md that replace a key, played as they stand."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from effects.keys.encryption import generate_key
from tests.house.source import ROOT
from tests.support.terminal import terminal

PAGE = (ROOT / "docs" / "retention-and-secrets.md").read_text()
DAY = "k20261125"  # the page's first key is of this day; the second is named by the day of the test


def test_a_key_is_replaced_by_the_steps_of_the_page(tmp_path: Path) -> None:
    settings = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with terminal(tmp_path, settings, forks=True) as shell:
        shell.type(f"export EFFECTS_KEYS=first={generate_key()},digest={generate_key()}", [])
        shell.type("effects init", ["tables are ready"])
        add = "effects webhooks endpoints add https://partner.example/webhooks --pattern 'order.*' --json > endpoint"
        shell.type(add, [])
        shell.play(PAGE.replace(f"{DAY}-2", "k…").replace(DAY, "first"))
        shell.type("effects keys status | grep -c first", ["0"])
