"""Files that the packages create come from `effects.kit.process`, or from `tempfile`, as private."""

from __future__ import annotations

import ast

from tests.house.source import modules, name_of, nodes

HELPER = "effects/kit/process.py"
WRITERS = {"write_text", "write_bytes", "touch", "copyfile", "copy2", "mkstemp"}
FLAGS = {"O_CREAT", "O_TMPFILE"}


def _creates(node: ast.AST) -> bool:
    """Whether this may create a file with the mode that the umask leaves."""
    if isinstance(node, ast.Attribute) and node.attr in FLAGS:
        return True
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in WRITERS:
        return True
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    modes = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return name in ("open", "FileIO", "fdopen") and any(
        set(mode) <= set("rwxabt+") and set(mode) & set("wxa") for mode in modes
    )


def test_files_are_created_by_one_helper() -> None:
    places = {f"{name_of(path)}:{node.lineno}" for path, node in nodes() if _creates(node) and name_of(path) != HELPER}
    assert places == set()


def test_the_check_would_notice_the_helper() -> None:
    tree = next(tree for path, tree in modules().items() if name_of(path) == HELPER)
    assert any(_creates(node) for node in ast.walk(tree))
