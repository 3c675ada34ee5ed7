"""What the documents show is what happens: every Python and console block of every README is executed.

A `console` block's lines that begin with one of `RUN` run as written, by the installed command, in order,
and must exit 0, or as their comment says: `# exit code 1`. Other lines of it (`$ pip install …`) are for the reader's
machine and are not run here. Each document starts on an empty folder, with tables where it does not make them itself. A
block with a file name after its language (```python app/jobs.py) is written to that file; a `pyproject.toml` registers
its entry points.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeAlias

import pytest
from sqlalchemy.engine import make_url
from sybil import Document, Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from sybil.typing import Parser

from effects import ConfigurationError, Effects, default
from effects.keys.encryption import generate_key
from effects.kit import importing
from effects.store.db import revisions
from effects.store.sessions.databases import living
from tests.support.database_pool import DatabasePool
from tests.support.documents import DOCUMENTS, OWN_DATABASE, RUN
from tests.support.processes import Child, typed
from tests.support.sampling import is_full, sample

ROOT = Path(__file__).parents[2]
EXIT_CODE = re.compile(r" +# exit code (\d)$")
FILE_BLOCK = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)

Run: TypeAlias = Callable[[str], str]


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs the lines of a console block, each in a process of its own, in the test's folder and environment."""
    logs = tmp_path_factory.mktemp("logs")
    numbers = count()

    def run_block(block: str) -> str:
        output = ""
        for line in block.splitlines():
            if line.startswith(RUN):
                settings = {name: value for name, value in os.environ.items() if name.startswith("EFFECTS_")}
                arguments = (str(tmp_path), shlex.split(EXIT_CODE.sub("", line))[1:])
                said = EXIT_CODE.search(line)
                with closing(Child(typed, arguments, settings, logs / f"{next(numbers)}.log")) as done:
                    assert done.wait(60) == (int(said[1]) if said else 0), f"{line}\n{done.output}"
                    output += done.output
        return output

    return run_block


def _document(path: Path, run: Run, folder: Path) -> Document:
    parsers: list[Parser] = [
        PythonCodeBlockParser(),
        CodeBlockParser(language="console", evaluator=partial(_run, run)),
    ]
    for language, name in FILE_BLOCK.findall(path.read_text()):
        parsers.append(CodeBlockParser(f"{language} {name}", evaluator=partial(_write, folder / name)))
    return Sybil(parsers=parsers).parse(path)


def _run(run: Run, example: Example) -> None:
    run(str(example.parsed))


def _write(file: Path, example: Example) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(str(example.parsed))
    if file.name == "pyproject.toml":
        _install(file)


def _install(pyproject: Path) -> None:
    """Register the entry points of a project next to its sources, as an editable install does."""
    project = tomllib.loads(pyproject.read_text())["project"]
    info = pyproject.parent / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))


def _forget_modules_in(folder: Path) -> None:
    """A document may write a module and import it; the next one's of that name is another."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if entry != ""]


def test_there_are_documents_to_execute() -> None:
    assert Path("README.md") in DOCUMENTS
    assert Path("webhooks/README.md") in DOCUMENTS


def test_a_package_is_added_in_less_than_200_lines_on_the_public_modules_alone() -> None:
    text = (ROOT / "docs" / "adding-a-package.md").read_text()
    imported = {name for name in re.findall(r"^from (effects[.\w]*)", text, re.MULTILINE) if "_sms" not in name}
    assert len(text.splitlines()) < 200
    assert {name.partition(".extend.")[0] for name in imported} == {"effects", "effects.cli", "effects.testing"}


def pages() -> list[tuple[str, Path]]:
    """The README on both databases; the others by `make soak`, else on one of the two. Some pages name their own."""
    readme = Path("README.md")
    on_any = [path for path in DOCUMENTS if path not in OWN_DATABASE and path != readme]
    on_postgresql = on_any if is_full() else sample(on_any, len(on_any) // 2)
    on_sqlite = [path for path in DOCUMENTS if is_full() or path not in on_postgresql]
    return [*(("sqlite", path) for path in on_sqlite), *(("postgresql", path) for path in [readme, *on_postgresql])]


@pytest.mark.parametrize(("empty_database_url", "path"), pages(), indirect=["empty_database_url"], ids=str)
def test_its_examples_run(
    path: Path, tmp_path: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """On PostgreSQL, and on the default, which is a SQLite file in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importing, "_by_group", importing._by_group.__wrapped__)  # a document may add some
    monkeypatch.setattr(revisions, "_branches", revisions._branches.__wrapped__)
    if empty_database_url.startswith("postgresql"):
        monkeypatch.setenv("EFFECTS_DATABASE_URL", empty_database_url)
    monkeypatch.setenv("EFFECTS_KEYS", f"test={generate_key()},digest={generate_key()}")
    monkeypatch.setenv("EFFECTS_GRACE_SECONDS", "1")
    if "effects init" not in (ROOT / path).read_text():
        run("$ effects init")
    document = _document(ROOT / path, run, tmp_path)
    examples = list(document.examples())
    assert examples
    try:
        for example in examples:
            example.evaluate()
        revisions.check(_app_of_document().store)
    finally:
        for app in living(Effects):
            app.dispose()
        _forget_modules_in(tmp_path)
    assert list(tmp_path.iterdir()) or empty_database_url.startswith("postgresql")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_the_tests_of_the_async_page_pass_on_each_driver(
    driver: str, tmp_path: Path, postgresql_pool: DatabasePool, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Above, the whole page runs on aiosqlite."""
    page = (ROOT / "docs" / "async-fastapi.md").read_text()
    for name, block in re.findall(r"^```python (\S+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(block)
    monkeypatch.setenv("SHOP_DATABASE_URL", f"postgresql+{driver}://nowhere.invalid/shop")
    with postgresql_pool.database() as url:
        test_url = make_url(url).set(drivername=f"postgresql+{driver}")
        monkeypatch.setenv("SHOP_TEST_DATABASE_URL", test_url.render_as_string(hide_password=False))
        assert "1 passed" in run("$ pytest -q")


def _app_of_document() -> Effects:
    try:
        return default()
    except ConfigurationError:  # it has made several, of the environment's database
        return Effects()


def test_a_complete_program_is_six_lines_and_two_commands(
    run: Run, tmp_path: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFFECTS_DATABASE_URL", empty_database_url)
    [(program, commands)] = re.findall(
        r"```python pager.py\n(.*?)```\n\n```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL
    )
    assert len([line for line in program.splitlines() if line]) <= 6
    assert [line.startswith("$ ") for line in commands.splitlines()] == [True, True]
    (tmp_path / "pager.py").write_text(program)
    assert "ringing db" in run(commands)


def test_the_first_program_does_what_the_readme_shows(
    run: Run, tmp_path: Path, empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 15 lines; a mail of the order that was committed, none of the other, and the printed story of both."""
    monkeypatch.setenv("EFFECTS_DATABASE_URL", empty_database_url)
    readme = (ROOT / "README.md").read_text()
    [program] = re.findall(r"```python shop.py\n(.*?)```", readme, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 15
    (tmp_path / "shop.py").write_text(program)
    first, second, *_ = re.findall(r"```console\n(.*?)```", readme, re.DOTALL)
    run(first)
    [mail] = (tmp_path / "mail" / "new").iterdir()
    assert b"Thank you!" in mail.read_bytes()
    printed = run(second)
    for line in second.splitlines():
        if not line.startswith("$ "):
            assert re.sub(r"[-:\d ]+Z", "…", line) in re.sub(r"[-:\d ]+Z", "…", printed)
