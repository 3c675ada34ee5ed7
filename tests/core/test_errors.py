"""One exception tree, divided by fate, with a message in every leaf."""

from __future__ import annotations

import inspect

import pytest

from effects import errors
from effects.kit.crashpoints import CrashPoint

CLASSES = [member for _, member in inspect.getmembers(errors, inspect.isclass) if issubclass(member, Exception)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_ours_and_has_its_docstring_as_message(error: type[errors.EffectsError]) -> None:
    assert issubclass(error, errors.EffectsError)
    assert error.__doc__
    assert error.__doc__.strip().endswith((".", "`effects init`."))
    assert str(error()) == error.__doc__.strip()
    assert str(error("own words")) == "own words"


def test_the_tree_is_drawn_at_the_top_of_its_module() -> None:
    drawn = str(errors.__doc__)
    assert [error.__name__ for error in CLASSES if error.__name__ not in drawn] == []


def test_a_delivery_error_names_its_code() -> None:
    assert errors.DeliveryError("x", code="421").code == "421"
    assert errors.DeliveryError().code is None


def test_a_crash_point_is_no_error_of_ours() -> None:
    assert not issubclass(CrashPoint, errors.EffectsError)
