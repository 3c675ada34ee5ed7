"""What `effects --app tests.webhooks.crash_app:app` loads in a worker that is to be struck."""

from __future__ import annotations

import os
from collections.abc import Callable

from effects import Effects
from effects.kit import crashpoints

app = Effects()


def _alone(hook: Callable[[str], None]) -> Callable[[str], None]:
    """Pass points while no other thread writes: one that is frozen with SQLite's lock freezes everybody."""

    def passing(name: str) -> None:
        with app.store._writer:
            hook(name)

    return passing


if os.environ.get("EFFECTS_CRASHPOINT", "").endswith(":pause") and crashpoints._hook is not None:
    crashpoints.install(_alone(crashpoints._hook))
