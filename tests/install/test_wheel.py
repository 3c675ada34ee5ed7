"""The distributions as others get them: built, installed into an empty environment, used from an empty folder."""

from __future__ import annotations

import os
import re
import shutil
import socket
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from effects.version import VERSION
from tests.house.source import CORE, DISTRIBUTIONS, ROOT, package_of
from tests.install.wheel import Built, Environment, foreign_wheel, run
from tests.support import databases
from tests.support.runbooks import blocks, sections
from tests.support.sampling import sample
from tests.support.terminal import terminal

WHEEL_BYTES_MAX = 1_000_000
PAGES = ("README.md", "email/README.md", "webhooks/README.md", "reports/README.md")
READMES = [
    f"tests/docs/test_documents.py::test_its_examples_run[{case}]"
    for case in ("postgresql-README.md", *(f"sqlite-{page}" for page in PAGES))
]
EXAMPLES = sorted(f"tests/examples/{path.name}" for path in (ROOT / "tests" / "examples").glob("test_*.py"))
EXAMPLES_SAMPLED = 2  # they run in the checkout too

pytestmark = pytest.mark.slow


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.fixture(scope="module")
def installed(distributions: dict[str, Built], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """All wheels in an environment that no test changes."""
    environment = Environment(tmp_path_factory.mktemp("installed") / "venv")
    environment.install(*(built.wheel for built in distributions.values()))
    return environment


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_wheel_is_small_and_typed_and_holds_nothing_else(name: str, distributions: dict[str, Built]) -> None:
    wheel = distributions[name].wheel
    assert wheel.name == f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
    assert wheel.stat().st_size <= WHEEL_BYTES_MAX
    packages = [package_of(name), *(["effects_toolkit"] if name == CORE else [])]
    folder = DISTRIBUTIONS[name]
    sources = [path for package in packages for path in (folder / package).rglob("*.*") if path.suffix != ".pyc"]
    files = zipfile.ZipFile(wheel).namelist()
    assert {file for file in files if ".dist-info/" not in file} == {str(path.relative_to(folder)) for path in sources}
    assert [package for package in packages if f"{package}/py.typed" not in files] == []
    assert [file for file in files if file.endswith(".dist-info/licenses/LICENSE")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("tests", "full"), [(READMES, "1"), (sample(EXAMPLES, EXAMPLES_SAMPLED), "0")],
                         ids=["readmes", "examples"])  # fmt: skip
def test_the_readmes_and_the_examples_run_from_the_wheels(
    installed: Environment, postgresql_server: str, tmp_path: Path, tests: list[str], full: str
) -> None:
    """By the tests that run them in the checkout, copied to where the sources are not."""
    away = tmp_path / "away"
    shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("docs", "examples"):
        shutil.copytree(ROOT / folder, away / folder)
    for file in ("pyproject.toml", *PAGES):
        (away / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, away / file)
    python = installed.bin / "python"
    assert str(installed.site) in run(python, "-c", "import effects; print(effects.__file__)", cwd=away)
    settings = {name: value for name, value in os.environ.items() if name.startswith("EFFECTS_TEST_")}
    settings |= {"EFFECTS_TEST_DATABASE_URL": postgresql_server, "EFFECTS_TEST_FULL": full}
    output = run(python, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *tests, cwd=away, **settings)
    assert " passed" in output


@pytest.mark.timeout(400)
def test_the_tutorial_is_played_in_an_environment_with_the_wheels_alone(
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


def test_the_sdists_install(distributions: dict[str, Built], environment: Environment, tmp_path: Path) -> None:
    environment.install(*(built.sdist for built in distributions.values()))
    assert run(environment.bin / "effects", "--version", cwd=tmp_path) == f"effects, version {VERSION}\n"
    run(environment.bin / "effects", "init", cwd=tmp_path)


def test_another_projects_effects_in_the_same_environment_is_named(
    distributions: dict[str, Built], environment: Environment, tmp_path: Path
) -> None:
    """Installed after ours it breaks the command, before ours it is in the way; removed, it takes our file along."""
    wheel = distributions[CORE].wheel
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
