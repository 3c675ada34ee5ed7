"""Settings are checked when they are made, and a wrong one is named with what it may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from effects import ConfigurationError, Effects, Settings
from effects.store.db.urls import database_url

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
        ("THREADS", "0", "give 1 to 2,147,483,647"),
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


WRITABLE = "target_session_attrs=read-write"  # of several hosts, the one that is meant


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("postgres://u:hunter2@h/d", "postgresql+psycopg://u:hunter2@h/d"),
        ("postgresql+asyncpg://u@h/d?ssl=require", "postgresql+psycopg://u@h/d?sslmode=require"),
        ("postgresql+asyncpg://u@h/d?prepared_statement_cache_size=0", "postgresql+psycopg://u@h/d"),
        ("postgresql+psycopg2://u@h:5433/d", "postgresql+psycopg://u@h:5433/d"),
        ("sqlite+aiosqlite:///shop.db", "sqlite:///shop.db"),
        (" postgresql://u@h/d\n", "postgresql+psycopg://u@h/d"),
        ("postgresql://u@a:5432,b:5433/d", "postgresql+psycopg://u@/d?host=a%2Cb&port=5432%2C5433&" + WRITABLE),
        ("postgresql://u@a,b/d", "postgresql+psycopg://u@/d?host=a%2Cb&port=5432%2C5432&" + WRITABLE),
        (
            "postgresql://u@/d?host=a:5432&host=b:5433",
            "postgresql+psycopg://u@/d?host=a%3A5432&host=b%3A5433&" + WRITABLE,
        ),
        ("postgresql://u@/d?host=a,b&port=1", "postgresql+psycopg://u@/d?host=a%2Cb&port=1%2C1&" + WRITABLE),
    ],
)
def test_urls_of_the_same_database_are_taken_in_any_form(written: str, taken: str) -> None:
    assert database_url(written).render_as_string(hide_password=False) == taken
    assert "hunter2" not in repr(Settings(database_url=written))


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("jdbc:postgresql://u:hunter2@h/d", "begins with jdbc:"),
        ("host=h dbname=d password=hunter2", "libpq's form"),
        ("postgresql://u:hunter2@h:port/d", "%40"),
        ("postgresql+unheard://u:hunter2@h/d", "without a driver"),
        ("postgresql://u:hunter2@h/d?colour=red", "the option 'colour'"),
        ("postgresql://u:hunter2@[::1]:1,[::2]:2/d", "host=address1,address2"),
        ("postgresql://u:hunter2@/d?host=a,b,c&port=1,2", "give each host its port"),
        ("sqlite://shop.db", "three slashes"),
        ("sqlite:///file:shop?mode=memory&uri=true", "in-memory"),
        ("sqlite:////srv/a?b.db", "rename the file"),
        ("sqlite:////srv/a?b=c.db", "the option 'b'"),
        ("sqlite:////srv/a.db?mode=ro", "write uri=true beside it"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_to_write(written: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(database_url=written)
    assert advice in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["EFFECT_DATABASE_URL", "EFFECTS_DB_URL", "EFFECTS_DATABSE_URL", "EFFECTS_URL", "effects_database_url"]
)
def test_a_misspelt_variable_is_no_reason_to_use_the_default_database(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is: rename it to EFFECTS_DATABASE_URL"):
        Settings.from_environment({name: PG})
    assert Settings.from_environment({name: PG, "EFFECTS_DATABASE_URL": PG}).database_url == PG
    assert Settings.from_environment({name: PG}, database_url=PG).database_url == PG


def test_an_empty_url_is_no_reason_to_use_the_default_database() -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_DATABASE_URL is empty; give it a URL"):
        Settings.from_environment({"EFFECTS_DATABASE_URL": ""})


@pytest.mark.parametrize("name", ["GRACE_SECONDS", "QUEUES", "LOG_LEVEL", "NOTIFY_IN_TRANSACTION", "SCHEMA"])
def test_a_value_is_quoted_shortened(name: str) -> None:
    """It may be something else by mistake, such as a file or a key."""
    variable = f"EFFECTS_{name}"
    with pytest.raises(ConfigurationError, match=rf"{variable} .*a{{20}}") as caught:
        Settings.from_environment({"EFFECTS_DATABASE_URL": "sqlite:///x.db", variable: "a" * 10_000})
    assert len(str(caught.value)) < 200
