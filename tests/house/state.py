"""Names of a module that code changes after the import: rebound by `global`, written to, or made to hold state."""

from __future__ import annotations

import ast
from collections.abc import Iterator

STATEFUL = {
    "ContextVar", "Condition", "Counter", "Event", "Lock", "OrderedDict", "Queue", "RLock", "Semaphore", "SimpleQueue",
    "WeakKeyDictionary", "WeakSet", "WeakValueDictionary", "count", "defaultdict", "deque", "dict", "list", "local",
    "set",
}  # fmt: skip
CHANGES = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault",
    "update",
}  # fmt: skip


def mutable_names(tree: ast.Module) -> set[str]:
    """The module's own names that hold state."""
    values = dict(_bindings(tree))
    stateful = {name for name, value in values.items() if _holds_state(value)}
    changed = {name for node in ast.walk(tree) for name in _changed(node)}
    rebound = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    return stateful | (changed & values.keys()) | rebound


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node.value) for target in targets if isinstance(target, ast.Name))


def _holds_state(value: ast.expr) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=maker) | ast.Attribute(attr=maker)):
            return maker in STATEFUL
    return False


def _changed(node: ast.AST) -> Iterator[str]:
    """The names whose elements or attributes this node writes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            pass
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            targets = [target]
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in CHANGES:
            yield name
            return
        case _:
            return
    for target in targets:
        match target:
            case ast.Subscript(value=ast.Name(id=name)) | ast.Attribute(value=ast.Name(id=name)):
                yield name
