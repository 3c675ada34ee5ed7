"""Packages whose names are imported on first use: type checkers read imports, Python a table, and both say the same."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from effects.process import lazy
from tests.house.source import modules

LAZY = [
    "effects",
    "effects.cli",
    "effects.extend",
    "effects.web",
    "effects_email",
    "effects_reports",
    "effects_webhooks",
]


@pytest.fixture(params=LAZY)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_the_list_here_is_complete() -> None:
    files = {path for path, tree in modules().items() if "lazy.names" in {*_calls(tree)}}
    assert files == {Path(importlib.import_module(name).__file__ or "") for name in LAZY}


def test_the_table_matches_the_imports(package: ModuleType) -> None:
    tree = ast.parse(Path(package.__file__ or "").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    imports = {
        (node.module, ast.unparse(alias))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [assignment] = block.orelse
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.Call)
    table = ast.literal_eval(assignment.value.args[1])
    assert {(module, name) for module, listed in table.items() for name in listed.split(", ")} == imports


def test_a_stand_in_is_for_the_module_that_type_checkers_see() -> None:
    """Both branches are run; each stand-in of the second must have its module in the first."""
    stand_ins = 0
    for path, tree in modules().items():
        for block in (node for node in tree.body if isinstance(node, ast.If) and "lazy.module" in {*_calls(node)}):
            eager, late = _run(block.body), _run(block.orelse)
            assert {name: eager[name].__name__ for name in late} == {name: late[name].__name__ for name in late}, path
            stand_ins += len(late)
    assert stand_ins > 10


def test_each_public_name_exists_and_is_listed(package: ModuleType) -> None:
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    assert set(package.__all__) <= set(dir(package))


def test_no_name_is_also_a_submodule_that_would_hide_it(package: ModuleType) -> None:
    submodules = {module.name for module in pkgutil.iter_modules(getattr(package, "__path__", []))}
    assert submodules & set(package.__all__) == set()


def test_an_unknown_name_is_an_attribute_error(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match=f"module '{package.__name__}' has no attribute 'enqeue'"):
        _ = package.enqeue
    with pytest.raises(ImportError, match="cannot import name 'enqeue'"):
        exec(f"from {package.__name__} import enqeue")


def _run(statements: list[ast.stmt]) -> dict[str, Any]:
    names: dict[str, Any] = {"lazy": lazy}
    exec(compile(ast.Module(statements, []), "<block>", "exec"), names)
    return {name: value for name, value in names.items() if name not in ("lazy", "__builtins__")}


def _calls(tree: ast.AST) -> Iterator[str]:
    yield from (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
