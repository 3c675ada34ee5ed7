"""The `effects` command: global options, sub-commands, and how errors end."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import EntryPoint, entry_points, version
from typing import Any

import click

from effects.cli.context import Context
from effects.crashpoints import install_from_environment
from effects.errors import ConfigurationError, EffectsError, StoreUnavailable

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count

# Command → where it is; a module is imported when its command is named, so that each starts quickly.
_CORE = {
    "init": "effects.cli.database:init",
    "work": "effects.cli.work:work",
    "status": "effects.cli.insight:status",
    "why": "effects.cli.insight:why",
    "audit": "effects.cli.insight:audit",
    "jobs": "effects.cli.jobs:jobs",
    "dead": "effects.cli.dead:dead",
    "limits": "effects.cli.limits:limits",
    "schedules": "effects.cli.schedules:schedules",
    "prune": "effects.cli.prune:prune",
    "keys": "effects.cli.keys:keys",
    "metrics": "effects.cli.metrics:metrics",
    "alerts": "effects.cli.alerts:alerts",
    "doctor": "effects.cli.doctor:doctor",
}


class EffectsGroup(click.Group):
    """A group whose commands are found by name, and whose errors are one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_CORE, *sorted(_offered())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _CORE:
            module, _, attribute = _CORE[cmd_name].partition(":")
            found: click.Command = getattr(importlib.import_module(module), attribute)
            return found
        entry = _offered().get(cmd_name)
        return _load(entry) if entry is not None else None

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
        sys.exit(_run(run))


def _offered() -> dict[str, EntryPoint]:
    """The commands of installed packages, by the entry points `effects.commands`."""
    return {entry.name: entry for entry in entry_points(group="effects.commands") if entry.name not in _CORE}


def _load(entry: EntryPoint) -> click.Command:
    """A package's command; one that cannot be imported says so when it is used, not before."""
    try:
        found: click.Command = entry.load()
    except Exception as error:
        reason = f"the command {entry.name!r} cannot be loaded: {type(error).__name__}: {error}"

        def fail(**ignored: Any) -> None:
            raise ConfigurationError(reason)

        return click.Command(
            entry.name,
            callback=fail,
            help=f"(cannot be loaded: {type(error).__name__})",
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            context_settings={"ignore_unknown_options": True},
        )
    return found


def _run(command: Callable[[], Any]) -> int:
    """Run a command and turn whatever ends it into an exit code.

    A reader that closes our output (`… | head`) ends it quietly with 1: click sees to that.
    """
    try:
        result = command()
    except click.Abort:
        return EXIT_INTERRUPTED
    except click.ClickException as error:
        _print_error(_usage(error))
        return EXIT_ERROR
    except EffectsError as error:
        _print_error(_reason(error))
        return EXIT_ERROR
    return result if isinstance(result, int) else 0


def _print_error(message: str) -> None:
    click.echo(f"error: {' '.join(message.split())}", err=True)


def _usage(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    hint = f" (see `{ctx.command_path} --help`)" if ctx is not None else ""
    return f"{error.format_message()}{hint}"


def _reason(error: EffectsError) -> str:
    """The error's text; for a database that is away also what the driver said first."""
    original = getattr(error.__cause__, "orig", None)
    if isinstance(error, StoreUnavailable) and original is not None and str(original).strip():
        return f"{error}: {str(original).strip().splitlines()[0]}"
    return str(error)


@click.group(cls=EffectsGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--app", "app_path", envvar="EFFECTS_APP", metavar="MODULE:ATTRIBUTE",
              help="The app's own Effects, such as shop.effects:app.")  # fmt: skip
@click.option("--database-url", metavar="URL", help="Over EFFECTS_DATABASE_URL; default sqlite:///effects.db.")
@click.option("--schema", metavar="NAME", help="PostgreSQL schema of the tables; over EFFECTS_SCHEMA.")
@click.option("--log-format", type=click.Choice(["text", "json"]), help="Over EFFECTS_LOG_FORMAT.")
@click.option("--log-level", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False),
              help="Over EFFECTS_LOG_LEVEL.")  # fmt: skip
@click.version_option(version("effects"), prog_name="effects")
@click.pass_context
def cli(ctx: click.Context, /, **options: str | None) -> None:
    """Side effects as rows of your own transaction, carried out by a worker.

    Exit codes: 0 done, 2 an error (one line on standard error), 130 interrupted.
    """
    ctx.obj = Context(**options)
    ctx.call_on_close(ctx.obj.close)


def main() -> None:
    """The console script."""
    install_from_environment()  # only where a test has set EFFECTS_CRASHPOINT
    cli.main(prog_name="effects")
