"""`manage.py effects …`: the commands of `effects`, on the project's Effects."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from effects.cli.main import cli, exit_code_of
from effects.cli.process import called_as, leave
from effects.contrib.django.project import is_through_django, project_app, refuse_memory

_PROGRAM = "manage.py effects"
_APP = ("--app", "effects.contrib.django:app")


class Command(BaseCommand):
    """Passes everything on: `manage.py effects work`, `manage.py effects jobs list --status dead`."""

    help = "The commands of effects: manage.py effects work, status, why …"
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """The process's command line: options are ours, not Django's."""
        leave(_run(argv[2:]))

    def add_arguments(self, parser: Any) -> None:
        """For `call_command("effects", "jobs", "list")`."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *args: Any, **options: Any) -> None:
        """
        Raises:
            CommandError: the command ended with another exit code than 0, which it has as `returncode`.
        """
        if code := _run([*args, *options["arguments"]]):
            raise CommandError(f"effects ended with exit code {code}", returncode=code)


def _run(arguments: Sequence[str]) -> int:
    with called_as(_PROGRAM):
        return exit_code_of(partial(_command, arguments))


def _command(arguments: Sequence[str]) -> Any:
    app = project_app()
    if is_through_django(app.store):
        raise refuse_memory(app.alias)
    return cli.main([*_APP, *arguments], _PROGRAM, standalone_mode=False)
