"""An app whose import sets up in its process what EFFECTS_TEST_SURROUNDINGS names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from effects import Effects
from tests.support.surroundings import INSIDE

for name in os.environ["EFFECTS_TEST_SURROUNDINGS"].split(","):
    if name in INSIDE:
        INSIDE[name]()

app = Effects(poll_seconds=0.1)


@app.job("surroundings.wait")
def wait(folder_name: str) -> None:
    """Until the test lets it go on."""
    folder = Path(folder_name)
    (folder / "begun").touch()
    while not (folder / "go").exists():
        threading.Event().wait(0.01)
    (folder / "done").touch()
