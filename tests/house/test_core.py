"""The core knows none of the built-in packages by name: neither them, nor their job types, nor their settings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.source import PACKAGES, modules, name_of

PACKAGE_WORDS = re.compile(r"\b(effects_)?(webhooks?|e-?mails?|reports?|smtp)\b", re.IGNORECASE)
EXAMPLE = re.compile(r"such as [^;.]*(\.\w[^;. ]*)*")  # in a help text or an error

ALLOWED = {
    "effects/settings.py": "type checkers read no entry points; `test_options.py` compares it with the settings",
    "effects/model/schedules.py": "type checkers read no entry points; `test_report_chains.py` runs what it schedules",
    "effects/keys/signing.py": "the header names of the Standard Webhooks specification",
}


def _docstrings(tree: ast.Module) -> set[int]:
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    firsts = [node.body[0] for node in owners if node.body]
    return {id(first.value) for first in firsts if isinstance(first, ast.Expr)}


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts beside docstrings, without their examples, and names, as words."""
    docstrings = _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, EXAMPLE.sub("", node.value)
        elif isinstance(node, ast.Name | ast.arg | ast.FunctionDef | ast.ClassDef | ast.Attribute):
            yield node.lineno, _words(node)


def _words(node: ast.Name | ast.arg | ast.FunctionDef | ast.ClassDef | ast.Attribute) -> str:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.Attribute(attr=name):
            pass
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            pass
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).split("_")
    return " ".join(word for word in words if word != "report")  # a verb, in names


def test_the_core_names_no_package() -> None:
    uses = [
        f"{name_of(path)}:{line} {text.strip()[:60]}"
        for path, tree in modules().items()
        if path.is_relative_to(PACKAGES["effects"]) and name_of(path) not in ALLOWED
        for line, text in _texts(tree)
        if PACKAGE_WORDS.search(text)
    ]
    assert uses == []


def test_the_docstrings_of_the_core_name_no_package() -> None:
    """An example may name a job type, and `effects_…` is never one."""
    names = re.compile(r"effects_(email|webhooks|reports)")
    paths = [path for path in modules() if path.is_relative_to(PACKAGES["effects"])]
    assert [name_of(path) for path in paths if names.search(path.read_text(encoding="utf-8"))] == []


def test_every_exemption_still_exists() -> None:
    trees = {name_of(path): tree for path, tree in modules().items()}
    unused = [name for name in ALLOWED if not any(PACKAGE_WORDS.search(text) for _, text in _texts(trees[name]))]
    assert unused == []
