"""The `effects` command: global options, sub-commands, and how errors end."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint
from typing import Any

import click
from click.core import ParameterSource

from effects.cli import process
from effects.cli.process import as_called, called_as, leave, name_options
from effects.errors import ConfigurationError, EffectsError, JobStateError, StoreUnavailable
from effects.kit.crashpoints import install_from_environment
from effects.kit.exit_codes import ExitCode
from effects.kit.importing import entry_points, reason_of_error
from effects.kit.logs import error_places, log_thread_error
from effects.kit.text.unsafe import nearest, without_unsafe
from effects.version import VERSION

_FRAMES_MAX = 12
_NO_COMMAND = getattr(click.exceptions, "NoArgsIsHelpError", ())  # click 8.1 prints the help by itself

# Command → where it is; a module is imported when its command is named, so that each starts quickly.
_CORE = {
    "init": "effects.cli.database:init",
    "work": "effects.cli.work:work",
    "status": "effects.cli.insight:status",
    "stats": "effects.cli.stats:stats",
    "why": "effects.cli.insight:why",
    "audit": "effects.cli.insight:audit",
    "log": "effects.cli.insight:log",
    "retry": "effects.cli.retry:retry",
    "cancel": "effects.cli.retry:cancel",
    "resolve": "effects.cli.retry:resolve",
    "jobs": "effects.cli.jobs:jobs",
    "dead": "effects.cli.jobs:dead",
    "bulk": "effects.cli.bulk:bulk",
    "queues": "effects.cli.queues:queues",
    "workers": "effects.cli.workers:workers",
    "failovers": "effects.cli.workers:failovers",
    "limits": "effects.cli.queues:limits",
    "schedules": "effects.cli.schedules:schedules",
    "grants": "effects.cli.database:grants",
    "prune": "effects.cli.database:prune",
    "keys": "effects.cli.database:keys",
    "metrics": "effects.cli.stats:metrics",
    "alerts": "effects.cli.stats:alerts",
    "web": "effects.cli.web:web",
    "dev": "effects.cli.web:dev",
    "doctor": "effects.cli.database:doctor",
    "completion": "effects.cli.main:completion",
}


# What `effects --help` shows together; commands of packages come before the last.
HELP_GROUPS = {
    "Every day": ("work", "dev", "status", "why", "jobs", "retry", "cancel"),
    "When something is wrong": (
        "doctor", "dead", "resolve", "bulk", "limits", "queues", "workers", "log", "stats", "audit", "failovers",
    ),
    "Packages": (),
    "Rarely": (
        "init", "schedules", "web", "alerts", "metrics", "keys", "grants", "prune", "completion",
    ),
}  # fmt: skip
_EXAMPLES = (
    ("effects status", "what waits, what failed, who works"),
    ("effects why order:1000", "what became of one effect"),
    ("effects retry --code timeout", "a preview; --yes acts"),
    ("effects doctor", "what is wrong, and what to type"),
)


class EffectsGroup(click.Group):
    """A command group that finds commands by name and prints errors as one line with exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_CORE, *sorted(_offered())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _CORE:
            module, _, attribute = _CORE[cmd_name].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        entry = _offered().get(cmd_name)
        return _load(entry) if entry is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; a misspelt command is answered by the nearest one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = nearest(args[0], self.list_commands(ctx))
            raise click.UsageError(f"{error.message.rstrip('.')}{hint}", error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By how often they are needed."""
        groups = {**HELP_GROUPS, "Packages": tuple(sorted(_offered()))}
        width = max(len(name) for names in groups.values() for name in names)
        for title, names in groups.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            rows = [
                (f"{name:<{width}}", command.get_short_help_str(60))
                for name, command in commands
                if command is not None
            ]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Examples, and what the exit codes are about."""
        with formatter.section("Examples"):
            formatter.write_dl(_EXAMPLES)
        with formatter.section("Exit codes"):
            formatter.write_dl(
                [("0, 1, 2", "done; a finding, or something refused; an error. More: the page Commands")]
            )

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        if not standalone_mode:
            return run()
        with called_as():
            sys.exit(exit_code_of(run))


def _offered() -> dict[str, EntryPoint]:
    """The commands of installed packages, by the entry points `effects.commands`."""
    return {entry.name: entry for entry in entry_points("effects.commands") if entry.name not in _CORE}


def _load(entry: EntryPoint) -> click.Command:
    """A package's command. If it cannot be imported, only using it is an error."""
    try:
        command: click.Command = entry.load()
    except Exception as error:
        reason = f"the command {entry.name!r} cannot be loaded: {reason_of_error(error)}"

        def fail(**ignored: Any) -> None:
            raise ConfigurationError(reason)

        return click.Command(
            entry.name,
            callback=fail,
            help=f"(cannot be loaded: {type(error).__name__})",
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            context_settings={"ignore_unknown_options": True},
        )
    return command


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code.

    A reader that closes our output (`… | head`) ends it quietly with 1: click sees to that.
    """
    try:
        result = command()
    except click.Abort:
        return ExitCode.INTERRUPTED
    except _NO_COMMAND as error:  # no command was named: help, as it is formatted
        click.echo(as_called(error.format_message()))
        return ExitCode.DONE if error.ctx.parent is None else ExitCode.ERROR
    except click.ClickException as error:
        _print_error(_usage(error))
        return ExitCode.ERROR
    except EffectsError as error:
        _print_error(_reason(error))
        return ExitCode.FINDINGS if isinstance(error, JobStateError) else ExitCode.ERROR
    except ImportError as error:
        _print_error(f"{type(error).__name__}: {error}")
        return ExitCode.ERROR
    except Exception as error:  # unforeseen: its text may quote a payload
        _print_error(f"{type(error).__name__} at {error_places(error, _FRAMES_MAX)} (its text may hold values)")
        return ExitCode.ERROR
    return result if isinstance(result, int) else 0


def _print_error(message: str) -> None:
    click.echo(f"error: {as_called(without_unsafe(' '.join(message.split())))}", err=True)


def _usage(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f" (see `{ctx.command_path} --help`)" if ctx is not None else ""
    return f"{error.format_message()}{hint}"


def _reason(error: EffectsError) -> str:
    """The error's text; for an unavailable database also the first line of the driver's message."""
    words, *_ = [*str(getattr(error.__context__, "orig", None) or "").strip().splitlines(), ""]
    if isinstance(error, StoreUnavailable) and words and words not in str(error):
        return f"{error}: {words}"
    if error.listed_by is None or "`effects " in str(error):
        return str(error)
    return f"{error} (see `{error.listed_by}`)"


@click.group(cls=EffectsGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--app", "app_path", envvar="EFFECTS_APP", metavar="MODULE:ATTRIBUTE",
              help="Import path of the app's Effects, such as shop.effects:app.")  # fmt: skip
@click.option(
    "--database-url", metavar="URL", help="Database URL. Overrides EFFECTS_DATABASE_URL. Default: sqlite:///effects.db."
)
@click.option("--schema", metavar="NAME", help="PostgreSQL schema of the tables. Overrides EFFECTS_SCHEMA.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), help="Format of log lines. Overrides EFFECTS_LOG_FORMAT."
)
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
              help="Lowest level that is logged. Overrides EFFECTS_LOG_LEVEL.")  # fmt: skip
@click.version_option(VERSION, prog_name="effects")
@click.pass_context
def cli(ctx: click.Context, /, **options: str | None) -> None:
    """Deliver e-mail, webhooks and reports from your database transaction."""
    from effects.cli.context import Context  # noqa: PLC0415 - brings the core, of which `--version` needs nothing
    from effects.store.db.urls import without_password  # noqa: PLC0415 - as above

    ctx.obj = Context(**options)
    named = {name: value for name, value in options.items()
             if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}  # fmt: skip
    url = named.get("database_url")
    name_options(
        {
            "app": named.get("app_path"), "database-url": None if url is None else without_password(url),
            "schema": named.get("schema"),
        }
    )  # fmt: skip
    ctx.call_on_close(ctx.obj.close)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Examples:
      effects completion bash >> ~/.bashrc
      effects completion zsh >> ~/.zshrc
      effects completion fish > ~/.config/fish/completions/effects.fish
    """
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - no other command needs it

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "effects", "_EFFECTS_COMPLETE").source())


def main() -> None:
    """The console script."""
    process.postpone_garbage()
    process.note_nohup()
    threading.excepthook = log_thread_error
    install_from_environment()  # only where a test has set EFFECTS_CRASHPOINT
    with called_as():
        leave(exit_code_of(lambda: cli.main(_arguments(), prog_name="effects", standalone_mode=False)))


def _arguments() -> list[str]:
    """The words of the command line: UTF-8, whatever the locale, which may be C.

    Raises:
        UsageError: one is not.
    """
    try:
        return [os.fsencode(word).decode() for word in sys.argv[1:]]
    except UnicodeError:
        raise click.UsageError("an argument is not in UTF-8") from None
