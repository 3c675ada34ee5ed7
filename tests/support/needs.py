"""What a test needs beside Python packages. Without it: skipped at home, failed in CI."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ADMIN_PATH = "/usr/sbin:/sbin:/usr/local/sbin"  # where servers live; not in everybody's PATH

_INSTALLED = Path(__file__).parents[2] / ".venv"
NODE_MODULES = _INSTALLED / "node" / "node_modules"


def program(name: str) -> str:
    """The path of this program, from the Debian packages that `.ci/programs` lists."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")
    return path or missing(f"the program {name} is not installed (.ci/programs has its Debian packages)")


def file(path: str) -> str:
    """This file or folder, from one of the Debian packages that `.ci/programs` lists."""
    return path if Path(path).exists() else missing(f"{path} is not there (.ci/programs has its Debian package)")


def npm(package: str) -> str:
    """The folder with this package of npm's: one of NODE_PATH, or where CI installs it."""
    folders = os.environ.get("NODE_PATH", "").split(os.pathsep)
    for folder in [*filter(None, folders), str(NODE_MODULES)]:
        if (Path(folder) / package).is_dir():
            return folder
    return missing(f"npm's {package} is not installed: npm install --no-save --prefix .venv/node {package}")


def django_tests(of: str) -> str:
    """The folder `tests` of Django's source, of the installed release if that has tests of this, else of the newest."""
    import django  # noqa: PLC0415 - by the few tests that need it

    sources = Path(os.environ.get("DJANGO_SOURCES") or _INSTALLED / "sources")
    newest = sorted(sources.glob("django-*/tests"), reverse=True)
    for folder in (sources / f"django-{django.__version__}" / "tests", *newest):
        if (folder / of).is_dir():
            return str(folder)
    return missing(f"Django's source with tests/{of} is not in {sources} (.ci/run)")


def missing(why: str) -> NoReturn:
    """Skip; in CI, fail."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
