"""What a process holds: counted before and after thousands of attempts, it must not have grown with them."""

from __future__ import annotations

import gc
import sqlite3
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Holdings:
    """Objects by their class, blocks of memory that Python has handed out, and what the system counts."""

    objects: Counter[str]
    blocks: int
    threads: int
    descriptors: int
    files: int

    def growth(self, before: Holdings, *, attempts: int) -> dict[str, int]:
        """What has grown since by more than a hundredth of an attempt each, or by more than what varies at rest."""
        slack = SLACK + attempts // 100
        grown = {name: count - before.objects[name] for name, count in self.objects.items()}
        grown |= {name: 10 * (getattr(self, name) - getattr(before, name)) for name in ("threads", "descriptors")}
        grown["files"] = slack * (self.files - before.files)  # not one
        grown["blocks"] = (self.blocks - before.blocks) // BLOCKS
        grown = {name: count for name, count in grown.items() if count > slack}
        return grown | {name: count for name in NEVER_LEFT if (count := self.objects[name])}


NEVER_LEFT = ("builtins.traceback",)  # with the frames of a handler, and all that it had in its variables
SLACK = 150  # objects of one class: idle connections and threads, statements that were compiled meanwhile
BLOCKS = 10  # of memory, for each object: texts and numbers, which are no objects to the search for garbage


def _past_cursors(value: object) -> int:
    """References to cursors, which a connection of sqlite3 keeps until it has opened 200 more."""
    if not isinstance(value, sqlite3.Connection):
        return 0
    return sum(len(kept) for kept in gc.get_referents(value) if isinstance(kept, list))


def holdings() -> Holdings:
    """What this process holds now, without garbage."""
    gc.collect()
    present = gc.get_objects()
    objects = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in present)
    objects["weakref.ReferenceType"] -= sum(map(_past_cursors, present))
    del present
    gc.collect()
    return Holdings(
        objects,
        sys.getallocatedblocks(),
        threading.active_count(),
        descriptors(),
        sum(1 for _ in Path(tempfile.gettempdir()).iterdir()),
    )


def descriptors() -> int:
    """How many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())
