"""Pictures of every page, dark and light, wide and narrow, for people to look at: `EFFECTS_TEST_PICTURES=folder`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opening, paths

WIDE_ONLY_IN_CI = ("/", "/needs", "/decisions", "/numbers", "/webhooks")


@pytest.mark.timeout(600)
def test_every_page_has_a_picture(shops: dict[str, Any], opening: Opening, tmp_path: Path) -> None:
    chosen = os.environ.get("EFFECTS_TEST_PICTURES")
    folder = Path(chosen) if chosen else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [("light", 1280), ("dark", 1280), ("light", 320), ("dark", 320)] if chosen else [("dark", 1280)]
    for scheme, width in kinds:
        page = opening(scheme, width)
        for number, path in enumerate(paths(shops, "full") if chosen else WIDE_ONLY_IN_CI, 1):
            page.goto(f"{shops['full'].url}{path}")
            page.wait_for_load_state("networkidle")
            name = re.sub(r"[^a-z]+", "-", re.sub(r"(msg|ep|rep)_\w+|\d+", "id", path.lower())).strip("-") or "overview"
            picture = folder / f"{number:02}-{name}.{scheme}.{width}.png"
            page.screenshot(path=picture, full_page=True)
            assert picture.stat().st_size > 5_000
            assert page.refused == []
