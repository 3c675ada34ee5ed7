"""Whoever changes something says who and why: each function of operators takes both, each command takes `--reason`."""

from __future__ import annotations

import ast

from tests.house.source import functions, modules, name_of

NOTES = {"note", "note_all", "note_endpoint"}
# What is called `reason` in the audit log has another name there: theirs is the cause of a suppression.
OTHER_NAME = {"suppress": "why", "unsuppress": "why"}


def _called(function: ast.AST) -> set[str]:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return {call.id for call in calls if isinstance(call, ast.Name)}


def test_functions_that_record_actions_take_actor_and_reason() -> None:
    noting = [
        (path, function)
        for path, tree in modules().items()
        for function in functions(tree)
        if _called(function) & NOTES and not function.name.startswith("_")
    ]
    assert len(noting) > 20
    wrong = []
    for path, function in noting:
        keyword_only = {argument.arg for argument in function.args.kwonlyargs}
        if not {"actor", OTHER_NAME.get(function.name, "reason")} <= keyword_only:
            wrong.append(f"{name_of(path)}: {function.name}")
    assert wrong == []


def test_a_command_that_acts_takes_a_reason() -> None:
    """A command that names its actor changes something."""
    acting = [
        (path, function)
        for path, tree in modules().items()
        if "commands" in path.parts or "cli" in path.parts
        for function in tree.body
        if isinstance(function, ast.FunctionDef) and "actor" in _called(function)
    ]
    assert len(acting) > 15
    assert [
        f"{name_of(path)}: {function.name}"
        for path, function in acting
        if "reason" not in {argument.arg for argument in [*function.args.args, *function.args.kwonlyargs]}
    ] == []
