"""The pytest fixture `effects_toolkit`, for apps that use effects. Found by pytest itself once effects is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from effects.testing import Toolkit


@pytest.fixture
def effects_toolkit() -> Iterator[Toolkit]:
    """An `effects.testing.Toolkit` on a database of this test's own; add job types with `effects_toolkit.add(…)`."""
    from effects.testing import Toolkit  # noqa: PLC0415 - a project's other tests need not pay for the import

    with Toolkit() as toolkit:
        yield toolkit
