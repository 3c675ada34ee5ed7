"""The syntax trees of the sources, millions of objects, are gone once the last test here has run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.house.source import modules, nodes


@pytest.fixture(scope="package", autouse=True)
def _trees() -> Iterator[None]:
    yield
    for kept in (nodes, modules):
        kept.cache_clear()
