"""The table of tasks in docs/commands.md: each is one command that parses, and no command is there for nothing."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from effects.cli.main import HELP_GROUPS, cli
from tests.cli.conftest import ROOT, effects
from tests.support.commands import leaves

TASKS = re.findall(
    r"^\| ([^|]+) \| `(effects [^`]+)` \|$",
    (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").partition("## Tasks")[2].partition("## Exit codes")[0],
    re.MULTILINE,
)
# Commands that no task names, and why there is one all the same.
WITHOUT_TASK = {
    "jobs reschedule": "needs a key and a time, as the page Commands says",
    "reports buckets add": "needs an address and credentials: docs/report-delivery.md has it whole",
    "reports buckets rotate": "the same",
    "reports subscriptions add": "needs a schedule, a recipient and a template: docs/report-delivery.md has it whole",
    "schedules add": "needs a type and a schedule: docs/schedules.md has it whole",
    "web link": "needs a name and a role: docs/dashboard.md has it whole",
    "webhooks send": "needs a type and data: webhooks/README.md has it whole",
}


def parsed(words: list[str]) -> str:
    """The name of the command, whose arguments click has accepted; callbacks that ask a database are left out.

    Raises:
        click.UsageError: they would be refused.
    """
    command: click.Command = cli
    parent, path = click.Context(cli, info_name="effects"), list[str]()
    while isinstance(command, click.Group):
        name, subcommand, words = command.resolve_command(parent, words)
        assert subcommand is not None, words
        command, path = subcommand, [*path, str(name)]
        if isinstance(command, click.Group):
            parent = click.Context(command, parent=parent, info_name=name)
    command.make_context(path[-1], list(words), parent=parent)
    return " ".join(path)


@pytest.mark.parametrize(("task", "line"), TASKS, ids=[task for task, _ in TASKS])
def test_a_task_is_one_command_with_at_most_one_option(task: str, line: str) -> None:
    words = shlex.split(line)[1:]
    parsed(words)
    options = [word for word in words if word.startswith("-") and word != "--json"]
    assert len(options) <= 1, options


def test_there_is_no_command_that_no_task_uses() -> None:
    named = {parsed(shlex.split(line)[1:]) for _, line in TASKS}
    assert len(TASKS) >= 45
    assert {name for name, _ in leaves(cli)} - named == set(WITHOUT_TASK)


def test_the_help_of_the_root_has_each_command_once_in_a_group() -> None:
    text = effects("--help").out
    for name in cli.list_commands(click.Context(cli)):
        assert len(re.findall(rf"^  {name} +[A-Z]", text, re.MULTILINE)) == 1, name
    assert [title for title in HELP_GROUPS if f"\n{title}:\n" in text] == list(HELP_GROUPS)
    assert "\nExamples:\n" in text
    assert all(len(line) <= 80 for line in text.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    answer = effects("completion", shell)
    assert (answer.exit_code, "_EFFECTS_COMPLETE" in answer.out) == (0, True)


def test_help_tells_no_bound_that_only_a_database_has() -> None:
    for name, command in leaves(cli):
        context = click.Context(command, info_name=name)
        assert "x<=4611686018427387904" not in command.get_help(context), name
