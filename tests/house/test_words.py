"""How we write what people read: rules that a machine can check. docs/glossary.md says what the words mean."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import pytest

from effects.cli.main import cli
from tests.house.source import PACKAGES, ROOT, name_of, nodes

SUMMARY_MAX = 60
FORMER_QUEUE_WORDS = re.compile(r"\blanes?\b", re.IGNORECASE)
UNENGLISH = re.compile(
    r"\banew\b|\bis none\b|\bfor ever\b|give it again|\b[Oo]ver EFFECTS|\bWhy;|\bnobody\b|\bsomebody\b"
)
QUAINT = re.compile(r"\banew\b|\bis none\b|\bfor ever\b|\b[Nn]obody\b|\b[Ss]omebody\b")
REPLY_WORDS = "(nobody|no one)"  # in a pattern for the replies of mail servers

# Texts that people read and that have been replaced.
FORMER_TEXTS = (
    "Roll back, and there was",
    "a crash can turn none of them",
    "Work that falls due by the clock",
    "What is secret or personal is declared so",
    "deletes what is older than its age",
    "what one endpoint, domain or transport may",
    "What it promises, and what nobody can",
    "There is no broker: the database",
    "it is shown this once",
    "the point of no return",
    "with the job in its hands",
    "further ways by name",
    "let go of an old one",
    "Side effects as rows of your own transaction",
    "Over EFFECTS_DATABASE_URL",
    "give it again for more",
    "Threads of a lane",
    "Carry out jobs until told to stop",
    "the form for cron.",
    "Create the tables, or bring them to this version",
    "What waits, what failed, what is paused",
    "Check that nothing was lost, doubled or invented",
    "Look at jobs and act on them",
    "what waits for a person.",
    "Close them as they are",
    "Decide about effects that may have happened",
    "nothing waits for a person",
    "Limit keys: a rate, most in flight",
    "Change what KEY may",
    "Most at a time; 'none' for no cap",
    "Let no job of KEY start",
    "was open already",
    "Jobs that fall due by the clock",
    "What becomes of slots",
    "Let no slot run until",
    "Delete what has ended and is older than its age",
    "The keys that seal secrets in the database",
    "while everything goes on",
    "start those anew",
    "Look at the database, the workers",
    "the file holds little empty space",
    "the tables are those of this version",
    "no transaction is old",
    "is waiting, after",
    "nothing more happens until",
    '"no worker runs"',
    "jobs failing, or dead within a day",
    "Who is not written to: bounces",
    "Write no more to ADDRESS",
    "Write to ADDRESS again",
    "What holds for ADDRESS",
    "Default: for ever",
    "Although it was sent",
    "Take up a run that has failed",
    "Repair what lost jobs left behind",
    "Signed webhooks: where they go",
    "Send again what failed for an endpoint",
    "what is not given stays",
    "What requests are signed with.",
    "and up to 20 % more",
    "the address is not one",
    "--context is no JSON",
    "a mail server has none",
    "no effect has the key",
    "is the key that seals",
    "Nor does it make anybody older",
    "Who has a row:",
    "## What waits for a person",
    "What no row names is",
    "half is never seen",
)


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


COMMANDS = dict(_commands(cli, "effects"))


def _options() -> Iterator[tuple[str, click.Option]]:
    for name, command in COMMANDS.items():
        for option in command.params:
            if isinstance(option, click.Option):
                yield f"{name} {option.opts[0]}", option


def _pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted(ROOT.glob("docs/*.md"))]


def _sources() -> list[Path]:
    return [path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py"))]


def test_a_summary_fits_its_line() -> None:
    summaries = {name: command.get_short_help_str(200) for name, command in COMMANDS.items()}
    assert {
        name: text for name, text in summaries.items() if not 0 < len(text) <= SUMMARY_MAX or text.endswith("...")
    } == {}


def test_a_summary_is_an_imperative() -> None:
    """It begins with a verb: not with an article, a pronoun or a number."""
    first = {name: command.get_short_help_str(200).split()[0] for name, command in COMMANDS.items()}
    odd = {"A", "An", "The", "What", "Which", "Who", "One", "Every", "All", "Jobs", "Runs", "Messages"}
    assert {name: word for name, word in first.items() if word in odd or not word[0].isupper()} == {}


def test_every_option_has_a_help_text_that_ends_with_a_period() -> None:
    assert {name: option.help for name, option in _options() if not (option.help or "").endswith(".")} == {}


def test_help_texts_are_plain_english() -> None:
    texts = [(name, command.help or "") for name, command in COMMANDS.items()]
    texts += [(name, option.help or "") for name, option in _options()]
    assert {
        name: match[0]
        for name, text in texts
        for pattern in (UNENGLISH, FORMER_QUEUE_WORDS)
        if (match := pattern.search(text))
    } == {}


def test_sources_and_documents_are_plain_english() -> None:
    paths = [*_pages(), *_sources(), ROOT / "CHANGELOG.md"]
    assert [
        f"{name_of(path)}:{number} {match[0]}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (match := QUAINT.search(line)) and REPLY_WORDS not in line
    ] == []


def test_the_help_of_a_repeatable_option_mentions_it() -> None:
    assert [name for name, option in _options() if option.multiple and "Repeatable." not in (option.help or "")] == []


def test_former_texts_are_gone() -> None:
    paths = [*_pages(), *_sources()]
    texts = {name_of(path): " ".join(path.read_text(encoding="utf-8").split()) for path in paths}
    assert [(name, former) for name, text in texts.items() for former in FORMER_TEXTS if former in text] == []


def test_the_documents_call_a_queue_a_queue() -> None:
    uses = [
        f"{name_of(path)}:{number} {line}"
        for path in _pages()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if FORMER_QUEUE_WORDS.search(line)
    ]
    assert uses == []


VAGUE = {"one", "found", "made", "given", "known", "mine", "some", "other", "told", "also", "wanted", "asked"}


def test_a_binding_names_what_it_is() -> None:
    assert _vague(nodes()) == []


@pytest.mark.slow
def test_a_binding_in_tests_benchmarks_and_examples_names_what_it_is() -> None:
    paths = [path for folder in ("tests", "benchmarks", "examples") for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths)
    assert _vague((path, node) for path, tree in trees for node in ast.walk(tree)) == []


def _vague(tree_nodes: Iterable[tuple[Path, ast.AST]]) -> list[str]:
    return [
        f"{name_of(path)}:{getattr(node, 'lineno', 0)} {name}"
        for path, node in tree_nodes
        if (name := _bound(node)) in VAGUE
    ]


def _bound(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    return node.arg if isinstance(node, ast.arg) else None


LISTS = {name: command for name, command in COMMANDS.items() if name.endswith(" list")}
SHARED = {"--limit", "--since", "--until", "--older", "--newer", "--type", "--queue", "--key", "--json"}


def test_every_list_has_the_same_limit_and_json() -> None:
    assert len(LISTS) > 10
    shared = _grammar(_option("effects jobs list", "--limit"))
    limits = {
        name: [_grammar(option) for option in command.params if "--limit" in option.opts]
        for name, command in LISTS.items()
    }
    assert {name for name, grammars in limits.items() if grammars != [shared]} == set()
    assert {name for name, command in LISTS.items() if not _has(command, "--json")} == set()


def test_a_filter_of_lists_has_one_grammar() -> None:
    """The same option of two lists is read by the same function, and has the same default and metavar."""
    grammars: dict[str, set[str]] = {}
    for command in LISTS.values():
        for option in command.params:
            if option.opts[0] in SHARED:
                grammars.setdefault(option.opts[0], set()).add(_grammar(option))
    assert {name: forms for name, forms in grammars.items() if len(forms) > 1} == {}


def test_a_list_with_a_bound_in_time_has_all_four() -> None:
    bounds = ("--since", "--until", "--older", "--newer")
    bounded = {name for name, command in LISTS.items() if any(_has(command, bound) for bound in bounds)}
    assert {name for name in bounded if not all(_has(LISTS[name], bound) for bound in bounds)} == set()
    assert {"effects jobs list", "effects dead list", "effects email list", "effects reports list"} <= bounded


def test_commands_are_built_of_the_shared_parts() -> None:
    """The branch on `--json`, and options that several commands share, are written in effects/cli alone."""
    shared = re.compile(r"if as_json|as_json:|\"--(?:limit|older|newer|reason)\"")
    allowed = {"effects/cli/results.py", "effects/cli/options.py"}
    streams = {"webhooks/effects_webhooks/commands/listen.py", "webhooks/effects_webhooks/commands/deliveries.py"}
    uses = {name_of(path) for path in _sources() if shared.search(path.read_text(encoding="utf-8"))}
    assert uses - allowed - streams == set()


def _grammar(option: click.Parameter) -> str:
    kind = getattr(option.type, "func", option.type)
    return f"{getattr(kind, '__name__', kind)} {option.default} {option.metavar}"


def _has(command: click.Command, name: str) -> bool:
    return any(name in option.opts for option in command.params)


def _option(command: str, name: str) -> click.Parameter:
    return next(option for option in COMMANDS[command].params if name in option.opts)


# Habits that make a sentence read twice, with how often the documents and the dashboard's templates may have them: a
# tenth of what they once had, or what they have today. A bound is only ever lowered.
HABITS = {
    "headless subject": (
        r"(?:^|[.:;|] +)What (?:is|was|has|had|ends?|ended|comes?|came|goes|failed|happens?|remains?|follows?|waits?"
        r"|they|it|a|an|the|your|no)\b[^?\n]{0,60}?(?=\n|[^?]{0,80}\.)",
        4, 4,
    ),
    "at once, for now": (r"\bat once\b", 5, 3),
    "of its own": (
        r"\bof (?:its|their|your|our) own"
        r"(?=\s*(?:[.,;:)|]|$|(?:that|which|is|are|in|on|and|or|it|there|here|has|have|until)\b))",
        7, 1,
    ),
    "beside, for with or next to": (r"\bbeside\b", 4, 2),
    "gives, takes": (
        r"\b(?:gives|takes)\b(?!\s(?:at most|longer|less|its time|time|precedence|half|an hour|over|up\b|way\b|where"
        r"|four|a (?:quarter|sixth|fifth|second|minute)|10 s|the file's lock|the (?:same memory|job's row lock)))",
        15, 4,
    ),
    "those that": (r"\b[Tt]hose (?:that|of|who)\b", 4, 3),
    "a person": (r"\ba person\b|\bnobody\b|\bno one\b", 3, 1),
    "gone": (r"\bgone\b", 2, 1),
    "mend, lies, stands, bears": (r"\bmends?\b|\bmended\b|\blies\b|\bstands\b|\bbears\b", 2, 1),
    "two clauses and a semicolon": (r";", 570, 25),
}  # fmt: skip
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
GENERATED = {"mistakes.md"}


@pytest.mark.parametrize("habit", HABITS)
def test_habits_that_make_a_sentence_read_twice_are_rare(habit: str) -> None:
    pattern, in_documents, in_templates = re.compile(HABITS[habit][0]), HABITS[habit][1], HABITS[habit][2]
    folders = [
        path for path in _pages() if path.name not in GENERATED and path.parent.name not in ("tests", "benchmarks")
    ]
    documents = [*folders, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md"))]
    prose = [CODE.sub("", path.read_text(encoding="utf-8")) for path in documents]
    templates = [path.read_text(encoding="utf-8") for folder in PACKAGES.values() for path in folder.rglob("*.html")]
    assert sum(len(pattern.findall(text)) for text in prose) <= in_documents
    assert sum(len(pattern.findall(text)) for text in templates) <= in_templates
