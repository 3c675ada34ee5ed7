"""The public surface is what it says, each part of it documented."""

from __future__ import annotations

import inspect

import pytest

import effects


def test_the_list_of_names_is_sorted_and_complete() -> None:
    assert effects.__all__ == sorted(effects.__all__)
    assert len(set(effects.__all__)) == len(effects.__all__)
    public = {
        name
        for name, value in vars(effects).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and getattr(value, "__module__", "").startswith("effects")
    }
    assert public <= set(effects.__all__)


@pytest.mark.parametrize("name", effects.__all__)
def test_every_public_name_exists_and_has_a_docstring(name: str) -> None:
    value = getattr(effects, name)
    if name == "Outcome":  # a union of the classes beside it
        return
    assert inspect.getdoc(value)
    if inspect.isfunction(value):
        assert value.__annotations__["return"] is not None
