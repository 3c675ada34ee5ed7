"""`python -m benchmarks.systems NAME ARGUMENTS…`: be the worker of that system."""

from __future__ import annotations

import importlib
import logging
import sys

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    importlib.import_module(f"benchmarks.systems.{sys.argv[1]}").work(*sys.argv[2:])
