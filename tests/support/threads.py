"""Threads that start together, for tests of concurrency."""

from __future__ import annotations

import threading
from collections.abc import Callable


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` … in threads that start together; any failure is the test's."""
    start = threading.Barrier(count)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            start.wait(30)
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert not failures, failures
