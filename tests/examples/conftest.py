"""The examples as a reader would run them: from their own folder, on a database of the test's."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import pytest
from sqlalchemy.engine import make_url

from effects.keys.encryption import generate_key
from tests.support.sampling import sample

EXAMPLES = Path(__file__).parents[2] / "examples"
# For a test that starts many processes: one of the two databases; both by `make soak`.
_ONE_DATABASE = sample(["sqlite", "postgresql"], 1)
on_one_database = pytest.mark.parametrize("database_url", _ONE_DATABASE, indirect=True)
on_one_empty_database = pytest.mark.parametrize("empty_database_url", _ONE_DATABASE, indirect=True)

Shell: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
Manage: TypeAlias = Callable[..., subprocess.CompletedProcess[str]]
Load: TypeAlias = Callable[[str], ModuleType]


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        "EFFECTS_DATABASE_URL": database_url,
        "EFFECTS_KEYS": f"k={generate_key()},digest={generate_key()}",
        "EFFECTS_STORAGE_URL": str(tmp_path / "files"),
        "SHOP_REPORTS": str(tmp_path),
    }


@pytest.fixture
def shell(settings: dict[str, str]) -> Shell:
    """A command line in the examples' folder; it must end with `code`."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, **settings, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(line: str, *, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["/bin/sh", "-c", line], cwd=EXAMPLES, env={**env, **more}, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{line}\n{done.stdout}{done.stderr}"
        return done

    return run


@pytest.fixture
def load(settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Import a fresh copy of an example, in this process."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded: list[str] = []

    def load_module(name: str) -> ModuleType:
        for variable, value in settings.items():
            monkeypatch.setenv(variable, value)
        loaded.append(name)
        return importlib.import_module(name)

    yield load_module
    for name in loaded:
        sys.modules.pop(name, None)


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

    def run(*arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-W", "error", "manage.py", *arguments], cwd=EXAMPLES / "django_shop",
            env={**os.environ, **variables, **more}, capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{arguments}\n{done.stdout}{done.stderr}"
        return done

    return run
