"""The frame of the command: options, errors on one line, exit codes, commands of packages."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click
import pytest

from effects.cli import main
from effects.cli.main import EXIT_INTERRUPTED, cli
from tests.cli.conftest import COMMAND, ROOT, Answer, Run, environment

DATABASE_COMMANDS = [
    ("status",),
    ("why", "k"),
    ("audit",),
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("jobs", "cancel", "1"),
    ("jobs", "requeue", "1"),
    ("jobs", "run-now", "1"),
    ("work", "--drain"),
    ("metrics",),
    ("alerts", "check"),
    ("keys", "status"),
    ("keys", "rotate"),
]


def error_line(answer: Answer) -> str:
    """The one line of an error."""
    assert answer.exit_code == 2, answer
    [line] = answer.err.splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("command", DATABASE_COMMANDS, ids=" ".join)
def test_every_command_on_an_empty_database_says_what_to_run(
    run: Run, empty_database_url: str, command: tuple[str, ...]
) -> None:
    assert "run `effects init`" in error_line(run(*command, url=empty_database_url))


def test_only_init_makes_a_database_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    assert "there is no database 'new.db' yet" in error_line(run("status", url=f"sqlite:///{file}"))
    assert not file.exists()
    assert run("init", url=f"sqlite:///{file}").exit_code == 0
    assert file.exists()


def test_init_says_what_it_did_and_changes_nothing_the_second_time(run: Run, empty_database_url: str) -> None:
    assert "core_0001" in run("init", "--json", url=empty_database_url).json["applied"]
    again = run("init", "--json", url=empty_database_url).json
    assert again == {"applied": [], "schedules": {"added": [], "changed": [], "retired": []}}
    assert run("init", url=empty_database_url).out == "the tables are up to date\n"


def test_a_schema_of_ones_own(run: Run, postgresql_server: str, empty_database_url: str) -> None:
    if empty_database_url.startswith("sqlite"):
        assert "EFFECTS_SCHEMA" in error_line(run("--schema", "jobs", "init", url=empty_database_url))
        return
    assert run("--schema", "jobs", "init", url=empty_database_url).exit_code == 0
    assert run("--schema", "jobs", "audit", "--json", url=empty_database_url).json["clean"] is True
    assert "run `effects init`" in error_line(run("status", url=empty_database_url))


def test_a_database_that_is_away(run: Run) -> None:
    line = error_line(run("status", url="postgresql://somebody:secret@127.0.0.1:1/none"))
    assert "the database cannot be reached" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--app", "no_such_module:app", "status"], "there is no module 'no_such_module'"),
        (["--app", "tests.cli.no_such_module:app", "status"], "there is no module 'tests.cli.no_such_module'"),
        (["--app", "tests.cli.shop_app", "status"], "give module:attribute"),
        (["--app", "tests.cli.test_main:nothing", "status"], "has no attribute 'nothing'"),
        (["--app", "tests.cli.test_main:DATABASE_COMMANDS", "status"], "is a list; it must be an effects.Effects"),
        (["--no-such-option"], "No such option"),
        (["no-such-command"], "No such command 'no-such-command'"),
        (["jobs", "show", "twelve"], "'twelve' is not a valid integer"),
        (["jobs", "list", "--status", "finished"], "'finished' is not one of"),
        (["work", "--max-seconds", "5"], "--max-seconds goes with --drain"),
        (["work", "--lane", "mails=none"], "--lane is 'mails=none'"),
        (["--database-url", "mysql://x/y", "status"], "use sqlite or postgresql"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(run: Run, arguments: list[str], said: str) -> None:
    url = None if "--app" in arguments or "--database-url" in arguments else "sqlite:///nowhere.db"
    # The options of `work` are looked at after the database is found.
    assert said in error_line(run(*arguments) if arguments[0] == "work" else run(*arguments, url=url))


def test_app_and_database_url_exclude_each_other(run: Run) -> None:
    assert "leave out" in error_line(run("--app", "tests.cli.shop_app:app", "status"))


def test_an_app_whose_import_fails_says_how(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_shop_one.py").write_text("import module_that_is_missing_here\n")
    (tmp_path / "broken_shop_two.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    first = error_line(run("--app", "broken_shop_one:app", "status", url=None))
    assert "importing broken_shop_one failed: No module named 'module_that_is_missing_here'" in first
    second = error_line(run("--app", "broken_shop_two:app", "status", url=None))
    assert "importing broken_shop_two failed: ZeroDivisionError" in second


def test_the_app_is_found_in_the_working_directory(process: Run, tmp_path: Path) -> None:
    (tmp_path / "corner_shop.py").write_text(
        "from effects import Effects, JobType\n"
        "class Sell(JobType):\n    name = 'shop.sell'\n    queue = 'counter'\n"
        "    def perform(self, payload, attempt): ...\n"
        "app = Effects(job_types=[Sell()])\n"
    )
    answer = process("--app", "corner_shop:app", "work", "--drain", cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert answer.exit_code == 0, answer.err
    assert "counter=" in answer.err


def test_version_and_help(run: Run) -> None:
    assert run("--version", url=None).out.startswith("effects, version ")
    told = run("--help", url=None)
    assert told.exit_code == 0
    for command in ("init", "work", "status", "why", "audit", "jobs", "keys"):
        assert f"\n  {command} " in told.out
    for command in cli.list_commands(click.Context(cli)):
        assert run(command, "--help", url=None).exit_code == 0


def test_the_console_script_is_this_command() -> None:
    [script] = [one for one in entry_points(group="console_scripts") if one.name == "effects"]
    assert script.load() is main.main


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A stranger's package that offers a command."""

    def make(value: str) -> None:
        entry = EntryPoint(name="parrot", value=value, group="effects.commands")
        monkeypatch.setattr(main, "entry_points", lambda group: [entry])

    return make


@click.command()
def parrot() -> None:
    """Say it again."""
    click.echo("again")


def test_a_package_brings_its_command_by_entry_point(run: Run, offer: Callable[[str], None]) -> None:
    offer("tests.cli.test_main:parrot")
    assert run("parrot").out == "again\n"
    assert "Say it again." in run("--help").out


def test_a_package_whose_command_cannot_be_loaded_harms_no_other(run: Run, offer: Callable[[str], None]) -> None:
    offer("tests.cli.no_such_module:parrot")
    assert run("status").exit_code == 0
    assert "cannot be loaded" in run("--help").out
    assert "the command 'parrot' cannot be loaded: ModuleNotFoundError" in error_line(run("parrot", "--loud", "x"))


def test_an_interrupt_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.commands, "status", interrupted)
    monkeypatch.setattr(main.EffectsGroup, "get_command", lambda self, ctx, name: interrupted)
    assert run("status").exit_code == EXIT_INTERRUPTED


def test_a_reader_that_has_enough_ends_it_quietly(database_url: str) -> None:
    """As in `effects jobs list | head`: the pipe is closed before we write."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "status"], cwd=ROOT, env=environment(database_url), stdout=writer, stderr=subprocess.PIPE,
        timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")
