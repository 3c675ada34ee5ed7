"""What a run of the benchmarks was asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.servers import PostgresServer


@dataclass(frozen=True)
class Options:
    """`scale` shrinks the work of a quick run; its figures are for finding mistakes, not for quoting."""

    server: PostgresServer
    rounds: int
    scale: float
    say: Callable[[str], None]

    def size(self, full: int) -> int:
        return max(1, int(full * self.scale))
