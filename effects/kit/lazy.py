"""Names and modules that are imported when they are first used: a start then pays for nothing that it does not need.

    with lazy.names(__name__):
        from shop.orders import Order as Order
        from shop.orders import find as find_order

    with lazy.modules(__name__):
        import httpx
        from shop import stock

Type checkers and editors read ordinary imports. `names` is for a package that others import from (`import X as X` is
how type checkers are told of a name that is for others); `modules` is for the functions of a module that use one.
"""

from __future__ import annotations

import builtins
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_deferring = Lock()


@contextmanager
def names(package: str) -> Iterator[None]:
    """Defer the imports of this block: afterwards the package has `__getattr__` and `__dir__` (PEP 562), and `__all__`.

    Args:
        package: its `__name__`.
    """
    namespace = vars(sys.modules[package])
    with _deferred(namespace) as sources:
        yield

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        module, _, original = sources[name].rpartition(".")
        namespace[name] = getattr(__import__(module, fromlist=[original]), original)
        return namespace[name]

    namespace["__getattr__"] = get
    namespace["__dir__"] = lambda: sorted(namespace.keys() | sources.keys())
    namespace["__all__"] = sorted(sources)


@contextmanager
def modules(importer: str) -> Iterator[None]:
    """Defer the imports of modules in this block: each name stands for its module, whose first use imports it.

    Args:
        importer: `__name__` of the module that imports them.
    """
    namespace = vars(sys.modules[importer])
    with _deferred(namespace) as sources:
        yield
    namespace.update({name: _LazyModule(module) for name, module in sources.items()})


@contextmanager
def _deferred(namespace: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Import nothing in this block for the module of this namespace; gives name → what it was to be, dotted, after it.

    `builtins.__import__` is what an import statement calls. That of any other module, in this thread or another, is
    carried out as ever.
    """
    sources: dict[str, str] = {}
    with _deferring:
        eager = builtins.__import__

        def defer(name: str, *scope: Any, **options: Any) -> Any:
            if not scope or scope[0] is not namespace:
                return eager(name, *scope, **options)
            has_list = bool(scope[2])  # from a.b import c; else import a.b as c, which goes on from a
            return _Deferred(name if has_list else name.partition(".")[0])

        builtins.__import__ = defer
        try:
            yield sources
        finally:
            builtins.__import__ = eager
    deferred = {name: value.path for name, value in namespace.items() if isinstance(value, _Deferred)}
    for name in deferred:
        del namespace[name]
    sources.update(deferred)


class _Deferred:
    def __init__(self, path: str) -> None:
        self.path = path

    def __getattr__(self, name: str) -> _Deferred:
        return _Deferred(f"{self.path}.{name}")


class _LazyModule:
    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.__imported: Any = None

    def __getattr__(self, name: str) -> Any:
        # Not by way of `sys.modules`, where a module stands from the moment that another thread begins to import it.
        self.__imported = self.__imported or importlib.import_module(self.__name__)
        return getattr(self.__imported, name)
