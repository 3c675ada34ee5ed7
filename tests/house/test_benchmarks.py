"""Benchmarks and examples name what the packages have today: no test runs most of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

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


def test_what_each_module_imports_exists() -> None:
    imports = [(path, module, name) for path in MODULES for module, name in _names(path)]
    assert len(imports) > 100
    assert [f"{name_of(path)}: {module}.{name}" for path, module, name in imports if not _exists(module, name)] == []


def _exists(module: str, name: str) -> bool:
    return hasattr(importlib.import_module(module), name) or importlib.util.find_spec(f"{module}.{name}") is not None
