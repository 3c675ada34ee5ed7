"""The documents' table of exit codes is the code's."""

from __future__ import annotations

import re
from pathlib import Path

from effects.kit.exit_codes import ExitCode

ROOT = Path(__file__).parents[2]


def test_the_documents_list_every_exit_code() -> None:
    table = (ROOT / "docs" / "commands.md").read_text().split("| exit code | |\n|---|---|\n")[1].split("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == [int(code) for code in ExitCode]


def test_no_command_has_exit_codes_of_its_own() -> None:
    """They are constants of one module, so that one code never has two meanings."""
    folders = ["effects", "email/effects_email", "webhooks/effects_webhooks", "reports/effects_reports"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if path.name != "exit_codes.py"]
    own = {
        path.name: constants for path in files if (constants := re.findall(r"^EXIT_\w+ = \d+", path.read_text(), re.M))
    }
    assert own == {}
