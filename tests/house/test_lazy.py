"""Names and modules that are imported on first use, from the import statements that type checkers read."""

from __future__ import annotations

import ast
import builtins
import importlib.util
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from effects.kit import lazy
from tests.house.source import PACKAGES, modules

LAZY = [
    "effects",
    "effects.cli",
    *(f"effects.extend.{path.stem}" for path in (PACKAGES["effects"] / "extend").glob("[a-z]*.py")),
    "effects.web",
    "effects_email",
    "effects_reports",
    "effects_webhooks",
]


@pytest.fixture(params=LAZY)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def test_the_list_here_is_complete() -> None:
    assert {path for path, _ in _blocks("names")} == {
        Path(importlib.import_module(name).__file__ or "") for name in LAZY
    }


def test_each_name_is_listed_as_type_checkers_see_it() -> None:
    """`import X as X`: without the alias the name is not for others, and with another one neither."""
    for path, block in _blocks("names"):
        assert {type(node) for node in block.body} == {ast.ImportFrom}, path
        aliases = [alias for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
        assert [alias.name for alias in aliases if alias.asname != alias.name] == [], path


def test_each_stand_in_is_for_a_module() -> None:
    """A name of a module would be imported as one."""
    stand_ins = 0
    for path, block in _blocks("modules"):
        for module in _modules(block):
            assert importlib.util.find_spec(module), f"{path}: {module} is no module"
            stand_ins += 1
    assert stand_ins > 10


def test_a_stand_in_imports_its_module_at_its_first_use() -> None:
    names: dict[str, Any] = {"__name__": "tests.deferring", "lazy": lazy}
    sys.modules["tests.deferring"] = module = ModuleType("tests.deferring")
    vars(module).update(names)
    source = """with lazy.modules(__name__):
    import colorsys
    import wsgiref.headers as headers
    from wsgiref import util as wsgi"""
    for name in ("colorsys", "wsgiref.headers", "wsgiref.util"):
        sys.modules.pop(name, None)
    try:
        exec(source, vars(module))
        assert {"colorsys", "wsgiref.headers", "wsgiref.util"} & sys.modules.keys() == set()
        assert module.colorsys.rgb_to_hls is importlib.import_module("colorsys").rgb_to_hls
        assert module.headers.Headers is importlib.import_module("wsgiref.headers").Headers
        assert module.wsgi.FileWrapper is importlib.import_module("wsgiref.util").FileWrapper
    finally:
        del sys.modules["tests.deferring"]


def test_other_modules_are_imported_as_ever_meanwhile() -> None:
    """By another thread, or by what the block itself calls; and afterwards `__import__` is what it was."""
    eager = builtins.__import__
    with lazy.modules(__name__):
        assert builtins.__import__ is not eager
        assert importlib.import_module("wsgiref.handlers").BaseHandler
    assert builtins.__import__ is eager


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


def _blocks(kind: str) -> Iterator[tuple[Path, ast.With]]:
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.With) and ast.unparse(node.items[0].context_expr) == f"lazy.{kind}(__name__)":
                yield path, node


def _modules(block: ast.With) -> Iterator[str]:
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            assert isinstance(node, ast.Import)
            assert all(alias.asname or "." not in alias.name for alias in node.names), "it would stand for the package"
            yield from (alias.name for alias in node.names)
