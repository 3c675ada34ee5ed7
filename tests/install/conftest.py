"""The distributions of this checkout, built once."""

from __future__ import annotations

import pytest

from tests.house.source import DISTRIBUTIONS
from tests.install.wheel import Built, build


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Built]:
    return {name: build(name, tmp_path_factory.mktemp("dist")) for name in DISTRIBUTIONS}
