"""What a look at a server with a standby says: the doctor, and the guard against rescuing too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from effects import Effects
from effects.operate.doctor import examine
from effects.store.queue.liveness import look_for_lost
from effects.store.workers import note_failover
from tests.support import databases
from tests.support.manual_workers import ManualWorker, rows
from tests.support.server_pair import ServerPair, server_pair
from tests.support.step_jobs import step_jobs_app
from tests.support.waiting import wait_until

LEASE_SECONDS = 120.0


@pytest.fixture
def pair() -> Iterator[ServerPair]:
    with server_pair() as servers:
        databases.migrated(servers.url)
        yield servers


@pytest.fixture
def app(pair: ServerPair) -> Iterator[Effects]:
    step_app = step_jobs_app(pair.url, sessions="off")
    yield step_app
    step_app.dispose()


def _finding(app: Effects) -> tuple[str, str]:
    [finding] = [finding for finding in examine(app) if finding.check == "failover"]
    return finding.level, finding.text


def test_doctor_reports_whether_a_standby_has_acknowledged_commits(pair: ServerPair, app: Effects) -> None:
    level, text = _finding(app)
    assert level == "ok"
    assert "synchronous standby: two (sync, " in text
    assert "MB" in text
    databases.plain_role(pair.primary.url)
    looker = step_jobs_app(databases.as_plain_role(pair.primary.url), schema=databases.PLAIN_ROLE, sessions="off")
    assert _finding(looker) == ("ok", "what was acknowledged survives a failover to a synchronous standby: two")
    looker.dispose()
    pair.primary.configure(synchronous_standby_names="")
    level, text = _finding(app)
    assert (level, text.split(":")[0]) == ("warning", "synchronous_standby_names is empty")
    assert "may forget acknowledged jobs" in text
    pair.primary.configure(synchronous_standby_names="*", synchronous_commit="local")
    looker = step_jobs_app(pair.primary.url, sessions="off")  # on new connections
    assert _finding(looker)[1].startswith("synchronous_commit is local: a failover to two")
    looker.dispose()
    pair.primary.configure(synchronous_commit="on")
    pair.standby.kill()
    wait_until(lambda: not pair.primary.sql("SELECT 1 FROM pg_stat_replication"))
    assert "every commit waits" in _finding(app)[1]
    pair.primary.configure(synchronous_standby_names="")
    assert _finding(app)[1].startswith("no standby is attached")


def test_no_job_is_rescued_within_a_lease_of_a_promotion(pair: ServerPair, app: Effects) -> None:
    """A standby has been up for days: its start says nothing. Who comes first to look sees that it was promoted."""
    ManualWorker(app)
    note_failover(app.store, "manual")
    assert [row["sign"] for row in rows(app, "failovers")] == ["first"]
    pair.fail_over()
    after = step_jobs_app(pair.url, sessions="off")
    after.store.shift_clock(10 * LEASE_SECONDS)  # up for so long
    assert look_for_lost(after.store, after.job_types, LEASE_SECONDS).seconds_up == 0
    assert ManualWorker(after).heartbeat()[0]
    assert note_failover(after.store, "manual").sign == "name"
    assert look_for_lost(after.store, after.job_types, LEASE_SECONDS).seconds_up < LEASE_SECONDS
    after.store.shift_clock(LEASE_SECONDS)
    assert look_for_lost(after.store, after.job_types, LEASE_SECONDS).seconds_up >= LEASE_SECONDS
    note_failover(after.store, "another")
    assert [row["sign"] for row in rows(after, "failovers")] == ["first", "name"]
    after.dispose()
