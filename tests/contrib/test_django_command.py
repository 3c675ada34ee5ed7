"""`manage.py effects`: what is wrong with the project is one line and exit code 2, as of every other error."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from effects.contrib.django.management.commands.effects import Command


def test_a_project_without_its_effects_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 would mean findings."""

    def missing(label: str) -> None:
        raise LookupError(label)

    monkeypatch.setattr(apps, "get_app_config", missing)
    with pytest.raises(CommandError) as end:
        call_command(Command(), "status")
    assert end.value.returncode == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the project's Effects is there once Django is set up")
