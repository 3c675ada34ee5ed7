"""What a test leaves in the process is no other test's."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from tests.support.imported import own_imports

APP = "from effects import Effects\napp = Effects('sqlite:///shop.db')\n"


def test_a_module_of_a_test_is_imported_again_by_the_next(tmp_path: Path) -> None:
    """By its folder, or because it has an Effects: wherever it lies."""
    for folder in ("shops", "elsewhere"):
        (tmp_path / folder).mkdir()
    (tmp_path / "shops" / "own_reports.py").write_text("")
    (tmp_path / "elsewhere" / "own_app.py").write_text(APP)
    (tmp_path / "elsewhere" / "own_words.py").write_text("")
    before = sys.path.copy()
    with own_imports(tmp_path / "shops"):
        sys.path += [str(tmp_path / "shops"), str(tmp_path / "elsewhere")]
        importlib.invalidate_caches()
        for name in ("own_reports", "own_app", "own_words"):
            importlib.import_module(name)
    assert sys.path == before
    assert {"own_reports", "own_app", "own_words"} & set(sys.modules) == {"own_words"}
