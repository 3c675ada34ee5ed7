"""The project's own source files as syntax trees, for tests about its structure and its words."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.lasting_objects import lasting_objects

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "effects": ROOT / "effects",
    "effects_email": ROOT / "email" / "effects_email",
    "effects_webhooks": ROOT / "webhooks" / "effects_webhooks",
    "effects_reports": ROOT / "reports" / "effects_reports",
}
CORE = "effects-toolkit"
# Name → the folder of its pyproject.toml.
DISTRIBUTIONS = {CORE: ROOT, **{f"{CORE}-{name}": ROOT / name for name in ("email", "webhooks", "reports")}}


@cache
def pyproject(distribution: str) -> dict[str, Any]:
    """What a distribution's pyproject.toml says."""
    return tomllib.loads((DISTRIBUTIONS[distribution] / "pyproject.toml").read_text(encoding="utf-8"))


def package_of(distribution: str) -> str:
    """The package that people import: `effects_email` of `effects-toolkit-email`."""
    return distribution.replace(CORE, "effects").replace("-", "_")


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module of the four packages, migrations left out."""
    paths = [
        path for folder in PACKAGES.values() for path in sorted(folder.rglob("*.py")) if "versions" not in path.parts
    ]
    with lasting_objects():
        return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}


@cache
def nodes() -> list[tuple[Path, ast.AST]]:
    """Every node of every module. To list them takes longer than most tests' own questions about them."""
    with lasting_objects():
        return [(path, node) for path, tree in modules().items() for node in ast.walk(tree)]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    """The room of the core that a module stands in, or the package: names are unique within one."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
