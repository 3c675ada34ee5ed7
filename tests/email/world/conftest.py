"""Apps for the tests of what the world says about mail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from tests.conftest import AppFactory

OLD, NEW, DIGEST = (generate_key() for _ in range(3))
KEYS = f"old={OLD},digest={DIGEST}"
ROTATED_KEYS = f"new={NEW},old={OLD},digest={DIGEST}"
NEWEST_KEYS = f"new={NEW},digest={DIGEST}"

MailFactory: TypeAlias = Callable[..., Effects]


@pytest.fixture
def mail_factory(app_factory: AppFactory) -> MailFactory:
    """`mail_factory(keys="…")`: an app without job types of its own."""
    return lambda keys=KEYS, **options: app_factory(job_types=[], keys=keys, **options)


@pytest.fixture
def mail(mail_factory: MailFactory) -> Effects:
    """An app that can seal and digest."""
    return mail_factory()
