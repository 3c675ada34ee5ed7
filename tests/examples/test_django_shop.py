"""The Django shop: its own tests, its migrations, its commands, and what is sent after a commit or a rollback."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.examples.conftest import EXAMPLES, Manage, on_one_empty_database
from tests.support.sampling import sample

PAY = """
from django.test import Client
client = Client(raise_request_exception=False)
paid = {{"email": "Ann <ann@example.com>", "total": "9.90"}}
answer = client.post("/pay", {{**paid, {more}}}, headers={{"host": "localhost"}})
print(answer.status_code, answer.content.decode() if answer.status_code == 200 else "")
"""


@pytest.mark.slow
@pytest.mark.quick
def test_its_own_tests_pass(manage: Manage) -> None:
    assert "Ran 4 tests" in manage("test", "--noinput").stderr


@on_one_empty_database
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


@on_one_empty_database
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
    assert "run `manage.py migrate`" in manage("effects", "status", code=2).stderr
    assert "manage.py effects jobs show" in manage("effects", "jobs", "show", code=2).stderr
    call = "from django.core.management import call_command; call_command('effects', 'status')"
    called = manage("shell", "-c", call, code=2)
    assert "CommandError: effects ended with exit code 2" in called.stderr


ADVISING_SAMPLED = 4
BARE = re.compile(r'(?:`|"command": ")effects ')
ADVISING = (
    (["doctor"], 2, "`manage.py effects keys generate`"),
    (["doctor", "--json"], 2, "`manage.py effects keys generate`"),
    (["why", "nothing"], 2, "(see `manage.py effects jobs list`)"),
    (["jobs", "show", "99"], 2, "(see `manage.py effects jobs list`)"),
    (["limits", "show", "nothing"], 2, "(see `manage.py effects limits list`)"),
    (["keys", "retire", "k"], 2, "(`manage.py effects keys generate`)"),
    (["webhooks", "endpoints", "show", "ep_nothing"], 2, "(see `manage.py effects webhooks endpoints list`)"),
    (["jobs", "show", "1"], 0, "`manage.py effects "),
    (["jobs", "show", "1", "--json"], 0, '"command": "manage.py effects '),
)


@on_one_empty_database
def test_advice_names_the_program_as_it_was_called(manage: Manage) -> None:
    manage("migrate")
    manage("shell", "-c", PAY.format(more=""))
    for arguments, code, advice in sample(ADVISING, ADVISING_SAMPLED):
        keys = {"EFFECTS_KEYS": ""} if arguments[0] == "doctor" else {}
        done = manage("effects", *arguments, code=code, **keys)
        printed = done.stdout + done.stderr
        assert advice in printed, arguments
        assert BARE.search(printed) is None, arguments


def test_excerpts_in_the_document_are_in_the_shop() -> None:
    folder = EXAMPLES / "django_shop"
    code = {text for path in folder.rglob("*.py") for text in statements(path.read_text())}
    blocks = re.findall(r"```py\n(.*?)```", (EXAMPLES.parent / "docs" / "django.md").read_text(), re.DOTALL)
    shown = [text for block in blocks[1:] for text in statements(block)]
    assert len(shown) > 10
    assert [text for text in shown if text not in code] == []


def statements(source: str) -> list[str]:
    """Each statement on one line, of a compound one its head: a page breaks its lines elsewhere."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    return [ast.unparse(node).partition(":\n")[0] for node in nodes]
