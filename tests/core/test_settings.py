"""Settings are checked when they are made, and a wrong one is named with what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError, Effects, Settings

PG = "postgresql://app:hunter2@db.example/shop"


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("DATABASE_URL", "not a url", "is not a database URL"),
        ("DATABASE_URL", "mysql://u@h/d", "names mysql"),
        ("DATABASE_URL", "sqlite://", "in-memory"),
        ("DATABASE_URL", "sqlite:///:memory:", "in-memory"),
        ("SCHEMA", "Robert'); DROP", "plain lower-case identifier"),
        ("SCHEMA", "jobs", "for PostgreSQL"),
        ("THREADS", "0", "must be above 0"),
        ("THREADS", "many", "give a number"),
        ("THREADS", "2.5", "give a number"),
        ("HEARTBEAT_SECONDS", "-1", "must be above 0"),
        ("LEASE_SECONDS", "20", "at least three heartbeats"),
        ("LEASE_SECONDS", "soon", "give a number"),
        ("POLL_SECONDS", "0", "must be above 0"),
        ("GRACE_SECONDS", "0", "must be above 0"),
        ("RETENTION_JOBS_DAYS", "0", "must be above 0"),
        ("RETENTION_DEAD_DAYS", "nan", "must be above 0"),
        ("RETENTION_EFFECTS_DAYS", "ever", "give a number"),
        ("QUEUES", "emails", "name=threads"),
        ("QUEUES", "emails=0", "name=threads"),
        ("QUEUES", "=3", "name=threads"),
        ("LOG_FORMAT", "xml", "give text or json"),
        ("LOG_LEVEL", "LOUD", "give DEBUG"),
    ],
)
def test_a_wrong_value_names_its_variable(variable: str, value: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Settings.from_environment({f"EFFECTS_{variable}": value})
    assert f"EFFECTS_{variable}" in str(caught.value)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("variable", ["HEARTBEAT_SECONDS", "LEASE_SECONDS", "POLL_SECONDS", "GRACE_SECONDS"])
def test_a_time_is_a_finite_number(variable: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"EFFECTS_{variable}"):
        Settings.from_environment({f"EFFECTS_{variable}": value})


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("THREADS", "4", 4),
        ("LEASE_SECONDS", "60", 60.0),
        ("LOG_LEVEL", "DEBUG", "DEBUG"),
        ("THREADS", "", 10),
    ],
)
def test_the_environment_is_read(variable: str, text: str, value: Any) -> None:
    assert getattr(Settings.from_environment({f"EFFECTS_{variable}": text}), variable.lower()) == value


def test_what_the_caller_gives_comes_first() -> None:
    environ = {"EFFECTS_THREADS": "4", "EFFECTS_DATABASE_URL": PG}
    settings = Settings.from_environment(environ, threads=7, schema="jobs", database_url=None)
    assert (settings.threads, settings.schema, settings.database_url) == (7, "jobs", PG)


def test_an_unknown_option_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no option 'colour'"):
        Effects(f"sqlite:///{tmp_path / 'x.db'}", colour="red")


def test_queues_are_pairs() -> None:
    assert Settings(queues=" emails=8, reports=2 ,").queue_threads() == {"emails": 8, "reports": 2}
    assert Settings().queue_threads() == {}


def test_defaults_are_a_file_in_the_working_directory() -> None:
    settings = Settings.from_environment({})
    assert settings == Settings()
    assert settings.database_url == "sqlite:///effects.db"
    assert not settings.is_postgresql
    assert Settings(database_url=PG).is_postgresql
