"""The options of `Effects(…)` are those of all settings, of the same types, each described where it is checked."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import fields
from typing import Any

from effects import Effects, EffectsOptions, Settings
from effects.kit.importing import entry_points
from tests.house.source import ROOT, modules

KINDS: list[type[Any]] = [Settings, *(entry.load() for entry in entry_points("effects.settings"))]
OWN_PARAMETERS = {"database_url"}  # of `Effects` itself
# Wider than the field: any sequence is taken, and the class is one that the core does not know; a list of queues is
# one of names, beside the setting.
WIDER = {
    "reports": "Sequence[Any]", "report_engines": "Mapping[str, Any]", "webhook_event_types": "Sequence[Any]",
    "queues": "str | Sequence[str]",
}  # fmt: skip


def test_each_setting_is_an_option_of_its_type() -> None:
    declared = {field.name: str(field.type) for kind in KINDS for field in fields(kind)}
    options = {name: _without_none(annotation.__forward_arg__) for name, annotation in _annotations().items()}
    expected = {name: _without_none(WIDER.get(name, kind)) for name, kind in declared.items()}
    assert options == {name: kind for name, kind in expected.items() if name not in OWN_PARAMETERS}


def test_no_parameter_hides_an_option() -> None:
    assert set(inspect.signature(Effects).parameters) & set(_annotations()) == set()
    assert set(inspect.signature(Effects).parameters) >= OWN_PARAMETERS


def test_each_setting_is_described() -> None:
    described = {kind: set(re.findall(r"\b(\w+)(?=[\w, ]*: )", inspect.getdoc(kind) or "")) for kind in KINDS}
    assert [f"{kind.__name__}.{field.name}" for kind in KINDS for field in fields(kind)
            if field.name not in described[kind]] == []  # fmt: skip


# EFFECTS_CRASHPOINT is for tests, EFFECTS_DEV_SOCKET passed on by a process to itself, the transport `bulk` an example;
# event types can be declared in code alone.
NOT_SETTINGS = {
    "EFFECTS_CRASHPOINT",
    "EFFECTS_DEV_SOCKET",
    "EFFECTS_EMAIL_TRANSPORT_BULK",
    "EFFECTS_WEBHOOK_EVENT_TYPES",
}


def test_each_environment_variable_is_in_the_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in modules()]
    variables = {name for text in texts for name in re.findall(r"\bEFFECTS(?:_[A-Z]+)+\b(?!_)", text)} - NOT_SETTINGS
    of_the_core = {f"EFFECTS_{field.name.upper()}" for field in fields(Settings)}
    table = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert "EFFECTS_UNSUBSCRIBE_URL" in variables
    assert sorted(name for name in variables | of_the_core if f"`{name}`" not in table) == []


def _annotations() -> dict[str, Any]:
    return EffectsOptions.__annotations__


def _without_none(annotation: str) -> set[str]:
    """The members of a union but None, as they are written."""

    def members(node: ast.expr) -> set[str]:
        if isinstance(node, ast.BinOp):
            return members(node.left) | members(node.right)
        return {ast.unparse(node)}

    return members(ast.parse(annotation, mode="eval").body) - {"None"}
