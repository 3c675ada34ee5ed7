"""The table of crash points in docs/testing.md is that of the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "testing.md"
DECLARED = """
import json
import effects_email.oauth.keeper, effects_email.transport.http_api.client
import effects_email.transport.smtp.transaction
import effects_reports.jobs.step, effects_reports.transport.upload, effects_webhooks.transport.exchange
from effects.kit.crashpoints import POINTS
print(json.dumps(POINTS))
"""


def test_the_table_has_every_declared_point() -> None:
    printed = subprocess.run([sys.executable, "-c", DECLARED], capture_output=True, text=True, check=True).stdout
    section = DOCUMENT.read_text().partition("## Crashes\n")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([a-z._]+)` \| (.*) \|$", section, re.MULTILINE)) == json.loads(printed)


def test_every_module_that_declares_points_is_compared() -> None:
    root = DOCUMENT.parents[1]
    folders = [root / name for name in ("effects", "email", "reports", "webhooks")]
    modules = [path for folder in folders for path in folder.rglob("*.py") if "\ndeclare(" in path.read_text()]
    assert len(modules) == 6
