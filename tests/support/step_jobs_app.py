"""What `effects --app tests.support.step_jobs_app:app` loads in a worker's process."""

from __future__ import annotations

import os
from collections.abc import Callable

from effects.kit import crashpoints
from tests.support.step_jobs import step_jobs_app

app = step_jobs_app(time_limit_seconds=float(os.environ.get("ERRAND_SECONDS", "30")))


def _alone(hook: Callable[[str], None]) -> Callable[[str], None]:
    """Pass points while no other thread of this process writes.

    A frozen process that holds SQLite's write lock would freeze every other one too; which of its threads
    happens to write at that moment is not what the crash points are about.
    """

    def passing(name: str) -> None:
        with app.store._writer:
            hook(name)

    return passing


if os.environ.get("EFFECTS_CRASHPOINT", "").endswith(":pause") and crashpoints._hook is not None:
    crashpoints.install(_alone(crashpoints._hook))
