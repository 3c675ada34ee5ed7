"""A top folder is called `email`: it must not hide Python's own package from code run in the checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import PACKAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", "import email.message, http.client, importlib.metadata; email.message.EmailMessage()"],
        ["-m", "pytest", "--version"],
        ["-m", "pip", "--version"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_pythons_own_email_imports_from_the_checkouts_root(arguments: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr


def test_the_folder_email_is_no_package() -> None:
    assert (ROOT / "email").is_dir()
    assert not (ROOT / "email" / "__init__.py").exists()


def test_the_packages_are_typed() -> None:
    untyped = [name for name, package in PACKAGES.items() if not (package / "py.typed").exists()]
    assert untyped == []
