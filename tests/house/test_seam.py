"""The worker asks the machine for time, threads, waits and randomness in one place alone, and so does its SQL."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import effects.store
import effects.worker

# The modules of the worker that ask: `runtime`, and what it makes.
SEAM = {f"machine/{name}.py" for name in ("runtime", "event_loop")}
MODULES = {"time", "random", "uuid", "queue", "sched", "concurrent", "asyncio", "select", "selectors", "secrets"}
# Modules of the store that ask it all the same.
ASK_THE_MACHINE = {
    "db/deadlines.py": "how long a statement has taken",
    "db/engine.py": "how long a connection may take to open",
    "db/walk.py": "how long a page of a deletion took, for which others then have the database",
    "migrations/migrate.py": "how long `init` waits for locks and for another `init`",
    "notifier.py": "a thread that sends hints after a commit, and waits for those of others",
    "sessions/asynchronous.py": "a call off the event loop's thread; which thread or task made it",
    "recovery/evidence_file.py": "lines of a file on this machine, which no database dates",
    "recovery/write_back.py": "chance, for a lease token below that of the job",
}
PLAIN = {"Event", "Thread", "Lock"}  # of `threading`, in annotations; a Lock may be held over a few lines
EXCEPTIONS = {("queue", "SimpleQueue"), ("queue", "Empty")}  # a type and an exception


def _uses(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in {*MODULES, "threading"}:
            names = [(node.module or "", alias.name) for alias in node.names]
            yield from (f"{module}.{name}" for module, name in names if (module, name) not in EXCEPTIONS)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"threading.Event", "threading.Thread"}:
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "threading" and node.attr not in PLAIN:
            yield ast.unparse(node)


def _asking(folder: Path) -> set[str]:
    """The modules below a folder that ask the machine."""
    return {
        path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if any(_uses(ast.parse(path.read_text())))
    }


def test_the_store_asks_no_clock_of_the_machine() -> None:
    """The database's clock decides, or the worker's, which is handed in."""
    assert _asking(Path(effects.store.__file__).parent) == ASK_THE_MACHINE.keys()


def test_only_the_seam_of_the_worker_asks_the_machine() -> None:
    assert _asking(Path(effects.worker.__file__).parent) == SEAM
