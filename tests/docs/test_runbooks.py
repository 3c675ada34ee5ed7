"""Each finding of `effects doctor` has a section that says what to do, by commands that exist."""

from __future__ import annotations

import ast
import re

import click
import pytest

from effects.cli.main import cli
from effects.operate.tables import database_checks
from tests.house.source import PACKAGES, ROOT

FINDINGS = (ROOT / "docs" / "findings.md").read_text()
PAGES = [FINDINGS, (ROOT / "docs" / "alerts.md").read_text()]


def checks() -> set[str]:
    """The names that the sources give to findings."""
    calls = [
        node
        for package in PACKAGES.values()
        for path in package.rglob("*.py")
        if "DoctorFinding(" in (source := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "DoctorFinding"
    ]
    named = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    return named | set(database_checks._HELD.values())


def test_each_finding_has_a_section_and_each_section_a_finding() -> None:
    sections = re.findall(r"^## (.+)$", FINDINGS, re.MULTILINE)
    names = checks()
    assert len(names) > 30
    assert sorted(sections) == sorted(names)


def command_lines() -> set[str]:
    return {words for page in PAGES for words in re.findall(r"`effects ([^`]+)`", page)}


@pytest.mark.parametrize("words", sorted(command_lines()))
def test_a_command_of_a_section_exists_with_its_options(words: str) -> None:
    command: click.Command = cli
    for word in words.split():
        if isinstance(command, click.Group):
            subcommand = command.get_command(click.Context(command), word)
            assert subcommand is not None
            command = subcommand
    assert not isinstance(command, click.Group)
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words.split() if word.startswith("--")} <= options
