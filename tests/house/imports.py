"""Which module imports which, over the four packages, and the circles among them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.house.source import PACKAGES, modules

Graph = Mapping[str, set[str]]


def imports() -> dict[str, set[str]]:
    """Module → the modules that it imports, in functions and under TYPE_CHECKING too."""
    trees = {dotted(path): tree for path, tree in modules().items()}
    return {name: {target for target in _targets(tree, trees) if target != name} for name, tree in trees.items()}


def circles(graph: Graph) -> list[list[str]]:
    """The strongly connected components of more than one module, each in order of its names."""
    reached = {name: _reachable(graph, name) for name in graph}
    components = {
        tuple(sorted(member for member in names if name in reached[member])) for name, names in reached.items()
    }
    return sorted(list(component) for component in components if len(component) > 1)


def dotted(path: Path) -> str:
    package, folder = next((name, folder) for name, folder in PACKAGES.items() if path.is_relative_to(folder))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join((package, *(part for part in parts if part != "__init__")))


def _targets(tree: ast.Module, names: Mapping[str, object]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                submodule = f"{module}.{alias.name}"
                if submodule in names or module in names:
                    yield submodule if submodule in names else module


def _reachable(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - reached:
            reached.add(name)
            waiting.append(name)
    return reached
