"""The loaders with which psycopg reads values that Python has not; see `wide_values`."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.adapt import AdaptersMap, Loader
from psycopg.pq import Format

from effects_reports.formats.values import ServerText
from effects_reports.source.wide_kinds import KINDS, ValueOutOfRange

_BEYOND_PYTHON = (psycopg.DataError, OverflowError, ValueError)


def register(adapters: AdaptersMap, *, refuse: bool) -> None:
    """In place of the driver's loaders; those that an app has registered for itself stay."""
    for oid in KINDS:
        loader = adapters.get_loader(oid, Format.TEXT)
        if loader is not None and (loader.__module__.startswith("psycopg") or issubclass(loader, _WideLoader)):
            adapters.register_loader(oid, _LOADERS[refuse])


class _WideLoader(Loader):
    """The driver's own loader, and the text where it gives up."""

    refuse = False

    def __init__(self, oid: int, context: Any = None) -> None:
        super().__init__(oid, context)
        usual = psycopg.adapters.get_loader(oid, Format.TEXT)
        assert usual is not None
        self._load = usual(oid, context).load

    def load(self, data: Any) -> Any:
        try:
            if data[-3:] == b"ity":  # the driver takes an infinite interval for one of no length
                raise OverflowError
            return self._load(data)
        except _BEYOND_PYTHON:
            if self.refuse:
                raise ValueOutOfRange(self.oid) from None
            return ServerText(bytes(data).decode())


class _RefusingLoader(_WideLoader):
    refuse = True


_LOADERS = {False: _WideLoader, True: _RefusingLoader}
