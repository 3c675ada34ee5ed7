"""The fence: with it the machine finds nothing, without it the machine finds the field's common fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy.exc import IntegrityError

from effects import Effects
from effects.app.effects import installed_tables
from effects.store.db.store import Statement, Store
from effects.store.queue import liveness, settle_sql
from tests.conftest import AppFactory
from tests.properties.machine import machine_on, machine_types
from tests.support.sampling import is_full, sample

RELAXED = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck), stateful_step_count=30)


@pytest.mark.timeout(300)
def test_with_the_fence_the_machine_finds_nothing(app_factory: AppFactory) -> None:
    app = app_factory(job_types=machine_types())
    examples = (40 if app.store.is_postgresql else 120) // (1 if is_full() else 2)
    run_state_machine_as_test(machine_on(app), settings=settings(RELAXED, max_examples=examples))


# How queues of the field guard a completion: by the id alone, or by the id and the status.
BY_ID, BY_STATUS = "true", "j.status = 'running'"

# With a guard by status the machine looks for minutes until it finds the fault.
GUARDS = {"by id": BY_ID, **({"by id and status": BY_STATUS} if is_full() else {})}

# Every form in which the fence is written in a statement, and what stands there without it.
FENCES = {
    "j.lease_token = r.token": "{instead}",
    "(j.id, j.lease_token) IN (SELECT id, token FROM r)": "{instead}",
    "(id, lease_token) IN (SELECT r.id, r.token FROM": "{instead} AND id IN (SELECT r.id FROM",
}


def unfenced(statement: str, instead: str) -> str:
    for fence, without in FENCES.items():
        bare = instead if fence.count("j.") else instead.removeprefix("j.")
        statement = statement.replace(fence, without.format(instead=bare))
    return statement


class FencelessStore(Store):
    """A mutant of the SQL: the statements in `mutants` do not look at the lease token."""

    instead = BY_ID
    mutants: frozenset[Statement] = frozenset()

    def sql_of(self, build: Statement) -> str:
        whole = super().sql_of(build)
        if build not in self.mutants:
            return whole
        mutant = unfenced(whole, self.instead)
        assert mutant != whole, f"{build.__name__} has no fence to remove"
        return mutant


SETTLING = {
    True: frozenset({settle_sql.end, settle_sql.end_done, settle_sql.again}),
    False: frozenset(
        {
            settle_sql.end_history,
            settle_sql.end_done_history,
            settle_sql.end_attempts,
            settle_sql.end_delete,
            settle_sql.again,
        }
    ),
}


def without_fence(app: Effects, mutants: frozenset[Statement], instead: str) -> Effects:
    app.store = FencelessStore(app.engine, builders=list(installed_tables()))
    app.store.mutants, app.store.instead = mutants, instead
    return app


MUTANTS: dict[str, Callable[[Effects], frozenset[Statement]]] = {
    "settle": lambda app: SETTLING[app.store.is_postgresql],
    "release": lambda app: frozenset({liveness._release}),
}
HUNTS = [(database, mutants) for database in ("sqlite", "postgresql") for mutants in MUTANTS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("instead", GUARDS.values(), ids=GUARDS)
@pytest.mark.parametrize(("database_url", "mutants"), sample(HUNTS, 1), indirect=["database_url"])
def test_without_the_fence_the_machine_finds_a_violation(app_factory: AppFactory, mutants: str, instead: str) -> None:
    app = app_factory(job_types=machine_types())
    machine = machine_on(without_fence(app, MUTANTS[mutants](app), instead))
    hunt = settings(RELAXED, max_examples=2000, phases=[Phase.generate], derandomize=True, report_multiple_bugs=False)
    with pytest.raises((AssertionError, IntegrityError)):  # the latter where a unique key is the last to notice
        run_state_machine_as_test(machine, settings=hunt)
