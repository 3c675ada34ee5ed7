"""The core by itself, then with one package. The environment has what these distributions require, and no more."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.house.source import CORE
from tests.install.wheel import Built, Environment, kept_variables, required, run

PAGER = """
from effects import Effects

app = Effects()


@app.job("pager.ring")
def ring(team: str) -> None:
    print("ringing", team)
"""

pytestmark = pytest.mark.slow


def test_the_core_works_alone_and_with_one_package(distributions: dict[str, Built], tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv", required(CORE))
    effects = environment.bin / "effects"
    environment.install(distributions[CORE].wheel)
    (tmp_path / "pager.py").write_text(PAGER)
    check_commands(environment, tmp_path)
    assert "pip install 'effects-toolkit[web]'" in run(effects, "web", "--port", 0, cwd=tmp_path, code=2)

    environment.add(required(f"{CORE}[web]"))
    assert "/webhooks" not in check_dashboard(environment, tmp_path)

    environment.add(required(f"{CORE}-webhooks"))
    environment.install(distributions[f"{CORE}-webhooks"].wheel)
    assert "webhooks_0001" in run(effects, "init", cwd=tmp_path)
    assert "schema is up to date" in run(effects, "doctor", cwd=tmp_path, code=1)
    assert "/webhooks" in check_dashboard(environment, tmp_path)


def check_commands(environment: Environment, folder: Path) -> None:
    """A job from its call to its end."""
    effects = environment.bin / "effects"
    run(effects, "init", cwd=folder)
    run(environment.bin / "python", "-c", "import pager; pager.ring.enqueue(team='db')", cwd=folder)
    assert "ringing db" in run(effects, "--app", "pager:app", "work", "--drain", cwd=folder)
    assert "pager.ring" in run(effects, "status", cwd=folder)
    assert "schema is up to date" in run(effects, "doctor", cwd=folder, code=1)


def check_dashboard(environment: Environment, folder: Path) -> set[str]:
    """Open each page that the overview leads to; gives their paths."""
    with dashboard(environment, folder) as client:
        paths = set(re.findall(r'href="(/[^"?#]*)"', client.get("/").text))
        assert {path: code for path in paths if (code := client.get(path).status_code) >= 300} == {}
    return paths


@contextmanager
def dashboard(environment: Environment, folder: Path) -> Iterator[httpx.Client]:
    """`effects web`, for the admin whom its link signs in."""
    command = [environment.bin / "effects", "web", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, env=kept_variables(), stdout=subprocess.PIPE, text=True) as process:
        try:
            [(url, secret)] = re.findall(r"dashboard: (\S+) .*token=(\S+)", _lines(process, 2), re.DOTALL)
            with httpx.Client(base_url=url, headers={"sec-fetch-site": "same-origin"}, trust_env=False) as client:
                assert client.post("/sign-in/enter", data={"token": secret}).status_code == 303
                yield client
        finally:
            process.terminate()
    assert process.returncode == 0


def _lines(process: subprocess.Popen[str], count: int) -> str:
    assert process.stdout is not None
    return "".join(islice(process.stdout, count))
