"""The app that enqueues, whose connections are closed however the test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from effects import Effects
from tests.support.step_jobs import step_jobs_app

Calling: TypeAlias = Callable[[str], Effects]


@pytest.fixture
def calling() -> Iterator[Calling]:
    with ExitStack() as stack:

        def open_app(url: str) -> Effects:
            app = step_jobs_app(url, sessions="off")
            stack.callback(app.dispose)
            return app

        yield open_app
