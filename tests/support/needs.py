"""What a test needs beside Python packages. Without it: skipped at home, failed in CI."""

from __future__ import annotations

import os
import shutil
from typing import NoReturn

import pytest

ADMIN_PATH = "/usr/sbin:/sbin:/usr/local/sbin"  # where servers live; not in everybody's PATH


def program(name: str) -> str:
    """The path of this program, from the Debian packages that `.ci/programs` lists."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{ADMIN_PATH}")
    return found or missing(f"the program {name} is not installed (.ci/programs has its Debian packages)")


def missing(why: str) -> NoReturn:
    """Skip; in CI, fail."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)
