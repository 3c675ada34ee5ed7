"""What a Django user writes in tests, by `manage.py test`: on a file, in memory, on PostgreSQL, with two databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.examples.conftest import Manage, on_one_empty_database

CASES = str(Path(__file__).parent / "django_cases")
PAY = """
from django.test import Client
paid = {"email": "Ann <ann@example.com>", "total": "9.90"}
print(Client(raise_request_exception=False).post("/pay", paid, headers={"host": "localhost"}).status_code)
"""


@on_one_empty_database
def test_cases_pass(manage: Manage) -> None:
    assert "Ran 27 tests" in manage("test", "cases", "--noinput", PYTHONPATH=CASES).stderr


@on_one_empty_database
def test_cases_of_two_databases_pass(manage: Manage) -> None:
    done = manage("test", "aliases", "--noinput", PYTHONPATH=CASES, DJANGO_SETTINGS_MODULE="archived")
    assert "Ran 3 tests" in done.stderr


@pytest.mark.parametrize("empty_database_url", ["sqlite"], indirect=True)
def test_cases_pass_in_memory(manage: Manage) -> None:
    done = manage("test", "cases", "--noinput", PYTHONPATH=CASES, DJANGO_SETTINGS_MODULE="in_memory")
    assert "Ran 27 tests" in done.stderr
