"""`effects keys`: rotation while everything goes on, and no key let go that is needed."""

from __future__ import annotations

import base64
import datetime as dt
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from effects import Effects, KeyUnavailable, NewJob, enqueue, enqueue_many
from effects.keys.encryption import KeyRing
from effects.keys.sealing import open_payload, sealed_document
from effects.operate.tables.rotate import KeyCount, count_keys, rotate
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from effects_webhooks.endpoint_values import open_secret
from tests.cli.conftest import Answer
from tests.cli.conftest import effects as command
from tests.peers.http import Receiver, Request
from tests.security.conftest import VaultFactory
from tests.security.vault import BOTH_KEYS, CARD, NEW, NEW_KEYS, OLD, OLD_KEYS, vault_app
from tests.support.commands import error_line
from tests.support.manual_workers import rows, run_sql
from tests.support.processes import Child, Fleet, effects, fleet
from tests.support.waiting import wait_until

KILLS = 10
SECRETS = 10_000
ENDPOINTS = 500
LISTENING = 20
DUE = 300
SECRET = "whsec_" + base64.b64encode(b"shared by all the endpoints here").decode()
LATER = dt.datetime(2099, 1, 1, tzinfo=dt.UTC)


def keys(app: Effects, *arguments: str, with_keys: str = BOTH_KEYS, monkeypatch: pytest.MonkeyPatch) -> Answer:
    monkeypatch.setenv("EFFECTS_KEYS", with_keys)
    return command("--database-url", app.settings.database_url, "keys", *arguments)


def in_use(app: Effects) -> set[tuple[str, str, int]]:
    return {(count.place, count.key_id, count.values) for count in count_keys(app.store)}


def fill(app: Effects) -> None:
    """One value in each of the three places."""
    enqueue("card.charge", CARD, effects=app)
    Worker(app).drain()
    enqueue("card.charge", CARD, run_at=LATER, effects=app)
    add_endpoint("https://partner.example/", effects=app)


def test_every_place_is_counted_and_rotated(vault: VaultFactory) -> None:
    fill(vault())
    app = vault(BOTH_KEYS)
    assert in_use(app) == {("jobs", "old", 1), ("job_history", "old", 1), ("webhook_secrets", "old", 1)}
    quick = {count.place for count in count_keys(app.store, quick=True)}
    assert quick == {"jobs", "webhook_secrets"}  # the job in the history succeeded
    reported: list[tuple[str, int]] = []
    result = rotate(app.store, app.keys, lambda place, count: reported.append((place, count)), actor="ann")
    assert (result.newest, result.rotated, result.left, result.unreadable) == ("new", 3, [], [])
    assert sorted(reported) == [("job_history", 1), ("jobs", 1), ("webhook_secrets", 1)]
    assert in_use(app) == {("jobs", "new", 1), ("job_history", "new", 1), ("webhook_secrets", "new", 1)}
    assert rotate(app.store, app.keys, actor="ann").rotated == 0
    open_all(vault(NEW_KEYS))


def open_all(app: Effects) -> int:
    """Open every sealed value there is; how many."""
    opened = 0
    for table in ("jobs", "job_history"):
        for row in rows(app, table, "job_type = 'card.charge'"):
            text = row["payload"] if isinstance(row["payload"], str) else json.dumps(row["payload"])
            assert sealed_document(text) is not None
            assert app.job_types.get(row["job_type"]).decode(open_payload(app.keys, row["job_type"], text)).card
            opened += 1
    for row in rows(app, "webhook_secrets"):
        assert open_secret(app, row["endpoint_id"], row["id"], bytes(row["sealed"]))
        opened += 1
    return opened


def test_what_is_not_sealed_stays_as_it_is(vault: VaultFactory) -> None:
    app = vault(BOTH_KEYS)
    for payload in ('{"orderId": 1}', "[1, 2]", '"text"', "null", '{"$sealed": "old"}'):
        run_sql(app, "INSERT INTO effects_jobs (job_type, payload) VALUES ('third_party', :payload)", payload=payload)
    before = rows(app, "jobs")
    assert rotate(app.store, app.keys, actor="ann").rotated == 0
    assert rows(app, "jobs") == before
    assert count_keys(app.store) == []


def test_rotating_without_a_key_is_an_error(vault: VaultFactory) -> None:
    app = vault("")
    with pytest.raises(KeyUnavailable, match="there is no key to seal with"):
        rotate(app.store, app.keys, actor="ann")


def test_status_lists_keys_and_what_needs_them(vault: VaultFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    app = vault()
    fill(app)
    out = keys(app, "status", monkeypatch=monkeypatch).out.splitlines()
    assert [line.split()[:3] for line in out[1:]] == [["new", "seals", "0"], ["old", "opens", "3"]]
    status = keys(app, "status", "--json", with_keys=NEW_KEYS, monkeypatch=monkeypatch).json
    assert [(key["key"], key["role"]) for key in status["keys"]] == [("new", "seals"), ("old", "missing")]
    assert status["keys"][1]["values"] == {"jobs": 1, "job_history": 1, "webhook_secrets": 1}


def test_a_key_in_use_is_not_retired(vault: VaultFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    app = vault()
    fill(app)
    line = error_line(keys(app, "retire", "old", monkeypatch=monkeypatch))
    assert "3 values need the key old (jobs 1, job_history 1, webhook_secrets 1)" in line
    assert OLD not in line
    assert keys(app, "rotate", monkeypatch=monkeypatch).out == "3 values are now under the key new\n"
    retired = keys(app, "retire", "old", monkeypatch=monkeypatch)
    assert (retired.exit_code, retired.out) == (0, f"EFFECTS_KEYS={NEW_KEYS}\n")
    assert KeyRing(retired.out.strip().partition("=")[2]).ids == ["new"]


@pytest.mark.parametrize(
    ("key_id", "says"),
    [
        ("new", "is the active key; add a newer one first"),
        ("digest", "cannot be retired"),
        ("other", "holds no key 'other'"),
    ],
)
def test_keys_that_cannot_be_retired(
    vault: VaultFactory, monkeypatch: pytest.MonkeyPatch, key_id: str, says: str
) -> None:
    assert says in error_line(keys(vault(), "retire", key_id, monkeypatch=monkeypatch))


def test_unreadable_values_are_left_and_named(vault: VaultFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    app = vault()
    fill(app)
    before = rows(app, "jobs")
    answer = keys(app, "rotate", with_keys=NEW_KEYS, monkeypatch=monkeypatch)
    assert answer.exit_code == 2
    assert "3 values do not open and were left as they are" in answer.err
    assert "EFFECTS_KEYS does not hold old" in answer.err
    altered = keys(app, "rotate", with_keys=f"new={NEW},old={NEW}", monkeypatch=monkeypatch)
    assert "they were altered, or a key's value was" in altered.err
    assert rows(app, "jobs") == before


def test_a_process_that_seals_with_the_old_key_is_noticed(vault: VaultFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It enqueues whenever a batch is done, so that no pass is the last one."""
    old, app = vault(), vault(BOTH_KEYS)
    fill(old)
    result = rotate(app.store, app.keys, lambda place, count: old_enqueues(old), actor="ann")
    assert [(count.place, count.key_id) for count in result.left] == [("jobs", "old")]
    assert rotate(app.store, app.keys, actor="ann").left == []


def old_enqueues(old: Effects) -> None:
    enqueue("card.charge", CARD, run_at=LATER, effects=old)


def test_a_locked_row_is_left_to_the_next_pass(vault: VaultFactory) -> None:
    app = vault(BOTH_KEYS)
    if not app.store.is_postgresql:
        pytest.skip("SQLite locks no single rows")
    fill(vault())
    with app.store.begin() as connection:
        connection.exec_driver_sql("SELECT id FROM effects_jobs FOR UPDATE")
        assert [(count.place, count.values) for count in rotate(app.store, app.keys, actor="ann").left] == [("jobs", 1)]
    assert rotate(app.store, app.keys, actor="ann").rotated == 1


@pytest.mark.slow
def test_ten_thousand_with_senders_running_and_kills(database_url: str, vault: VaultFactory, tmp_path: Path) -> None:
    """Two workers charge cards and send signed webhooks all the while."""
    app = vault_app(database_url, OLD_KEYS, allow_private_addresses=True)
    with Receiver() as receiver:
        rotate_beside_senders(app, receiver, tmp_path)
        assert {message_of(request) for request in receiver.requests} == {f"tick {n}" for n in range(KILLS)}
        assert len(receiver.requests) >= KILLS * LISTENING
    assert {count.key_id for count in count_keys(app.store)} == {"new"}
    assert {row["status"] for row in rows(app, "job_history")} == {"succeeded"}
    assert open_all(vault(NEW_KEYS)) == SECRETS
    app.dispose()


def message_of(request: Request) -> str:
    """What a signed event says; its signature is checked by the reference library."""
    data = Webhook(SECRET).verify(request.body, request.headers)
    return f"tick {data['data']['n']}"


def rotate_beside_senders(app: Effects, receiver: Receiver, folder: Path) -> None:
    due = [NewJob(job_type="card.charge", payload=charge(number)) for number in range(DUE)]
    later = [
        NewJob(job_type="card.charge", payload=charge(number), run_at=LATER)
        for number in range(DUE, SECRETS - ENDPOINTS)
    ]
    enqueue_many(later, effects=app)
    with app.store.begin() as connection:
        for number in range(ENDPOINTS):
            listens = number < LISTENING
            add_endpoint(
                f"{receiver.url}/{number}", ["tick"] if listens else ["other"], secret=SECRET, session=connection,
                effects=app,
            )  # fmt: skip
    with fleet(app.settings.database_url, folder) as processes:
        workers = [worker(processes) for _ in range(2)]
        enqueue_many(due, effects=app)
        killed = 0
        for number in range(KILLS):
            deliver_webhook(WebhookEvent("tick", {"n": number}), effects=app)
            killed += killed_while_rotating(processes)
        assert killed == KILLS
        last = rotating(processes)
        assert last.wait(60) == 0, last.output
        ended = DUE + KILLS * LISTENING
        wait_until(lambda: len(rows(app, "job_history")) == ended, seconds=60)
        for process in workers:
            process.send(signal.SIGTERM)
            assert process.wait() == 0, process.output


def charge(number: int) -> dict[str, Any]:
    return {"orderId": number, "card": {"number": f"4111-{number}"}}


def worker(processes: Fleet) -> Child:
    return processes.worker(
        app="tests.security.vault_app:app", EFFECTS_KEYS=BOTH_KEYS, EFFECTS_ALLOW_PRIVATE_ADDRESSES="yes"
    )


def rotating(processes: Fleet) -> Child:
    return processes.start(effects, "keys", "rotate", "--progress", EFFECTS_KEYS=BOTH_KEYS)


def killed_while_rotating(processes: Fleet) -> bool:
    """Kill it after its first batch, wherever in the next it is."""
    child = rotating(processes)
    child.wait_logged(": ")
    child.kill()
    return child.exit_code == -signal.SIGKILL


def test_a_killed_batch_is_rotated_whole_or_not_at_all(vault: VaultFactory) -> None:
    """The counts of two keys always add up, also in the middle of a rotation."""
    fill(vault())
    app = vault(BOTH_KEYS)
    sums: list[int] = []
    rotate(
        app.store,
        app.keys,
        lambda place, count: sums.append(sum(key_count.values for key_count in count_keys(app.store))),
        actor="ann",
    )
    assert set(sums) == {3}
    assert count_keys(app.store)[0] == KeyCount("jobs", "new", 1)
