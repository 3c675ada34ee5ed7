"""The word for a transaction of our own, in place of a session."""

from __future__ import annotations

from enum import Enum


class Alone(Enum):
    """`effects.ALONE`, the only one."""

    ALONE = "ALONE"

    def __repr__(self) -> str:
        return "effects.ALONE"


ALONE = Alone.ALONE
