"""The distribution as others get it: built, installed into an empty environment, used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.house.source import PACKAGES
from tests.install.wheel import ROOT, Environment, build, foreign_wheel, run
from tests.support import databases
from tests.support.runbooks import blocks, sections
from tests.support.sampling import sample
from tests.support.terminal import terminal

WHEEL_BYTES_MAX = 1_468_006  # 1.4 MiB: the library outgrew a million bytes, and the dashboard brings its pages
README = [
    f"tests/docs/test_documents.py::test_its_examples_run[{database}-README.md]"
    for database in ("sqlite", "postgresql")
]
EXAMPLES = sorted(f"tests/examples/{path.name}" for path in (ROOT / "tests" / "examples").glob("test_*.py"))
EXAMPLES_SAMPLED = 2  # they run in the checkout too

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.fixture(scope="module")
def installed(distributions: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The wheel in an environment that no test changes."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.install(distributions[0])
    return environment


def test_the_wheel_is_small_and_typed_and_holds_nothing_else(distributions: tuple[Path, Path]) -> None:
    wheel, _ = distributions
    assert wheel.name.startswith("effects_toolkit-")
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert packages == {*PACKAGES, "effects_toolkit"}
    assert [package for package in packages if f"{package}/py.typed" not in names] == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize("tests", [README, sample(EXAMPLES, EXAMPLES_SAMPLED)], ids=["readme", "examples"])
def test_the_readme_and_the_examples_run_from_the_wheel(
    installed: Environment, postgresql_server: str, tmp_path: Path, tests: list[str]
) -> None:
    """By the tests that run them in the checkout, copied to where the sources are not."""
    away = tmp_path / "away"
    shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "pyproject.toml", "docs", "examples"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, away / name)
    python = installed.bin / "python"
    assert str(installed.site) in run(python, "-c", "import effects; print(effects.__file__)", cwd=away)
    settings = {name: value for name, value in os.environ.items() if name.startswith("EFFECTS_TEST_")}
    settings["EFFECTS_TEST_DATABASE_URL"] = postgresql_server
    output = run(python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests, cwd=away, **settings)
    assert " passed" in output


@pytest.mark.timeout(400)
def test_the_tutorial_is_played_in_an_environment_with_the_wheel_alone(
    installed: Environment, tmp_path: Path, postgresql_server: str
) -> None:
    """What it shows is what comes, but for names that are new each time. Its ports and its server are the test's."""
    shop = tmp_path / "shop"
    shop.mkdir()
    page = (ROOT / "docs" / "tutorial.md").read_text()
    install, page = re.split(r"(?<=^```\n)(?=\n## Settings)", page, maxsplit=1, flags=re.MULTILINE)
    assert len(re.findall(r"^\$ ", install, re.MULTILINE)) == 3  # what `environment` has done
    with ExitStack() as stack:
        url = stack.enter_context(databases.postgresql_database(postgresql_server))
        replaced = {"postgresql://shop@localhost/shop": f"'{url}'", "8911": str(free_port()), "web &": "web --port 0 &"}
        for text, here in {**replaced, "127.0.0.1:8765/": "127.0.0.1:"}.items():
            assert text in page
            page = page.replace(text, here)
        settings = {"PATH": f"{installed.bin}{os.pathsep}{os.environ['PATH']}"}
        stack.enter_context(terminal(shop, settings)).play(page)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_sdist_installs(distributions: tuple[Path, Path], environment: Environment, tmp_path: Path) -> None:
    _, sdist = distributions
    environment.install(sdist)
    assert run(environment.bin / "effects", "--version", cwd=tmp_path).startswith("effects, version ")
    run(environment.bin / "effects", "init", cwd=tmp_path)


def test_another_projects_effects_in_the_same_environment_is_named(
    distributions: tuple[Path, Path], environment: Environment, tmp_path: Path
) -> None:
    """Installed after ours it breaks the command, before ours it is in the way; removed, it takes our file along."""
    wheel, _ = distributions
    foreign = foreign_wheel(tmp_path)
    effects = environment.bin / "effects"
    environment.install(wheel)
    environment.install(foreign)
    assert "error: the distribution effects 0.0.1 is another project" in run(effects, "init", cwd=tmp_path, code=2)
    environment.install(wheel)
    run(effects, "init", cwd=tmp_path)
    report = run(effects, "doctor", cwd=tmp_path, code=2, COLUMNS="200")
    assert "effects 0.0.1 is another project" in report
    assert "pip uninstall effects effects-toolkit" in report
    environment.uninstall("effects")
    assert "files of effects-toolkit are missing" in run(effects, "status", cwd=tmp_path, code=2)
    environment.install(foreign)
    for line in blocks(sections("findings.md")["installation"])[0][1].replace("WHEEL", str(wheel)).splitlines():
        environment.pip(*line.split()[1:])
    assert "another project" not in run(effects, "doctor", cwd=tmp_path, code=1)
