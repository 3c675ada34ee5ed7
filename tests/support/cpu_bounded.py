"""A bound of processor time, for what must take time in proportion to a text."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Squared(Exception):
    """A text has taken far longer than in proportion to its length."""


@contextmanager
def cpu_bounded(seconds: float) -> Iterator[None]:
    """Python asks for signals within a match, too. The garbage collector rests: it would look through the whole run."""

    def end(*_: object) -> None:
        raise Squared

    before = signal.signal(signal.SIGVTALRM, end)
    gc.disable()
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()
