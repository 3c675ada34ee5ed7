"""`effects grants`: what is granted is listed, and what cannot be is refused with what to do."""

from __future__ import annotations

import uuid

from effects import Effects
from tests.cli.conftest import Run
from tests.support.commands import error_line
from tests.support.manual_workers import run_sql


def test_grants_are_added_listed_and_removed(app: Effects, run: Run) -> None:
    if not app.store.is_postgresql:
        assert "SQLite has no roles" in error_line(run("grants", "add", "ann", "email.compose"))
        assert run("grants", "list").out == "no grants\n"
        return
    role = f"importer {uuid.uuid4().hex[:8]}"
    assert f"no role '{role}': create it first" in error_line(run("grants", "add", role, "email.compose"))
    run_sql(app, f'CREATE ROLE "{role}" LOGIN')
    added = run("grants", "add", role, "email.compose", "--reason", "the importer")
    assert (added.exit_code, added.out) == (0, f"{role} may enqueue email.compose\n")
    assert run("grants", "add", role, "email.compose").out == f"{role} already may enqueue email.compose\n"
    assert "is a step that only effects enqueues" in error_line(run("grants", "add", role, "report.deliver"))
    assert "no job type 'email.componse' is registered" in error_line(run("grants", "add", role, "email.componse"))
    [grant] = run("grants", "list", "--role", role, "--json").json
    assert (grant["role"], grant["job_type"]) == (role, "email.compose")
    assert run("grants", "remove", role, "email.compose").out == f"{role} may no longer enqueue email.compose\n"
    assert run("grants", "remove", role, "email.compose").out == f"{role} has no grant for email.compose\n"
    [removed, added_entry] = run("log", "--subject", "grant", "--json").json
    assert (removed["action"], added_entry["reason"]) == ("remove", "the importer")
    run_sql(app, f'DROP ROLE "{role}"')
