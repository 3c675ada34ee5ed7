"""A command that meets another transaction's lock ends, and says whose it is."""

from __future__ import annotations

import math

import pytest
from sqlalchemy import text

from effects import Effects
from effects.cli import context
from effects.cli.context import Context
from effects.store.db.deadlines import Bounds
from tests.cli.conftest import Run

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)


def test_a_command_does_not_wait_for_good_and_names_who_is_in_the_way(
    app: Effects, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "BOUNDS", Bounds(lock_seconds=0.05, seconds=math.inf))
    assert run("limits", "pause", "partner", "--create").exit_code == 0
    with app.engine.begin() as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(text("SELECT 1 FROM effects_limits FOR UPDATE"))
        refused = run("limits", "resume", "partner")
    assert refused.exit_code == 2
    assert refused.err.count("\n") == 1
    assert refused.err.startswith("error: another transaction is in the way (OperationalError, 55P03): ")
    assert f"connection {pid} (" in refused.err
    assert "idle in transaction) has used effects_limits for 0 s" in refused.err
    assert run("limits", "resume", "partner").exit_code == 0


def test_the_bounds_of_a_command_end_with_it(app: Effects, database_url: str) -> None:
    command = Context(database_url=database_url)
    deadlines = command.app.store.deadlines
    assert deadlines.bounds == context.BOUNDS
    command.close()
    assert deadlines.bounds is None
