"""Failovers that need a person: alerted, counted, named by doctor, and kept until someone has resolved them."""

from __future__ import annotations

from typing import Any

import pytest

from effects import Alert, Effects, JobType, UnresolvedFailovers
from effects.app.retention import prune
from effects.operate.alert_check import check_alerts
from effects.operate.doctor import examine
from effects.operate.metrics import database_families
from effects.operate.tables.failovers import resolve_failover
from tests.conftest import AppFactory
from tests.support.manual_workers import rows, run_sql

DAY = 86_400.0
HISTORY = (
    ("id", "sign", "workers", "compared", "orphans", "incomplete"),
    (1, "first", 2, 0, 0, 0),
    (2, "name", 2, 2, 0, 0),  # lost nothing
    (3, "name", 2, 2, 4, 0),
    (4, "name", 2, 1, 0, 0),  # a worker was killed with the primary
    (5, "name", 2, 2, 0, 1),
    (6, "name", 1, 1, 0, 0),  # the present history
)
NEED_A_PERSON = ["3", "4", "5"]


class Page(JobType[dict[str, Any]]):
    name = "page"
    queue = "pages"

    def perform(self, payload: Any, attempt: Any) -> None:
        """Nothing is to be done here."""


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    app = app_factory(job_types=[Page()], alerts=[Alert("lost", UnresolvedFailovers(), notify="page")])
    columns, *failovers = HISTORY
    for failover in failovers:
        values = ", ".join(repr(value) for value in failover)
        run_sql(app, f"INSERT INTO effects_failovers ({', '.join(columns)}, noticed_by) VALUES ({values}, 'w')")
    for number, (failover, fate) in enumerate([(2, "recorded"), (3, "orphan"), (3, "recorded")]):
        run_sql(
            app, "INSERT INTO effects_evidence (job_id, lease_token, job_type, worker, fate, failover_id) "
            f"VALUES ({number}, 1, 'page', 'w', '{fate}', {failover})",
        )  # fmt: skip
    return app


def test_an_alert_for_each_that_no_one_resolves(app: Effects) -> None:
    assert check_alerts(app) == []  # workers may still compare
    app.store.shift_clock(301)
    firing = check_alerts(app)
    assert sorted(fired.subject for fired in firing) == NEED_A_PERSON
    summaries = {fired.subject: fired.summary for fired in firing}
    assert summaries["3"] == "a failover needs a person (3): 4 effects of lost jobs; see `effects failovers list`"
    assert "(4): a worker did not compare what it remembers" in summaries["4"]
    resolve_failover(app.store, 3, actor="test", reason=None)
    assert sorted(fired.subject for fired in check_alerts(app)) == ["4", "5"]
    assert len(rows(app, "jobs", "job_type = 'page'")) == 3


def test_metrics_and_doctor_count_them(app: Effects) -> None:
    families = {family.name: family.samples[0].value for family in database_families(app) if family.samples}
    assert (families["effects_unresolved_failovers"], families["effects_orphans"]) == (3, 4)
    named = [finding for finding in examine(app) if finding.check == "lost commits"]
    assert [(finding.level, finding.text.split(" (")[0]) for finding in named] == [
        ("warning", f"failover {number}") for number in reversed(NEED_A_PERSON)
    ]


def test_what_needs_a_person_is_kept(app: Effects) -> None:
    def kept() -> tuple[list[int], list[str]]:
        return [row["id"] for row in rows(app, "failovers")], [row["fate"] for row in rows(app, "evidence")]

    assert (prune(app).failovers, len(kept()[0])) == (0, 6)
    app.store.shift_clock(400 * DAY)
    prune(app)
    assert kept() == ([3, 4, 5, 6], ["orphan"])
    resolve_failover(app.store, 3, actor="test", reason=None)
    resolve_failover(app.store, 4, actor="test", reason=None)
    assert prune(app, dry_run=True).evidence == 1
    prune(app)
    assert kept() == ([5, 6], [])
    run_sql(app, "UPDATE effects_failovers SET compared = workers, incomplete = 0")
    prune(app)
    assert kept() == ([6], [])  # the present history stays, however old
