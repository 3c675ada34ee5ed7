"""Who gets which report, when: one run a slot for all with the same params, one mail each, and what no longer fits."""

from __future__ import annotations

import mailbox
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import ConfigurationError, Effects, KeyUnavailable
from effects.firing import fire_now
from effects.keys import generate_key
from effects.store.operator.dead_letters import DeadFilters, DeadLetter, list_dead
from effects.store.schedules.states import read_states
from effects_reports import (
    ReportInvalid,
    ReportNotFound,
    list_reports,
    list_subscriptions,
    pause_subscription,
    resume_subscription,
    subscribe,
    unsubscribe,
)
from tests.reports.conftest import Shop, drain
from tests.reports.served import BASE
from tests.reports.shop import REPORTS, fill
from tests.support.manual_workers import run_sql

KEYS = f"k={generate_key()}"
NIGHT = "0 2 * * *"
SLOT = datetime(2026, 1, 20, 2, tzinfo=UTC)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    folder = tmp_path / "emails" / "file_ready"
    folder.mkdir(parents=True)
    (folder / "subject.txt").write_text("{{ report }}, {{ rows }} rows")
    (folder / "body.txt").write_text("{{ link }}\n")
    return {
        "keys": KEYS, "templates": str(tmp_path / "emails"), "email_from": "Shop <shop@example.com>",
        "smtp_url": f"maildir:{tmp_path / 'mail'}",
    }  # fmt: skip


@pytest.fixture
def app(shop_factory: Shop, options: dict[str, Any]) -> Effects:
    shop = shop_factory(**options)
    fill(shop, 50)
    return shop


def add(app: Effects, to: str, params: dict[str, Any] | None = None, **options: Any) -> str:
    values = {"template": "file_ready", "cron": NIGHT, "link_to": BASE, **options}
    return subscribe("orders", params, to=to, effects=app, **values)


def schedules(app: Effects) -> list[str]:
    """Those of subscriptions that run."""
    states = read_states(app.store)
    return [state.name for state in states if state.name.startswith("reports.subscribed.") and state.state == "active"]


def fire(app: Effects, slot: datetime = SLOT) -> None:
    """One slot of every schedule, and all that follows."""
    for name in schedules(app):
        fire_now(app, name, actor="test", slot=slot)
    drain(app)


def dead(app: Effects) -> list[DeadLetter]:
    return list_dead(app.store, app.ledgers, DeadFilters())


def recipients(folder: Path) -> Counter[str]:
    return Counter(str(mail["to"]) for mail in mailbox.Maildir(folder / "mail"))


def test_subscribers_of_one_report_share_a_run(app: Effects, tmp_path: Path) -> None:
    for name in ("ann", "ben", "cat"):
        add(app, f"{name}@example.com", {"above": 30})
    add(app, "dan@example.com", {"above": 60})
    assert len(schedules(app)) == 2
    fire(app)
    assert recipients(tmp_path) == {f"{name}@example.com": 1 for name in ("ann", "ben", "cat", "dan")}
    assert sorted(run.params["above"] for run in list_reports(effects=app)) == [30, 60]
    fire(app, SLOT + timedelta(days=1))
    assert set(recipients(tmp_path).values()) == {2}


def test_a_second_subscription_of_a_recipient_is_the_first(app: Effects) -> None:
    first = add(app, "ann@example.com")
    assert add(app, "ann@example.com") == first
    assert [row.id for row in list_subscriptions(to="ann@example.com", effects=app)] == [first]
    assert add(app, "ann@example.com", format="ndjson") != first


def test_paused_and_removed_ones_get_nothing(app: Effects, tmp_path: Path) -> None:
    ids = {name: add(app, f"{name}@example.com") for name in ("ann", "ben", "cat")}
    assert pause_subscription(ids["ann"], effects=app)
    assert not pause_subscription(ids["ann"], effects=app)
    unsubscribe(ids["ben"], effects=app)
    fire(app)
    assert recipients(tmp_path) == {"cat@example.com": 1}
    assert resume_subscription(ids["ann"], effects=app)
    fire(app, SLOT + timedelta(days=1))
    assert recipients(tmp_path) == {"cat@example.com": 2, "ann@example.com": 1}
    for name in ("ann", "cat"):
        unsubscribe(ids[name], effects=app)
    assert schedules(app) == []
    for act in (unsubscribe, pause_subscription, resume_subscription):
        with pytest.raises(ReportNotFound):
            act(ids["ann"], effects=app)
    add(app, "ann@example.com")
    assert len(schedules(app)) == 1


@pytest.mark.slow
def test_the_last_that_goes_and_the_first_that_comes_at_once(app: Effects) -> None:
    """However they meet, a subscription that is there has a schedule that runs."""
    leaving = add(app, "ann@example.com")
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(unsubscribe, leaving, effects=app), pool.submit(add, app, "ben@example.com")]
        for each in done:
            each.result()
    assert len(schedules(app)) == 1


def test_what_no_longer_fits_needs_a_person_and_holds_up_no_other(
    app: Effects, shop_factory: Shop, options: dict[str, Any], tmp_path: Path
) -> None:
    add(app, "ann@example.com", {"above": 30})
    subscribe("euros", to="ben@example.com", template="file_ready", cron=NIGHT, link_to=BASE, effects=app)
    later = shop_factory(**options, reports=[report for report in REPORTS if report.name != "euros"])
    fire(later)
    assert recipients(tmp_path) == {"ann@example.com": 1}
    [letter] = dead(later)
    assert letter.job_type == "report.subscribed"
    assert "no report 'euros' is known" in str(letter.last_error)


def test_a_missing_template_is_one_recipients_dead_letter(app: Effects, tmp_path: Path) -> None:
    add(app, "ann@example.com")
    add(app, "ben@example.com", template="file_ready")
    changed = "replace(CAST(notice AS text), 'file_ready', 'gone')"
    if app.store.is_postgresql:
        changed = f"CAST({changed} AS jsonb)"
    first = "id = (SELECT min(id) FROM effects_report_subscriptions)"
    run_sql(app, f"UPDATE effects_report_subscriptions SET notice = {changed} WHERE {first}")
    fire(app)
    assert sum(recipients(tmp_path).values()) == 1
    assert [letter.job_type for letter in dead(app)] == ["email.compose"]


def test_a_missed_slot_is_made_up_for_once(app: Effects, tmp_path: Path) -> None:
    add(app, "ann@example.com", cron="*/10 * * * *")
    hour = "now() - interval '1 hour'" if app.store.is_postgresql else "last_slot - 3600000"
    run_sql(app, f"UPDATE effects_job_definitions SET last_slot = {hour} WHERE name LIKE 'reports.subscribed.%'")
    drain(app)
    assert recipients(tmp_path) == {"ann@example.com": 1}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"cron": "at night"}, ConfigurationError), ({"zone": "Mars"}, ConfigurationError),
        ({"template": "none"}, ReportInvalid), ({"params": {"above": "x"}}, ConfigurationError),
        ({"format": "doc"}, ConfigurationError), ({"link_to": "x"}, ReportInvalid),
        ({"params": {"above": object()}}, (ReportInvalid, ConfigurationError, TypeError)),
    ],
)  # fmt: skip
def test_what_could_not_run_is_refused(app: Effects, changes: dict[str, Any], error: Any) -> None:
    with pytest.raises(error):
        add(app, "ann@example.com", **changes)
    assert list_subscriptions(effects=app) == []


def test_an_address_is_stored_sealed(app: Effects, shop_factory: Shop, options: dict[str, Any]) -> None:
    add(app, "ann@example.com")
    with app.store.read() as connection:
        rows = connection.execute(sa.select(app.store.tables["report_subscriptions"])).all()
        payloads = connection.scalars(sa.text("SELECT CAST(payload AS text) FROM effects_job_definitions")).all()
    assert b"ann@" not in bytes(rows[0].sealed)
    assert "ann@" not in repr([*rows[0], *payloads])
    assert "ann@" not in repr(list_subscriptions(effects=app))
    with pytest.raises(KeyUnavailable):
        add(shop_factory(**{**options, "keys": ""}), "ben@example.com")
