"""Benchmarks and examples name what the packages have today: no test runs most of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.source import PACKAGES, ROOT, name_of

MODULES = [
    path
    for folder in ("benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "django_shop" not in path.parts  # needs Django set up; its tests run
]


def _names(path: Path) -> Iterator[tuple[str, str]]:
    """What the module imports from our packages: module and name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES:
            yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_its_imports_exist(path: Path) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in _names(path)
        if not hasattr(importlib.import_module(module), name) and importlib.util.find_spec(f"{module}.{name}") is None
    ]
    assert missing == []


def test_there_are_modules_to_look_at() -> None:
    assert sum(1 for path in MODULES for _ in _names(path)) > 100
