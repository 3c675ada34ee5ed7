"""Who gets which report, when: one run a slot for all with the same params, one mail each, and what no longer fits."""

from __future__ import annotations

import asyncio
import mailbox
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from effects import ConfigurationError, Effects, KeyUnavailable, enqueue
from effects.app.firing import fire_now
from effects.keys.encryption import generate_key
from effects.operate.tables.dead_letters import DeadFilters, DeadLetter, list_dead
from effects.operate.tables.schedule_states import read_states
from effects_reports import (
    BucketCredentials,
    BucketInvalid,
    ReportInvalid,
    ReportNotFound,
    add_bucket,
    list_buckets,
    list_reports,
    list_subscriptions,
    pause_subscription,
    remove_bucket,
    resume_subscription,
    subscribe,
    subscribe_async,
    unsubscribe,
    unsubscribe_async,
)
from tests.reports.conftest import Shop, drain, file_ready
from tests.reports.served import BASE
from tests.reports.shop import REPORTS, fill
from tests.support.manual_workers import rows, run_sql

KEYS = f"k={generate_key()}"
NIGHT = "0 2 * * *"
SLOT = datetime(2026, 1, 20, 2, tzinfo=UTC)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    templates = file_ready(tmp_path, "{{ report }}, {{ rows }} rows", "{{ link }}\n")
    return {
        "keys": KEYS, "templates": templates, "email_from": "Shop <shop@example.com>",
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


@pytest.mark.parametrize("altered", [{"report": "big"}, {"params": {"above": 0}}, {"params": {}}])
def test_subscribers_get_only_the_data_that_they_subscribed_to(
    app: Effects, tmp_path: Path, altered: dict[str, Any]
) -> None:
    """A slot's job names the schedule and the data: whoever can write one might pair them otherwise."""
    add(app, "ann@example.com", {"above": 30})
    [name] = schedules(app)
    payload = {"schedule": name, "slot": "x", "report": "orders", "params": {"above": 30}, "format": "csv"}
    enqueue("report.subscribed", {**payload, **altered}, effects=app)
    drain(app)
    assert [letter.error_code for letter in dead(app)] in (["other_data"], ["ReportInvalid"])
    assert recipients(tmp_path) == {}


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


def test_a_subscription_that_does_not_open_is_listed_and_hides_no_other(
    app: Effects, shop_factory: Shop, options: dict[str, Any]
) -> None:
    add(app, "ann@example.com")
    others = shop_factory(**{**options, "keys": f"n={generate_key()}"})
    add(others, "ben@example.com")
    listed = [(row.to, row.unopened) for row in list_subscriptions(effects=others)]
    assert listed == [(None, True), ("ben@example.com", False)]


def test_an_address_is_stored_sealed(app: Effects, shop_factory: Shop, options: dict[str, Any]) -> None:
    add(app, "ann@example.com")
    with app.store.read() as connection:
        stored = connection.execute(sa.select(app.store.tables["report_subscriptions"])).all()
        payloads = connection.scalars(sa.text("SELECT CAST(payload AS text) FROM effects_job_definitions")).all()
    assert b"ann@" not in bytes(stored[0].sealed)
    assert "ann@" not in repr([*stored[0], *payloads])
    assert "ann@" not in repr(list_subscriptions(effects=app))
    with pytest.raises(KeyUnavailable):
        add(shop_factory(**{**options, "keys": ""}), "ben@example.com")


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A bucket at a port where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"s3://acme-files?endpoint=http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def bucket_app(shop_factory: Shop, options: dict[str, Any], nowhere: str) -> Effects:
    shop = shop_factory(**options, bucket_private_networks="127.0.0.0/8")
    fill(shop, 50)
    add_bucket("acme", nowhere, BucketCredentials("id", "secret"), effects=shop)
    return shop


def deliveries(app: Effects) -> list[tuple[str, str]]:
    """Jobs of uploads, live and ended: their keys and errors."""
    columns = "idempotency_key, error_code"
    parts = (
        f"SELECT {columns} FROM effects_{name} WHERE job_type = 'report.deliver'" for name in ("jobs", "job_history")
    )
    with app.engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(" UNION ALL ".join(parts)))]


def test_a_bucket_and_a_recipient_share_a_run(bucket_app: Effects, tmp_path: Path) -> None:
    add(bucket_app, "ann@example.com")
    into = {"bucket": "acme", "cron": NIGHT, "effects": bucket_app}
    first = subscribe("orders", object_name="daily/{run_id}.csv", **into)
    assert subscribe("orders", **into) == first
    [row] = list_subscriptions(bucket="acme", effects=bucket_app)
    assert (row.id, row.bucket, row.to, row.template) == (first, "acme", None, None)
    assert [bucket.subscriptions for bucket in list_buckets(effects=bucket_app)] == [1]
    fire(bucket_app)
    [run] = list_reports(effects=bucket_app)
    [(key, error)] = deliveries(bucket_app)
    assert (key.rpartition("/")[0], error) == (f"deliver/{run.run_id}/acme", "connect_failed")
    assert recipients(tmp_path) == {"ann@example.com": 1}


def test_a_removed_bucket_is_refused_at_each_slot_until_it_is_back(
    bucket_app: Effects, nowhere: str, tmp_path: Path
) -> None:
    add(bucket_app, "ann@example.com")
    into = subscribe("orders", bucket="acme", cron=NIGHT, effects=bucket_app)
    assert remove_bucket("acme", effects=bucket_app) == 1
    fire(bucket_app)
    assert [letter.error_code for letter in dead(bucket_app)] == ["no_bucket"]
    assert recipients(tmp_path) == {"ann@example.com": 1}
    add_bucket("acme", nowhere, BucketCredentials("id", "secret"), effects=bucket_app)
    fire(bucket_app, SLOT + timedelta(days=1))
    assert sorted(error for _, error in deliveries(bucket_app)) == ["connect_failed", "no_bucket"]
    unsubscribe(into, effects=bucket_app)
    assert list_subscriptions(bucket="acme", effects=bucket_app) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_what_is_for_mail_and_what_is_for_a_bucket_are_told_apart(bucket_app: Effects) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "give to, template and link_to for mail, or bucket"),
        ({"to": "a@example.com"}, "needs template and link_to too"),
        ({"to": "a@example.com", "template": "file_ready"}, "needs link_to too"),
        ({"bucket": "acme", "to": "a@example.com"}, "to, which is for mail"),
        ({"bucket": "acme", "link_uses": 1, "locale": "de"}, "link_uses, locale, which is for mail"),
        ({"bucket": "other"}, "no bucket 'other'"),
        ({"to": "a@example.com", "object_name": "x"}, "object_name is given without bucket"),
    ]
    for arguments, words in wrong:
        with pytest.raises(ReportInvalid, match=words):
            subscribe("orders", cron=NIGHT, effects=bucket_app, **arguments)
    with pytest.raises(BucketInvalid, match=r"nothing fills in \{day\}"):
        subscribe("orders", cron=NIGHT, bucket="acme", object_name="{day}.csv", effects=bucket_app)
    with pytest.raises(ReportInvalid, match="to or bucket"):
        list_subscriptions(to="a@example.com", bucket="acme", effects=bucket_app)
    assert list_subscriptions(effects=bucket_app) == []
    assert schedules(bucket_app) == []


def test_subscribing_and_ending_are_awaitable(bucket_app: Effects) -> None:
    async def visit() -> None:
        row = await subscribe_async("orders", bucket="acme", cron=NIGHT, effects=bucket_app)
        assert [each.id for each in list_subscriptions(effects=bucket_app)] == [row]
        await unsubscribe_async(row, effects=bucket_app)

    asyncio.run(visit())
    assert schedules(bucket_app) == []


# -- rows that do not open ---------------------------------------------------------------------------------------


def altered(app: Effects, subscription_id: str) -> None:
    """Its row has what is sealed of another one."""
    source = f"SELECT s.sealed FROM effects_report_subscriptions AS s WHERE s.id <> '{subscription_id}' LIMIT 1"
    run_sql(app, f"UPDATE effects_report_subscriptions SET sealed = ({source}) WHERE id = '{subscription_id}'")


@pytest.mark.parametrize("first_is_altered", [True, False])
@pytest.mark.slow
def test_an_altered_row_is_a_dead_letter_and_the_others_get_theirs(
    app: Effects, tmp_path: Path, first_is_altered: bool
) -> None:
    ids = [add(app, f"{name}@example.com") for name in ("ann", "ben", "cat")]
    chosen = ids[0] if first_is_altered else ids[-1]
    altered(app, chosen)
    for day in range(2):
        fire(app, SLOT + timedelta(days=day))
    assert sorted(recipients(tmp_path).values()) == [2, 2]
    letters = dead(app)
    assert [(letter.job_type, letter.error_code) for letter in letters] == [
        ("report.subscribed", "subscription_altered")
    ] * 2
    assert all(f"subscription {chosen}: " in str(letter.last_error) for letter in letters)
    unsubscribe(chosen, effects=app)
    fire(app, SLOT + timedelta(days=2))
    assert len(dead(app)) == 2


def test_whoever_lacks_a_key_waits_and_is_told_by_the_same_run(
    app: Effects, shop_factory: Shop, options: dict[str, Any], tmp_path: Path
) -> None:
    old, new = KEYS, f"k2={generate_key()}"
    for name in ("ann", "ben"):
        add(app, f"{name}@example.com")
    add(shop_factory(**{**options, "keys": f"{new},{old}"}), "cat@example.com")
    retired = shop_factory(**{**options, "keys": new})
    fire(retired)
    assert recipients(tmp_path) == {"cat@example.com": 1}
    [waiting] = rows(retired, "jobs")
    assert (waiting["job_type"], waiting["error_code"]) == ("report.subscribed", "waits_for_operator")
    assert "and 1 more: EFFECTS_KEYS does not hold the key 'k'" in str(waiting["last_error"])
    assert dead(retired) == []
    mended = shop_factory(**{**options, "keys": f"{new},{old}"})
    mended.store.shift_clock(60)
    drain(mended)
    assert recipients(tmp_path) == {f"{name}@example.com": 1 for name in ("ann", "ben", "cat")}
    assert len(list_reports(effects=mended)) == 1


def test_who_unsubscribes_while_a_key_is_missing_gets_nothing(
    app: Effects, shop_factory: Shop, options: dict[str, Any], tmp_path: Path
) -> None:
    leaving = add(app, "ann@example.com")
    retired = shop_factory(**{**options, "keys": f"k2={generate_key()}"})
    add(retired, "ben@example.com")
    fire(retired)
    assert recipients(tmp_path) == {"ben@example.com": 1}
    unsubscribe(leaving, effects=retired)
    retired.store.shift_clock(60)
    drain(retired)
    assert recipients(tmp_path) == {"ben@example.com": 1}
    assert rows(retired, "jobs") == []
