"""Any advice that a command prints: run as it stands, it works, and repeats nothing that it did not announce."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from effects import Cancelled, Effects
from effects.cli.main import cli
from tests.cli.conftest import ROOT, Answer
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.effect_states import KINDS, STATES, Effect, EffectStates, effects_app
from tests.support.manual_workers import rows
from tests.support.sampling import sample

# States in which the effect did not happen for certain: a command that sends it again is safe.
NOT_DONE = ("refused", "ignored", "abandoned", "requeued and refused")
SOURCES = ("effects", "email", "webhooks", "reports", "effects_toolkit")
MAY_REPEAT = ("unknown", "unknown and cancelled", "given up", "requeued and unknown")


@pytest.fixture
def app(app_factory: AppFactory, tmp_path: Path) -> Effects:
    return effects_app(app_factory, tmp_path)


def questions(effect: Effect) -> list[list[object]]:
    """Every way to ask about it."""
    by_id: list[list[object]] = [["jobs", "show", effect.newest]]
    return [*by_id, ["why", effect.name]] if effect.name is not None else by_id


def advised(answer: Answer) -> list[list[str]]:
    """The commands in an answer."""
    assert answer.exit_code == 0, answer
    return [shlex.split(line)[1:] for line in dict.fromkeys(re.findall(r"`(effects [^`]+)`", answer.out))]


def texts_of(source: Path) -> Iterator[str]:
    """The texts that a module may print, `1` for what is filled in; without docstrings."""
    tree = ast.parse(source.read_text())
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, described) and node.body and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def advice_in_the_source() -> list[str]:
    sources = [path for folder in SOURCES for path in (ROOT / folder).rglob("*.py")]
    texts = (text for source in sources for text in texts_of(source))
    return sorted({line for text in texts for line in re.findall(r"`(effects [a-z][^`]*)`", text)})


def parse(words: list[str]) -> None:
    """As click does before it runs a command. The bare name of a command is a mention of it, and no advice.

    Raises:
        click.UsageError: it would be refused.
    """
    command: click.Command = cli
    parent, name = None, "effects"
    while isinstance(command, click.Group) and words:
        parent = click.Context(command, parent=parent, info_name=name)
        resolved, subcommand, words = command.resolve_command(parent, words)
        assert subcommand is not None
        command, name = subcommand, str(resolved)
    if words:
        command.make_context(name, list(words), parent=parent)


@pytest.mark.slow
def test_every_command_that_a_text_advises_parses() -> None:
    lines = advice_in_the_source()
    assert len(lines) > 15
    for line in lines:
        try:
            parse(shlex.split(line)[1:])
        except click.UsageError as error:
            pytest.fail(f"`{line}`: {error.format_message()}")


CASES = [(kind, state) for kind in KINDS for state in STATES]


@pytest.mark.slow
def test_every_command_that_is_advised_works_and_is_safe(app: Effects) -> None:
    states = EffectStates(app)
    for kind, state in sample(CASES, 25):
        ways = len(questions(states.make(kind, state)))
        for way in range(ways):
            effect = states.make(kind, state)
            for number in range(len(advised(command(app, *questions(effect)[way])))):
                effect = states.make(kind, state)
                advice = advised(command(app, *questions(effect)[way]))[number]
                answer = command(app, *advice)
                assert answer.exit_code == 0, (kind, state, advice, answer)
                check_safe(app, effect, advice)


def check_safe(app: Effects, effect: Effect, advice: list[str]) -> None:
    """What may have happened is repeated by a word that says so, and what is done by no advice at all."""
    repeated = rows(app, "jobs", "requeued_from = :id", id=effect.newest) != []
    repeats_by_policy = effect.kind in ("scripted", "webhook")
    announced = "--even-if-done" in advice or repeats_by_policy
    allowed = effect.state in NOT_DONE or (effect.state in MAY_REPEAT and announced)
    assert not repeated or allowed, (effect, advice)


@pytest.mark.parametrize(("kind", "state", "says"), [
    ("held", "refused", "`effects retry {job}`"),
    ("held", "unknown", "`effects resolve {job} --as done`"),
    ("keyless", "unknown", "`effects retry {job} --even-if-done`"),
    ("scripted", "unknown", "`effects retry {job}`"),
    ("held", "given up", "`effects retry {job} --even-if-done`"),
    ("held", "done", "Nothing left to do."),
    ("held", "marked done", "Nothing left to do."),
])  # fmt: skip
def test_the_advice_fits_the_state(app: Effects, kind: str, state: str, says: str) -> None:
    effect = EffectStates(app).make(kind, state)
    for question in questions(effect):
        assert says.format(job=effect.newest) in command(app, *question).out
    if state in ("done", "marked done"):
        assert all(advised(command(app, *question)) == [] for question in questions(effect))


def test_a_suppressed_mail_is_retried_once_its_address_is_off_the_list(app: Effects) -> None:
    """Before that it would be suppressed again."""
    states = EffectStates(app)
    effect = states.make("email", "waiting")
    states.end("email", Cancelled("its recipients are on the suppression list", code="suppressed"))
    for question in questions(effect):
        show, retry = advised(command(app, *question))
        assert "ann@example.com" in command(app, *show).out
        assert retry == ["retry", str(effect.name)]
    assert command(app, *retry).exit_code == 0
