"""The mail that Django itself sends: our cases in the shop with accounts, and Django's own tests of a mail backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.examples.conftest import Manage, on_one_empty_database
from tests.support import needs

CASES = str(Path(__file__).parent / "django_cases")


@on_one_empty_database
def test_what_django_sends_is_written_rolled_back_and_sent(manage: Manage) -> None:
    done = manage("test", "mails", "--noinput", PYTHONPATH=CASES, DJANGO_SETTINGS_MODULE="shop.accounts")
    assert "Ran 13 tests" in done.stderr


@pytest.mark.slow
@on_one_empty_database
def test_djangos_own_tests_of_a_backend_pass(manage: Manage) -> None:
    path = os.pathsep.join((CASES, needs.django_tests("mail")))
    done = manage("test", "mails_of_django", "--noinput", PYTHONPATH=path, DJANGO_SETTINGS_MODULE="shop.accounts")
    assert "Ran 18 tests" in done.stderr
    assert "OK (expected failures=5)" in done.stderr
