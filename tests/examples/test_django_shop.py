"""The Django shop: its own tests, its migrations, its commands, and what is sent after a commit or a rollback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from sqlalchemy.engine import make_url

from effects.keys import generate_key
from tests.examples.conftest import EXAMPLES

Manage: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]

PAY = """
from django.test import Client
client = Client(raise_request_exception=False)
paid = {{"email": "Ann <ann@example.com>", "total": "9.90"}}
answer = client.post("/pay", {{**paid, {more}}}, headers={{"host": "localhost"}})
print(answer.status_code, answer.content.decode() if answer.status_code == 200 else "")
"""


@pytest.fixture
def manage(empty_database_url: str, tmp_path: Path) -> Manage:
    """`manage.py …` of the shop, on a database without tables; it must end with `code`."""
    url = make_url(empty_database_url)
    variables = {
        "SHOP_DATA": str(tmp_path),
        "EFFECTS_KEYS": f"k={generate_key()},digest={generate_key()}",
        "EFFECTS_STORAGE_URL": str(tmp_path / "files"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if url.get_backend_name() == "postgresql":
        host = url.query.get("host") or url.host or ""
        variables |= {"SHOP_DATABASE": url.database or "", "SHOP_HOST": str(host), "SHOP_USER": url.username or ""}
        variables |= {"PGPORT": str(url.port or url.query.get("port") or 5432), "PGPASSWORD": url.password or ""}

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments], cwd=EXAMPLES / "django_shop",
            env={**os.environ, **variables}, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
        return done

    return run


def test_its_own_tests_pass(manage: Manage) -> None:
    assert "Ran 4 tests" in manage("test", "--noinput").stderr


def test_a_paid_order_is_followed_by_its_effects_and_a_failed_one_by_none(manage: Manage, tmp_path: Path) -> None:
    assert "Applying effects.0001_initial... OK" in manage("migrate").stdout
    assert "orders.nightly" in manage("effects", "schedules", "list").stdout
    assert "500" in manage("shell", "-c", PAY.format(more='"card": "declined"')).stdout
    [order] = re.findall(r'200 {"order": (\d+)}', manage("shell", "-c", PAY.format(more="")).stdout)
    manage("effects", "work", "--drain")
    [mail] = (tmp_path / "mail" / "new").iterdir()
    assert b"To: Ann <ann@example.com>" in mail.read_bytes()
    assert b"9.90 euros" in mail.read_bytes()
    assert "was done" in manage("effects", "why", f"order:{order}:paid").stdout
    assert "schema is up to date" in manage("effects", "doctor", code=1).stdout


def test_migrations_are_sane(manage: Manage) -> None:
    assert "No changes detected" in manage("makemigrations", "--check", "--dry-run").stdout
    assert "[ ] 0001_initial" in manage("showmigrations", "effects").stdout
    assert "CREATE TABLE" not in manage("sqlmigrate", "effects", "0001").stdout
    assert "Create or migrate the tables of effects" in manage("migrate", "--plan").stdout
    manage("migrate")
    manage("migrate")
    assert "[X] 0001_initial" in manage("showmigrations", "effects").stdout
    assert "tables are up to date" in manage("effects", "init").stdout
    assert "is not reversible" in manage("migrate", "effects", "zero", code=1).stderr


def test_errors_of_commands_are_one_line(manage: Manage) -> None:
    assert "run `effects init`" in manage("effects", "status", code=2).stderr
    assert "manage.py effects jobs show" in manage("effects", "jobs", "show", code=2).stderr
    call = "from django.core.management import call_command; call_command('effects', 'status')"
    called = manage("shell", "-c", call, code=2)
    assert "CommandError: effects ended with exit code 2" in called.stderr


def test_what_the_document_shows_stands_in_the_shop() -> None:
    folder = EXAMPLES / "django_shop"
    lines = {line.strip() for path in folder.rglob("*.py") for line in path.read_text().splitlines()}
    blocks = re.findall(r"```py\n(.*?)```", (EXAMPLES.parent / "docs" / "django.md").read_text(), re.DOTALL)
    shown = [line.strip() for block in blocks[1:] for line in block.splitlines() if not line.startswith("#")]
    assert len(shown) > 15
    assert [line for line in shown if line not in lines] == []
