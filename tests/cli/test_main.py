"""The frame of the command: options, errors on one line, exit codes, commands of packages."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import click
import pytest
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from effects import Effects
from effects.cli import main
from effects.cli.main import cli, exit_code_of
from effects.kit.exit_codes import ExitCode
from effects.kit.logs import log_thread_error
from effects.store.db.urls import describe_database
from effects_toolkit.command import main as console_script
from tests.cli.conftest import COMMAND, ROOT, Run, environment
from tests.support.commands import error_line
from tests.support.manual_workers import run_sql

DATABASE_COMMANDS = [
    ("status",),
    ("why", "k"),
    ("audit",),
    ("jobs", "list"),
    ("jobs", "show", "1"),
    ("cancel", "1"),
    ("retry", "1"),
    ("resolve", "1", "--as", "done"),
    ("work", "--drain"),
    ("metrics",),
    ("alerts", "check"),
    ("keys", "status"),
    ("keys", "rotate"),
]


@pytest.mark.parametrize("command", DATABASE_COMMANDS, ids=" ".join)
def test_every_command_on_an_empty_database_names_the_command_to_run(
    run: Run, empty_database_url: str, command: tuple[str, ...]
) -> None:
    assert "run `effects init`" in error_line(run(*command, url=empty_database_url))


def _groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that needs another one behind it."""
    yield path
    context = click.Context(group)
    for name in group.list_commands(context):
        child = group.get_command(context, name)
        if isinstance(child, click.Group) and not child.invoke_without_command:
            yield from _groups(child, (*path, name))


@pytest.mark.parametrize("path", list(_groups(cli)), ids=" ".join)
def test_a_group_without_a_command_prints_its_help(run: Run, path: tuple[str, ...]) -> None:
    answer = run(*path, url=None)
    assert (answer.exit_code, answer.err) == (ExitCode.ERROR if path else ExitCode.DONE, "")
    assert answer.out.startswith(f"Usage: {' '.join(('effects', *path))} ")
    assert answer.out == run(*path, "--help", url=None).out
    assert ("\nCommands:\n" if path else "\nEvery day:\n") in answer.out


def test_only_init_makes_a_database_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    assert "new.db' yet" in error_line(run("status", url=f"sqlite:///{file}"))
    assert not file.exists()
    assert run("init", url=f"sqlite:///{file}").exit_code == 0
    assert file.exists()


@pytest.mark.slow
def test_init_lists_its_changes_and_makes_none_the_second_time(run: Run, empty_database_url: str) -> None:
    assert "core_0001" in run("init", "--json", url=empty_database_url).json["applied"]
    again = run("init", "--json", url=empty_database_url).json
    nothing = {"added": [], "changed": [], "retired": []}
    database = _named(empty_database_url)
    assert again == {"database": database, "applied": [], "schedules": nothing, "mixed_queues": {}}
    assert run("init", url=empty_database_url).out == f"database: {database}\ntables are up to date\n"


def test_a_schema_option(run: Run, postgresql_server: str, empty_database_url: str) -> None:
    if empty_database_url.startswith("sqlite"):
        assert "EFFECTS_SCHEMA" in error_line(run("--schema", "jobs", "init", url=empty_database_url))
        return
    assert run("--schema", "jobs", "init", url=empty_database_url).exit_code == 0
    assert run("--schema", "jobs", "audit", "--json", url=empty_database_url).json["clean"] is True
    assert "run `effects init`" in error_line(run("status", url=empty_database_url))


def test_an_unavailable_database_is_named(run: Run) -> None:
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
        (["jobs", "show", "twelve"], "'twelve' is no job id"),
        (["jobs", "list", "--status", "finished"], "'finished' is not one of"),
        (["work", "--max-seconds", "5"], "--max-seconds goes with --drain"),
        (["work", "--drain", "--max-seconds", "nan"], "'nan' is not a length of time"),
        (["work", "--grace-seconds", "inf"], "'inf' is not a length of time"),
        (["work", "--queue", "mails=none"], "--queue is 'mails=none'"),
        (["--database-url", "mysql://x/y", "status"], "use sqlite or postgresql"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(run: Run, arguments: list[str], said: str) -> None:
    url = None if "--app" in arguments or "--database-url" in arguments else "sqlite:///nowhere.db"
    # The options of `work` are looked at after the database is found.
    assert said in error_line(run(*arguments) if arguments[0] == "work" else run(*arguments, url=url))


@pytest.mark.slow
def test_app_and_database_url_go_together(process: Run, database_url: str, tmp_path: Path) -> None:
    """The app takes its database from the environment, which the option goes before."""
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    options = ("--app", "tests.cli.shop_app:app", "--database-url", database_url)
    assert process(*options, "status", EFFECTS_DATABASE_URL=elsewhere).exit_code == 0
    assert not (tmp_path / "elsewhere.db").exists()


def test_an_app_with_its_own_database_is_not_connected_to_another(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fixed_shop.py").write_text(f"import effects\napp = effects.Effects('sqlite:///{tmp_path}/fixed.db')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    line = error_line(run("--app", "fixed_shop:app", "status"))
    assert f"the app has a database of its own, file {tmp_path}/fixed.db: unset it, or let the app take" in line


@pytest.mark.slow
def test_an_app_with_an_engine_of_its_own_works_with_every_command(
    process: Run, tmp_path: Path, database_url: str
) -> None:
    """The settings' default database URL is not used, and a variable that names another database is refused."""
    (tmp_path / "engine_shop.py").write_text(
        "import os, sqlalchemy, effects\nfrom effects.store.db.engine import create_engine\n"
        "app = effects.Effects(engine=create_engine(os.environ['SHOP_URL']))\n"
    )
    options = ("--app", "engine_shop:app")
    where = {"cwd": tmp_path, "PYTHONPATH": str(ROOT), "SHOP_URL": database_url}
    for command in (("init",), ("status",), ("audit",), ("work", "--drain"), ("doctor", "--quiet")):
        answer = process(*options, *command, **where)
        assert answer.exit_code in (0, 1), answer
        assert "there is no database" not in answer.err
    elsewhere = "postgresql://shop:geheim@db.example/other"
    line = error_line(process(*options, "status", **where, EFFECTS_DATABASE_URL=elsewhere))
    assert f"names database other on db.example, and the app has a database of its own, {_named(database_url)}" in line
    assert "geheim" not in line


def _named(url: str) -> str:
    return describe_database(make_url(url))


def test_an_error_names_the_default_database_as_such(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    line = error_line(run("status", url=None))
    assert f"EFFECTS_DATABASE_URL is not set, and the default {folder / 'effects.db'} does not exist" in line
    assert list(folder.iterdir()) == []


def test_a_database_without_tables_is_named(run: Run, empty_database_url: str) -> None:
    name = make_url(empty_database_url).database
    engine = create_engine(empty_database_url)
    with engine.connect():  # SQLite's file is there
        line = error_line(run("status", url=empty_database_url))
    engine.dispose()
    assert "run `effects init`" in line
    assert str(name) in line


def test_init_on_a_newer_database_is_one_line_and_changes_nothing(app: Effects, run: Run) -> None:
    run_sql(app, "UPDATE effects_schema_version SET version_num = 'core_9999' WHERE version_num = 'core_0001'")
    for command in ("init", "status"):
        line = error_line(run(command))
        assert "the database is newer than this version of effects (revision core_9999): upgrade the package" in line
    assert "upgrade the package on this host" in run("doctor").out
    assert "effects init" not in run("doctor").out


@pytest.mark.slow
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
    answer = run("--help", url=None)
    assert answer.exit_code == 0
    for command in ("init", "work", "status", "why", "audit", "jobs", "keys"):
        assert f"\n  {command} " in answer.out
    for command in cli.list_commands(click.Context(cli)):
        assert run(command, "--help", url=None).exit_code == 0


def test_the_console_script_is_this_command() -> None:
    installed = distribution("effects-toolkit").entry_points
    assert installed.select(group="console_scripts", name="effects")["effects"].load() is console_script


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A third-party package that offers a command."""

    def make(value: str) -> None:
        entry = EntryPoint(name="parrot", value=value, group="effects.commands")
        monkeypatch.setattr(main, "entry_points", lambda group: (entry,))

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
    assert run("status").exit_code == ExitCode.INTERRUPTED


@pytest.mark.slow
def test_a_closed_pipe_ends_a_command_quietly(database_url: str) -> None:
    """As in `effects jobs list | head`: the pipe is closed before we write."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*COMMAND, "status"], cwd=ROOT, env=environment(database_url), stdout=writer, stderr=subprocess.PIPE,
        timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_unforeseen_error_is_one_line_without_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    def command() -> None:
        raise UnicodeDecodeError("utf-8", b"TOP-SECRET-42", 0, 1, "cannot decode TOP-SECRET-42")

    assert exit_code_of(command) == ExitCode.ERROR
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: UnicodeDecodeError at ")
    assert "test_main.py" in line
    assert "SECRET" not in line


def test_a_threads_error_is_logged_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("TOP-SECRET-42")
    except ValueError as error:
        arguments = (type(error), error, error.__traceback__, threading.current_thread())
        log_thread_error(threading.ExceptHookArgs(arguments))
    [record] = caplog.records
    assert (record.getMessage(), vars(record)["error"]) == ("thread.failed", "ValueError")
    assert "SECRET" not in str(vars(record))
