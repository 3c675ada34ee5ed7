"""The console script `effects`."""

from __future__ import annotations

import importlib
import sys

from effects_toolkit.files import why_broken


def main() -> None:
    """Run the command line; where another project has overwritten our files, say so in one line, with exit code 2."""
    package = None
    try:
        package = importlib.import_module("effects")
        from effects.cli.main import main as run  # noqa: PLC0415 - may be missing
    except ImportError:
        _explain(package)
        raise
    _explain(package)
    run()


def _explain(package: object) -> None:
    if (why := why_broken(package)) is not None:
        sys.stderr.write(f"error: {why}\n")
        sys.exit(2)
