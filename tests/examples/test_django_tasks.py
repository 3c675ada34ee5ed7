"""Tasks of Django on our backend: our cases in the shop, Django's own tests, and workers that are killed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from textwrap import indent

import django
import pytest

from tests.examples.conftest import Manage, on_one_empty_database
from tests.support import needs
from tests.support.sampling import sample

CASES = str(Path(__file__).parent / "django_cases")
KILLS = 2  # of each seed: all seeds make a hundred
PAGE = Path(__file__).parents[2] / "docs" / "from-django-tasks.md"
PAGE_TESTS = """
from decimal import Decimal

from django.db import transaction
from django.test import TransactionTestCase
from orders.models import Order
from page_tasks import pack

from effects.contrib.django import app
from effects.contrib.django.testing import EffectsTests
from effects.worker import Worker


class PageTests(EffectsTests, TransactionTestCase):
    def test_the_page(self) -> None:
{}
        Worker(app).drain()
        result.refresh()
        assert result.return_value == f"packed {{order.id}}"
"""


@on_one_empty_database
def test_tasks_are_written_rolled_back_carried_out_and_read(manage: Manage) -> None:
    done = manage("test", "task_cases", "--noinput", PYTHONPATH=CASES)
    assert "Ran 18 tests" in done.stderr


@pytest.mark.slow
@on_one_empty_database
def test_djangos_own_tests_of_tasks_pass(manage: Manage) -> None:
    path = os.pathsep.join((CASES, needs.django_tests("tasks")))
    done = manage("test", "tasks_of_django", "--noinput", PYTHONPATH=path)
    assert "Ran 54 tests" in done.stderr
    assert "OK (expected failures=10)" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(120)
@on_one_empty_database
@pytest.mark.parametrize("seed", sample([str(number) for number in range(50)], 1))
def test_killed_workers_lose_no_task(seed: str, manage: Manage) -> None:
    done = manage("test", "task_kills", "--noinput", PYTHONPATH=CASES, KILLS=str(KILLS), KILLS_SEED=seed)
    print(done.stdout)
    assert "Ran 1 test" in done.stderr


@on_one_empty_database
def test_the_page_does_what_it_says(manage: Manage, tmp_path: Path) -> None:
    settings, tasks, call = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    if django.VERSION < (6,):
        tasks = tasks.replace("from django.tasks", "from django_tasks")
    (tmp_path / "page_settings.py").write_text(f"from shop.settings import *\n{settings}")
    (tmp_path / "page_tasks.py").write_text(tasks)
    (tmp_path / "page.py").write_text(PAGE_TESTS.format(indent(call, " " * 8)))
    done = manage("test", "page", "--noinput", PYTHONPATH=str(tmp_path), DJANGO_SETTINGS_MODULE="page_settings")
    assert "Ran 1 test" in done.stderr
