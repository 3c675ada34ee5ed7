"""A proxy in front of PostgreSQL that learns which statements pass, and does one wrong thing to one of them."""

from __future__ import annotations

import threading
from typing import NamedTuple

from tests.peers.proxy import Proxy


class Sabotage(NamedTuple):
    """What befalls the next statement of this kind: `hang`, a cut `before` or `after` it, or an SQLSTATE."""

    kind: str
    fault: str


class Saboteur(Proxy):
    """`kinds` are those of the statements that have passed; `done` is set once the sabotage is done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.kinds: set[str] = set()
        self.done = threading.Event()
        self._sabotage: Sabotage | None = None

    def prepare(self, sabotage: Sabotage) -> None:
        with self._lock:
            self.done.clear()
            self._sabotage = sabotage

    def verdict(self, statement: str, transaction: str | None) -> str | None:
        kind = kind_of(statement, transaction)
        with self._lock:
            self.kinds.add(kind)
            if self._sabotage is None or self._sabotage.kind != kind:
                return None
            fault, self._sabotage = self._sabotage.fault, None
        self.done.set()
        return fault


def kind_of(statement: str, transaction: str | None) -> str:
    """The statement's text; of one that says nothing of itself, the end of what came before it too."""
    text = " ".join(statement.split())
    if text.upper() in ("COMMIT", "ROLLBACK") and transaction is not None:
        return f"{text} of {' '.join(transaction.split())[-120:]}"
    return text
