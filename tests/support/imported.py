"""What a test imports for itself: its own files, and apps that read the environment of this moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from effects import Effects


@contextmanager
def own_imports(folder: Path) -> Iterator[None]:
    """Forget, at the end, what was imported meanwhile and would be another test's module of that name.

    That is each module, other than of the packages, with an Effects, which is on this test's database, and each whose
    file lies in `folder`. `sys.path` is as before.

    Args:
        folder: in which tests write their files.
    """
    modules, path = set(sys.modules), sys.path.copy()
    try:
        yield
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if not name.startswith("effects") and _is_of_a_test(sys.modules[name], folder):
                del sys.modules[name]


def _is_of_a_test(module: ModuleType | None, folder: Path) -> bool:
    attributes = {} if module is None else vars(module)
    if Path(attributes.get("__file__") or "").is_relative_to(folder):
        return True
    return any(issubclass(type(value), Effects) for value in attributes.values())  # without waking what is lazy
