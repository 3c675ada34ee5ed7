"""The shape of the code: sizes, places and imports. Each rule lists all violations."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.house.imports import circles, imports
from tests.house.source import ROOT, functions, modules, name_of, nodes, room_of
from tests.house.state import mutable_names

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 500
WING_MODULES_MAX = 12
SAME_NAME_MAX = 2  # as `tables/events.py` beside `events.py`
FOLDER_MODULES_MAX = 17
# (what is divided into wings, how many modules stand beside them)
WINGED = {"effects/store": 6, "effects/worker": 4, "email/effects_email/transport": 6}
LARGE_FOLDERS = {
    "effects/operate/tables": "a module for each list, action or check of an operator",
    "email/effects_email": "a module for each role, as in the other packages",
}
ARCHITECTURE_LINES_MAX = 250
HANDLER_CLASSES = {"_Handler", "_Server"}  # of the standard library's servers, private to their modules

# What a process has once. Everything else belongs to an Effects.
STATE_OF_MODULES = {
    "effects/app/default.py _default": "the process's own Effects, which an app sets by `set_default`",
    "effects/app/default.py _of_environment": "the one that the environment describes, where nothing was set or made",
    "effects/app/default.py _collected": "which Effects there were after the last collection of garbage",
    "effects/app/default.py _default_lock": "guards them",
    "effects/cli/process.py _program": "of a context: the program as it was called, which advice names",
    "effects/cli/process.py _is_under_nohup": "as its signals, of the process: whether it began with SIGHUP ignored",
    "effects/kit/logs.py failures": "logging is the process's, and so is what its handlers raised",
    "effects/kit/logs.py _told_at": "as above: when standard error was told",
    "effects/kit/logs.py _configured": "as above: whether a command has set it up",
    "effects/kit/crashpoints.py POINTS": "packages add theirs when they are imported",
    "effects/kit/crashpoints.py _hook": "what a test does at a crash point",
    "effects/worker/machine/event_loop.py _owner": "of a context: the attempt whose code runs in it",
    "effects/kit/process.py _executor": "of a context: the threads of the event loop that its task runs on",
    "effects/kit/lazy.py _deferring": "one block of imports is deferred at a time: `__import__` is a process's",
    "effects/kit/process.py _owners": "a fork is heard of by the process alone; held weakly",
    "effects/testing/loops.py _process": "modules of an app bind objects to the event loop, which later tests use",
    "effects/kit/network.py _rule": "a socket is the process's: a test admits no connection, whoever opens it",
    "effects/store/sessions/asynchronous.py _announced": "of a context: the line that made a call in another thread",
    "effects/store/sessions/forgotten.py _sessions": "of a context: transactions of sessions begun in it, held weakly",
    "effects/store/sessions/forgotten.py _writings": "of a context: connections that have written in it, held weakly",
    "effects/store/sessions/databases.py _constructed": "the engine of a session leads to its Effects; held weakly",
    "effects/kit/importing.py _importing": "while a command imports an app, which may not enqueue",
    "email/effects_email/transport/smtp/pool.py _pools": "a fork is heard of by the process alone",
    "email/effects_email/transport/url.py _registered": "schemes of URLs, before any Effects is made",
}


def test_no_function_is_longer_than_70_lines() -> None:
    long = [
        f"{name_of(path)}:{function.lineno} {function.name}"
        for path, tree in modules().items()
        for function in functions(tree)
        if (function.end_lineno or 0) - function.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: length for name, length in lengths.items() if length > MODULE_LINES_MAX} == {}


def _modules_by_folder() -> Counter[str]:
    return Counter(name_of(path.parent) for path in modules() if path.name != "__init__.py")


@pytest.mark.parametrize("folder", WINGED)
def test_a_large_part_is_divided_into_wings(folder: str) -> None:
    sizes = _modules_by_folder()
    wings = {name: size for name, size in sizes.items() if Path(name).parent == Path(folder)}
    assert sizes[folder] <= WINGED[folder]
    assert len(wings) > 1
    assert {name: size for name, size in wings.items() if size > WING_MODULES_MAX} == {}


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    """Or has a reason why it is large."""
    large = {name for name, size in _modules_by_folder().items() if size > FOLDER_MODULES_MAX}
    assert large == LARGE_FOLDERS.keys()


def test_no_imports_go_in_a_circle() -> None:
    """Counting those of functions and for type checkers, which the import contracts count too, and every package."""
    assert circles(imports()) == []


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert circles(graph) == [["b", "c"]]
    assert "effects.calls.enqueue" in imports()["effects.operate.alert_check"]


def test_a_class_name_stands_for_one_class_in_a_room() -> None:
    places: dict[tuple[str, str], list[str]] = {}
    for path, node in nodes():
        if isinstance(node, ast.ClassDef) and node.name not in HANDLER_CLASSES:
            places.setdefault((room_of(path), node.name), []).append(f"{name_of(path)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_name_of_a_module_stands_for_one_or_two_in_a_room() -> None:
    names = Counter((room_of(path), path.name) for path in modules() if path.name != "__init__.py")
    assert {name: count for name, count in names.items() if count > SAME_NAME_MAX} == {}


def test_a_module_keeps_no_state() -> None:
    """State belongs to an Effects (`Effects.state`), so that two in one process do not meet."""
    stateful = {f"{name_of(path)} {name}" for path, tree in modules().items() for name in mutable_names(tree)}
    assert stateful == STATE_OF_MODULES.keys()


def test_state_of_a_module_is_found() -> None:
    source = "a = {1: 2}\nb = {1: 2}\nc = threading.local()\nd = None\ne = []\n"
    source += "def f():\n    global d\n    a[3] = 4\n    b.get(1)\n    e.append(1)\n"
    assert mutable_names(ast.parse(source)) == {"a", "c", "d", "e"}


def test_source_files_are_where_the_tests_look() -> None:
    assert len(modules()) > 200
    assert (ROOT / "pyproject.toml").exists()


def test_the_architecture_fits_250_lines() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= ARCHITECTURE_LINES_MAX


def test_links_between_documents_lead_somewhere() -> None:
    documents = [ROOT / "README.md", *sorted(ROOT.glob("*/README.md")), *sorted(ROOT.glob("docs/*.md"))]
    broken = [
        f"{name_of(document)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
        if not (document.parent / target).exists()
    ]
    assert broken == []


def test_no_test_module_is_imported() -> None:
    """What two tests share is in tests/support, tests/peers, or a module beside them."""
    imports = [
        f"{name_of(path)}: {match[0]}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for match in re.finditer(r"^from tests[.\w]*\.test_\w+ import", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert imports == []


def test_the_readme_of_the_tests_lists_every_folder() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    folders = {
        name_of(path.parent).removeprefix("tests/") + "/"
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent.name not in ("tests", "__pycache__")
    }
    assert sorted(folder for folder in folders if f"`{folder}`" not in text) == []


# What is written once, and where. Each is looked for as a call in the syntax trees.
TELLTALES = {
    "create_ssl_context": "effects/kit/http/messages.py",
    "fromtimestamp": "effects/kit/moments.py",
    "isprintable": "effects/kit/text/unsafe.py",
    "isdecimal": "effects/kit/text/unsafe.py",
    "NetworkError": "effects/kit/http/messages.py",
}


def test_what_is_checked_or_converted_is_written_once() -> None:
    places = {
        telltale: [name_of(path) for path, node in nodes() if isinstance(node, ast.Attribute) and node.attr == telltale]
        for telltale in TELLTALES
    }
    assert places == {telltale: [place] for telltale, place in TELLTALES.items()}


def test_no_other_test_of_digits_is_used() -> None:
    """`isdigit` and `isnumeric` know digits that `int` does not."""
    places = {name_of(path) for path, node in nodes() if getattr(node, "attr", None) in ("isdigit", "isnumeric")}
    assert places == set()


def test_the_message_for_a_number_above_0_is_written_once() -> None:
    """`arguments.positive` has it; `RetryPolicy` stands below that, and names two of its values in one message."""
    places = [
        name_of(path)
        for path, node in nodes()
        if isinstance(node, ast.Constant) and "must be above 0" in str(node.value)
    ]
    assert sorted(places) == ["effects/kit/arguments.py", "effects/retry.py"]


def test_pages_are_walked_by_one_loop() -> None:
    """A loop that asks `go_on` before each page stands in effects/store/db/walk.py alone."""
    loops = [
        name_of(path) for path, node in nodes() if isinstance(node, ast.While) and "go_on" in ast.unparse(node.test)
    ]
    assert loops == ["effects/store/db/walk.py"]


def test_a_conflict_of_keys_is_decided_in_one_place() -> None:
    """Only `write_once` compares the digest of a request with a stored one, and raises the error."""
    calls = {
        name: [name_of(path) for path, node in nodes() if isinstance(node, ast.Call) and is_telltale(node)]
        for name, is_telltale in {
            "raises": lambda call: isinstance(call.func, ast.Name) and call.func.id == "IdempotencyConflict",
            "compares": lambda call: any(
                keyword.arg == "like" and "digest" in ast.unparse(keyword.value) for keyword in call.keywords
            ),
        }.items()
    }
    assert calls == {"raises": ["effects/store/idempotence.py"], "compares": ["effects/store/idempotence.py"]}
