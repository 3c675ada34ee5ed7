"""Fixtures: apps on the test's database, each with keys of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from effects import Effects
from tests.cli.conftest import _logging
from tests.security.vault import OLD_KEYS, vault_app

VaultFactory: TypeAlias = Callable[..., Effects]

__all__ = ["_logging"]


@pytest.fixture
def vault(database_url: str) -> Iterator[VaultFactory]:
    """`vault(keys)` makes an app."""
    apps: list[Effects] = []

    def make(keys: str = OLD_KEYS) -> Effects:
        apps.append(vault_app(database_url, keys))
        return apps[-1]

    yield make
    for app in apps:
        app.dispose()
