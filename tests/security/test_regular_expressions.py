"""A regular expression takes time in proportion to a text, whoever has written the text."""

from __future__ import annotations

import ast
import importlib
import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.house.source import PACKAGES, modules
from tests.support.attack_texts import attacks
from tests.support.cpu_bounded import Squared, cpu_bounded
from tests.support.sampling import sample

LENGTH = 60_000
TEXTS = 15  # of some hundreds for a pattern
CPU_SECONDS = 1.0  # in proportion to its length, such a text takes a tenth of that at most
ALL_MATCHES = ("sub", "subn", "findall", "finditer", "split")
METHODS = (*ALL_MATCHES, "search", "match", "fullmatch")
# Of texts that are cut before it sees them.
OF_REPLY = "of a reply at most 512 characters are kept"
BOUNDED = {
    "effects_email.classify._VARIABLE": OF_REPLY,
    "effects_email.transport.replies.verdicts._ADDRESS": OF_REPLY,
    "effects_email.transport.replies.verdicts._LINE": OF_REPLY,
    "effects_email.transport.replies.verdicts._NAMES": OF_REPLY,
    "effects_email.transport.smtp.pool._ADDRESS": "an address of an envelope has at most 320 characters",
    "effects_reports.formats.values._SERVER_MOMENT": "what PostgreSQL prints for a moment",
}


def uses() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    """Every pattern that a module of ours holds by name or passes to `re`, and how it is used."""
    names: dict[str, tuple[re.Pattern[Any], set[str]]] = {}
    for path, tree in modules().items():
        package = next(name for name, folder in PACKAGES.items() if path.is_relative_to(folder))
        parts = path.relative_to(PACKAGES[package]).with_suffix("").parts
        if "contrib" in parts:  # needs frameworks
            continue
        module = ".".join([package, *(part for part in parts if part != "__init__")])
        values = vars(importlib.import_module(module))
        for node in ast.walk(tree):
            for name, pattern, method in _use(node, values):
                names.setdefault(f"{module}.{name}", (pattern, set()))[1].add(method)
        for name, value in values.items():
            if isinstance(getattr(value, "__self__", None), re.Pattern):  # a method under a name of its own
                names.setdefault(f"{module}.{name}", (value.__self__, set()))[1].add(value.__name__)
    return names


def _use(node: ast.AST, values: Mapping[str, Any]) -> Iterator[tuple[str, re.Pattern[Any], str]]:
    """`_NAME.search`, or `re.search("…"`."""
    if isinstance(node, ast.Attribute) and node.attr in METHODS:
        pattern = values.get(name := ast.unparse(node.value))
        if isinstance(pattern, re.Pattern):
            yield name, pattern, node.attr
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        match [ast.unparse(node.func.value), *node.args]:
            case ["re", ast.Constant(value=str() | bytes() as text), *_]:
                yield text if isinstance(text, str) else repr(text), re.compile(text), node.func.attr


@pytest.mark.slow
def test_a_pattern_takes_time_in_proportion_to_a_text() -> None:
    slow: dict[str, str] = {}
    patterns = uses()
    for name, (pattern, methods) in patterns.items():
        for attack in sample([] if name in BOUNDED else attacks(pattern), TEXTS):
            text = attack.text(LENGTH)
            subject = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
            if not _is_in_proportion(pattern, methods, subject):
                slow[name] = f"{sorted(methods)} of {pattern.pattern!r:.100} on {text[:45]!r}… {len(text)} characters"
                break
    assert len(patterns) > 100
    assert slow == {}
    assert BOUNDED.keys() <= patterns.keys()


def _is_in_proportion(pattern: re.Pattern[Any], methods: set[str], text: Any) -> bool:
    try:
        with cpu_bounded(CPU_SECONDS):
            for method in methods:
                if method in ALL_MATCHES:
                    deque(pattern.finditer(text), 0)
                else:
                    getattr(pattern, method)(text)
    except Squared:
        return False
    return True


@pytest.mark.parametrize("squared", [r"@[^@]*[,;][^@]*@", r"\s+$", r"(a|a)*b"])
def test_one_that_takes_longer_is_seen(squared: str) -> None:
    pattern = re.compile(squared)
    texts = (attack.text(LENGTH) for attack in attacks(pattern))
    assert not all(_is_in_proportion(pattern, {"search"}, text) for text in texts)
