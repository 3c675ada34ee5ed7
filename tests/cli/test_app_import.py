"""`effects --app`: what an app may not do while it is imported, and where its import failed."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from effects import Effects, EnqueueError
from effects.kit.importing import importing, refuse_while_importing  # noqa: F401 - by exec
from tests.cli.conftest import Run
from tests.support.manual_workers import rows

APP = """from effects import Effects
app = Effects()
@app.job("pager.page")
def ring(team: str) -> None: ...
"""
CASES = {
    "key": ("import os\nos.environ['NOT_THERE']\n", ":2: KeyError: 'NOT_THERE' is not in the environment"),
    "helper": (
        "def read():\n    return {}['x']\n\nread()\n",
        ":2: KeyError (its text may hold values; import it with python to see it)",
    ),
    "library": ("import json\n\njson.loads('{')\n", ":3: JSONDecodeError"),
    "module": ("\nimport module_that_is_missing_here\n", ":2: ModuleNotFoundError: No module named 'module_that_is_"),
    "name": ("\nundefined\n", ":2: NameError: name 'undefined' is not defined"),
    "import": ("from effects import Nothing\n", ":1: ImportError: cannot import name 'Nothing' from 'effects'"),
    "syntax": ("def f(:\n", ":1: SyntaxError"),
    "setting": ("from effects import Effects\n\nEffects(theads=5)\n", ":3: Effects has no option 'theads'"),
    "exit": ("import sys\nsys.exit('no')\n", ":2: SystemExit (its text may hold values"),
    "async": (
        f"{APP}@app.job('pager.ask')\nasync def ask(team: str) -> None:\n    yield\n",
        ":5): it is a generator (it has a `yield`)",
    ),
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Writes a module for this test alone and gives its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def module(source: str) -> str:
        name = f"app_of_{abs(hash(request.node.name))}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return module


@pytest.mark.parametrize("case", CASES)
def test_the_line_where_an_import_fails_is_named(run: Run, write: Callable[[str], str], case: str) -> None:
    source, words = CASES[case]
    name = write(source)
    answer = run("--app", f"{name}:app", "status")
    assert answer.exit_code == 2
    [line] = answer.err.splitlines()
    assert line.startswith(f"error: --app: importing {name} failed")
    assert f"{name}.py{words}" in line


SECRET = "hunter2"
RAISES = {
    "url": f"from sqlalchemy import create_engine\ncreate_engine('no-url:{SECRET}@host/shop')\n",
    "exit": f"import sys\nsys.exit('cannot reach postgresql://shop:{SECRET}@host/shop')\n",
    "number": f"int('{SECRET}')\n",
    "key": f"{{}}['{SECRET}']\n",
    "attribute": f"def find(name):\n    raise AttributeError('{SECRET}')\nfind('x')\n",
    "cause": f"try:\n    int('{SECRET}')\nexcept ValueError as error:\n    raise RuntimeError('{SECRET}') from error\n",
    "group": f"raise ExceptionGroup('{SECRET}', [ValueError('{SECRET}')])\n",
    "note": f"error = ValueError('x')\nerror.add_note('{SECRET}')\nraise error\n",
    "class": f"class Broken(Exception):\n    def __str__(self):\n        return '{SECRET}'\nraise Broken()\n",
    **{name: f"raise {name}('{SECRET}')\n" for name in sorted(
        name for name, value in vars(builtins).items()
        if isinstance(value, type) and issubclass(value, Exception)
        and not issubclass(value, (SyntaxError, ImportError, NameError, UnicodeError, BaseExceptionGroup, Warning))
    )},
}  # fmt: skip


@pytest.mark.parametrize("case", RAISES)
def test_no_text_that_may_hold_a_secret_is_printed(run: Run, write: Callable[[str], str], case: str) -> None:
    """Class, file and line are, so that its place is easily found."""
    name = write(RAISES[case])
    answer = run("--app", f"{name}:app", "status")
    assert answer.exit_code == 2
    assert SECRET not in answer.out + answer.err
    line = 2 if case == "attribute" else RAISES[case].count("\n")
    assert f"importing {name} failed at {name}.py:{line}: " in answer.err


@pytest.mark.parametrize(
    "call",
    [
        "ring.enqueue(team='db')",
        "enqueue_many([ring.job(team='db')], effects=app)",
        "enqueue('pager.page', {'team': 'db'}, effects=app)",
        "deliver_webhook(WebhookEvent('order.paid', {}), effects=app)",
    ],
)
def test_an_app_that_enqueues_while_it_is_imported_is_refused(
    app: Effects, run: Run, write: Callable[[str], str], call: str
) -> None:
    """Each command would do it again. Nothing is written."""
    head = "from effects import enqueue, enqueue_many\nfrom effects_webhooks import WebhookEvent, deliver_webhook\n"
    name = write(f"{head}{APP}{call}\n")
    answer = run("--app", f"{name}:app", "jobs", "list")
    assert answer.exit_code == 2
    assert answer.err.strip() == (
        f"error: --app: importing {name} failed: module {name} enqueues while it is imported, at {name}.py:7: "
        "move it into a function"
    )
    assert rows(app, "jobs") == []


def test_only_the_importing_thread_is_refused() -> None:
    refused: list[str] = []

    def enqueue(thread: str) -> None:
        try:
            exec(compile("refuse_while_importing()", "module.py", "exec"), globals())
        except EnqueueError:
            refused.append(thread)

    with importing():
        enqueue("this one")
        thread = threading.Thread(target=enqueue, args=("another",))
        thread.start()
        thread.join()
    enqueue("this one, later")
    assert refused == ["this one"]


def test_an_app_named_as_a_path_of_windows_is_an_error_in_one_line(run: Run) -> None:
    """Advice would name the app; it must not read what is in the name."""
    answer = run("--app", "shop\\effects:app", "status")
    assert (answer.exit_code, answer.err.count("\n")) == (2, 1)
    assert answer.err.startswith("error: --app: there is no module ")


def test_advice_names_the_app_that_the_command_line_named(
    run: Run, write: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, an app that does not read the environment would be on another database. EFFECTS_APP needs no word."""
    name = f"{write(APP)}:app"
    assert f"(see `effects --app {name} jobs list`)" in run("--app", name, "why", "order:1").err
    assert f"(see `effects --app {name} jobs list`)" in run("--app", name, "jobs", "show", "--key", "k").err
    assert "(see `effects jobs list`)" in run("why", "order:1").err
    monkeypatch.setenv("EFFECTS_APP", name)
    assert "(see `effects jobs list`)" in run("why", "order:1").err
