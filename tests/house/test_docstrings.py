"""Every parameter of every public function is described: by its docstring, or by that of a function it refers to."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from tests.house.source import PACKAGES

PUBLIC = {
    f"{package}.{name}": value
    for package in PACKAGES
    for name in importlib.import_module(package).__all__
    if inspect.isfunction(value := getattr(importlib.import_module(package), name))
}


def test_every_parameter_is_described() -> None:
    assert len(PUBLIC) > 50
    assert [
        f"{name}({parameter})"
        for name, function in PUBLIC.items()
        for parameter in inspect.signature(function).parameters
        if parameter not in _described(function)
    ] == []


def _described(function: Callable[..., Any]) -> set[str]:
    """The words of a docstring, and of those of the public names that it refers to."""
    package = importlib.import_module(function.__module__.split(".")[0])
    texts = {function.__name__: inspect.getdoc(function) or ""}
    waiting = [function.__name__]
    while waiting:
        named = {*re.findall(r"`(\w+)`", texts[waiting.pop()])} & {*package.__all__} - {*texts}
        texts |= {name: inspect.getdoc(getattr(package, name)) or "" for name in named}
        waiting += named
    return {*re.findall(r"\w+", " ".join(texts.values()))}
