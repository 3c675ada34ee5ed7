"""A database of Django's settings becomes the URL of an Effects, or an error that says what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError
from effects.contrib.django.project import is_in_memory, url_of
from effects.settings import Settings

PG = "django.db.backends.postgresql"


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/shop.sqlite3")}, "sqlite:////srv/shop.sqlite3"),
        ({"ENGINE": PG, "NAME": "shop"}, "postgresql+psycopg:///shop"),
        (
            {"ENGINE": PG, "NAME": "shop", "USER": "ann", "PASSWORD": "p@ss/1", "HOST": "db.example", "PORT": 5433},
            "postgresql+psycopg://ann:p%40ss%2F1@/shop?host=db.example&port=5433",
        ),
        (
            {"ENGINE": PG, "NAME": "shop", "HOST": "/run/postgresql",
             "OPTIONS": {"sslmode": "require", "pool": True, "server_side_binding": True}},
            "postgresql+psycopg:///shop?host=%2Frun%2Fpostgresql&sslmode=require",
        ),
        ({"ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": "shop"}, "postgresql+psycopg:///shop"),
    ],
)  # fmt: skip
def test_a_database_has_a_url(settings: dict[str, Any], url: str) -> None:
    Settings(database_url=url_of("default", settings).render_as_string(hide_password=False))  # takes it
    rendered = url_of("default", settings).set(drivername=url.partition(":")[0])
    assert rendered.render_as_string(hide_password=False) == url


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ENGINE": "django.db.backends.mysql", "NAME": "shop"}, "is mysql; effects works on sqlite and postgresql"),
        ({}, "is not set"),
    ],
)  # fmt: skip
def test_another_database_is_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        url_of("default", settings)


@pytest.mark.parametrize("name", [":memory:", "file:memorydb_default?mode=memory&cache=shared"])
def test_a_database_in_memory_is_known(name: str) -> None:
    assert is_in_memory(url_of("default", {"ENGINE": "django.db.backends.sqlite3", "NAME": name}))
    assert not is_in_memory(url_of("default", {"ENGINE": "django.db.backends.sqlite3", "NAME": "memory.sqlite3"}))
