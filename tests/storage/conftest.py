"""Each kind of storage, empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from effects.storage import Storage, open_storage


@pytest.fixture(params=["folder"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "files"))
