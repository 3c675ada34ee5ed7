"""The pytest fixture `effects_toolkit`, for apps that use effects. Found by pytest itself once effects is installed.

The app is named in the configuration (`effects_app = "shop.main:app"`), or by a fixture of that name in `conftest.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from effects.app.effects import Effects
    from effects.testing import Toolkit


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("effects_app", "module:attribute of the app's Effects, for the fixture effects_toolkit", default="")


@pytest.fixture
def effects_app(pytestconfig: pytest.Config) -> Effects | None:
    """The Effects under test, from the option `effects_app`; None for the process's own. Override it in conftest.py."""
    from effects.cli.context import load_app  # noqa: PLC0415 - a project's other tests need not pay for the import

    named = pytestconfig.getini("effects_app")
    return load_app(named) if named else None


@pytest.fixture
def effects_toolkit(effects_app: Effects | None) -> Iterator[Toolkit]:
    """An `effects.testing.Toolkit` of this test's own on the app's Effects, with a temporary database."""
    from effects.testing import Toolkit  # noqa: PLC0415 - as above

    with Toolkit(effects_app) as toolkit:
        yield toolkit
