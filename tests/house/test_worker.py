"""The worker is wired of parts with one context and few callables; what was committed is told by one protocol."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.source import ROOT, modules, name_of

WORKER = ROOT / "effects" / "worker"
PARAMETERS_MAX, CALLABLES_MAX = 7, 1
EVENTS = {"released", "recorded", "refused"}  # of the observers


def _trees() -> list[tuple[str, ast.Module]]:
    return [(name_of(path), tree) for path, tree in modules().items() if path.is_relative_to(WORKER)]


def _classes() -> Iterator[tuple[str, ast.ClassDef, set[str]]]:
    """Each class with its module's name, and the names that stand for a callable there."""
    for name, tree in _trees():
        aliases = {
            target.id
            for node in tree.body
            if isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None
            for target in ([node.target] if isinstance(node, ast.AnnAssign) else node.targets)
            if isinstance(target, ast.Name) and "Callable[" in ast.unparse(node.value)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield name, node, {"Callable", *aliases}


def _parameters(node: ast.ClassDef) -> list[tuple[str, ast.expr | None]]:
    """Of its constructor, or the fields of a dataclass or a named tuple."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            arguments = member.args
            named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:]
            return [
                (each.arg, each.annotation) for each in (*named, arguments.vararg, arguments.kwarg) if each is not None
            ]
    generated = {ast.unparse(each).partition("(")[0] for each in (*node.decorator_list, *node.bases)}
    if not generated & {"dataclass", "NamedTuple"}:
        return []
    fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)]
    return [(ast.unparse(field.target), field.annotation) for field in fields]


def _is_callable(annotation: ast.expr | None, callables: set[str]) -> bool:
    names = ast.walk(annotation) if annotation is not None else ()
    return any(isinstance(name, ast.Name) and name.id in callables for name in names)


def _methods() -> set[str]:
    """Names that are methods of the worker's classes, and of none a property or a plain attribute."""
    methods, values = set[str](), set[str]()
    for _, node, _ in _classes():
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
                is_value = any(ast.unparse(each) == "property" for each in member.decorator_list)
                (values if is_value else methods).add(member.name)
        values |= {
            target.attr
            for target in ast.walk(node)
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store)
        }
    return methods - values


def _given(call: ast.Call, methods: set[str]) -> list[str]:
    """The callables that a call is given: lambdas, partials and bound methods."""
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    return [
        ast.unparse(value)
        for value in values
        if isinstance(value, ast.Lambda)
        or (isinstance(value, ast.Attribute) and value.attr in methods)
        or (isinstance(value, ast.Call) and ast.unparse(value.func) == "partial")
    ]


def test_constructors_of_the_worker_take_few_parameters_and_at_most_one_callable() -> None:
    faults = []
    for name, node, callables in _classes():
        parameters = _parameters(node)
        functions = [parameter for parameter, annotation in parameters if _is_callable(annotation, callables)]
        if len(parameters) > PARAMETERS_MAX:
            faults.append(f"{name} {node.name}: {len(parameters)} parameters")
        if len(functions) > CALLABLES_MAX:
            faults.append(f"{name} {node.name}: takes callables {', '.join(functions)}")
    names, methods = {node.name for _, node, _ in _classes()}, _methods()
    for name, tree in _trees():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in names:
                functions = _given(call, methods)
                if len(functions) > CALLABLES_MAX:
                    faults.append(f"{name}:{call.lineno} {call.func.id}: is given {', '.join(functions)}")
    assert faults == []


def test_what_was_committed_is_told_by_one_protocol() -> None:
    """No other protocol has its events, and no constructor takes a function of settlements or executions instead."""
    protocols, functions = [], []
    for name, node, callables in _classes():
        members = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
        if members & EVENTS and any(ast.unparse(base) == "Protocol" for base in node.bases):
            protocols.append((node.name, members))
        functions += [
            f"{name} {node.name}: {parameter}"
            for parameter, annotation in _parameters(node)
            if annotation is not None and _is_callable(annotation, callables)
            and "Settlement" in ast.unparse(annotation).partition("]")[0]
        ]  # fmt: skip
    assert protocols == [("Observer", EVENTS)]
    assert functions == []


def test_a_fault_is_found() -> None:
    source = """
Told: TypeAlias = Callable[[int], None]
class Part:
    def __init__(self, a, b, /, c: Callable[[], int], *, d: Told | None, e, f, g, **more): ...
    def close(self): ...
"""
    [node] = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ClassDef)]
    parameters = _parameters(node)
    assert [name for name, _ in parameters] == ["a", "b", "c", "d", "e", "f", "g", "more"]
    assert [name for name, kind in parameters if _is_callable(kind, {"Callable", "Told"})] == ["c", "d"]
    call = ast.parse("Part(self.close, lambda: 0, c=partial(print, 1), d=self.value)").body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    assert _given(call.value, {"close"}) == ["self.close", "lambda: 0", "partial(print, 1)"]
