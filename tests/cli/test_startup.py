"""What a start imports: cron starts `effects` each minute, and an import that is not used is paid each time."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIBRARIES = {
    "alembic", "asyncio", "cryptography", "css_inline", "email_validator", "httpcore", "httpx", "jinja2", "msgspec",
    "psycopg", "rich", "sqlalchemy",
}  # fmt: skip


def _imported(code: str) -> set[str]:
    """The top-level modules that a fresh process has imported after `code`."""
    report = "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)))\n"
    ran = subprocess.run([sys.executable, "-c", report + code], capture_output=True, text=True, timeout=60, check=True)
    return {name.split(".")[0] for name in ran.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "package", ["effects", "effects.extend", "effects_email", "effects_reports", "effects_webhooks"]
)
def test_importing_a_package_imports_no_library(package: str) -> None:
    assert _imported(f"import {package}") & {*LIBRARIES, "click"} == set()


def test_the_version_is_printed_without_the_core() -> None:
    assert _imported("from effects.cli.main import cli; cli.main(['--version'])") & LIBRARIES == set()
