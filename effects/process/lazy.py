"""Names and modules that are imported when they are first used: a start then pays for nothing that it does not need.

    if TYPE_CHECKING:
        from shop.orders import Order, find as find_order
    else:
        __getattr__, __dir__ = lazy.names(__name__, {"shop.orders": "Order, find as find_order"})

    if TYPE_CHECKING:
        import httpx
    else:
        httpx = lazy.module("httpx")

Type checkers and editors read the imports; Python reads the other branch. `tests/house` checks that they say the same.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the package's `__getattr__` and `__dir__` (PEP 562).

    Args:
        package: its `__name__`.
        homes: module → the names to import from it, as an import statement lists them.
    """
    sources = {name: (module, original) for module, listed in homes.items() for original, name in _pairs(listed)}
    namespace = vars(sys.modules[package])

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        module, original = sources[name]
        namespace[name] = getattr(__import__(module, fromlist=[original]), original)
        return namespace[name]

    return get, lambda: sorted(namespace.keys() | sources.keys())


def module(name: str) -> Any:
    """Return a stand-in for a module, for use in functions: its first attribute that is asked for imports it."""
    return _LazyModule(name)


class _LazyModule:
    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__imported: Any = None

    def __getattr__(self, name: str) -> Any:
        # Not by way of `sys.modules`, where a module stands from the moment that another thread begins to import it.
        self.__imported = self.__imported or importlib.import_module(self.__name__)
        return getattr(self.__imported, name)


def _pairs(listed: str) -> list[tuple[str, str]]:
    """`"find as find_order"` → `("find", "find_order")`."""
    parts = [part.split(" as ") for part in listed.split(", ")]
    return [(part[0], part[-1]) for part in parts]
