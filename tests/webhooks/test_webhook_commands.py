"""`effects webhooks …` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import httpx
import pytest
from sqlalchemy import text

from effects import Effects
from effects_webhooks import generate_secret, sign
from effects_webhooks.commands.listen import Listener, Received, _words
from effects_webhooks.writing import BATCH
from tests.cli.conftest import COMMAND, ROOT, Answer, effects
from tests.peers.http import Receiver
from tests.support.commands import error_line
from tests.support.waiting import PATIENCE_SECONDS
from tests.webhooks.conftest import KEYS, Rows

Run: TypeAlias = Callable[..., Answer]


@pytest.fixture
def run(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`effects webhooks …`, with a key and leave to reach loopback."""
    monkeypatch.setenv("EFFECTS_KEYS", KEYS)
    monkeypatch.setenv("EFFECTS_ALLOW_PRIVATE_ADDRESSES", "true")
    return lambda *arguments: effects("webhooks", *arguments, database_url=database_url)


def test_an_endpoint_from_add_to_disable(run: Run) -> None:
    added = run("endpoints", "add", "http://127.0.0.1:9/x", "--pattern", "order.*", "--pattern", "user.*", "--json")
    assert added.exit_code == 0
    assert added.json["secret"].startswith("whsec_")
    assert added.json["patterns"] == ["order.*", "user.*"]
    shown = run("endpoints", "show", added.json["id"], "--json").json
    assert (shown["url"], shown["status"], shown["patterns"]) == (
        "http://127.0.0.1:9/x",
        "active",
        ["order.*", "user.*"],
    )
    assert run("endpoints", "disable", added.json["id"], "--reason", "they asked").exit_code == 0
    listed = run("endpoints", "list", "--json").json
    assert [
        (listed_endpoint["id"], listed_endpoint["status"], listed_endpoint["reason"]) for listed_endpoint in listed
    ] == [(added.json["id"], "disabled", "they asked")]
    assert run("endpoints", "enable", added.json["id"]).exit_code == 0
    assert "active" in run("endpoints", "list").out


def test_a_token_in_a_url_is_shown_only_where_that_is_recorded(run: Run, database_url: str) -> None:
    url = "http://127.0.0.1:9/x?token=s3cret0"
    added = run("endpoints", "add", url, "--description", "Initech", "--json")
    endpoint = added.json["id"]
    ensured = run("endpoints", "ensure", "crm", url, "--json")
    hidden = [added, ensured, *(run(*words, *json) for json in ([], ["--json"]) for words in (
        ("endpoints", "list"), ("endpoints", "show", endpoint), ("deliveries",), ("events",)))]  # fmt: skip
    hidden += [run("endpoints", "change", endpoint, "--url", f"{url}1"), run("secrets", "list", endpoint)]
    assert [answer for answer in hidden if "s3cret0" in answer.out + answer.err] == []
    assert "Initech" in run("endpoints", "list").out
    for words in (("endpoints", "list"), ("endpoints", "show", endpoint)):
        assert "?token=s3cret0" in run(*words, "--show-url").out
    logged = effects("--database-url", database_url, "log", "--action", "reveal", "--json").json
    assert [entry["subject"] for entry in logged].count(endpoint) == 2


def test_endpoints_that_fail_are_listed_first(run: Run, database_url: str) -> None:
    good, failing = (run("endpoints", "add", f"http://127.0.0.1:9/{n}", "--json").json["id"] for n in (1, 2))
    app = Effects(database_url)
    with app.store.begin() as connection:
        connection.execute(text(f"DELETE FROM {app.store.sql.webhook_health}"))
        connection.execute(text(
            f"INSERT INTO {app.store.sql.webhook_health} (endpoint_id, failing_since) "
            f"VALUES ('{failing}', {app.store.sql.now})"))  # fmt: skip
    app.dispose()
    assert [endpoint["id"] for endpoint in run("endpoints", "list", "--json").json] == [failing, good]


def test_ensure_may_be_run_on_every_deploy(run: Run) -> None:
    added = run("endpoints", "ensure", "crm", "http://127.0.0.1:9/x", "--pattern", "order.*", "--json")
    assert added.json["result"] == "added"
    assert added.json["secret"].startswith("whsec_")
    assert "shown only once" in added.err
    again = run("endpoints", "ensure", "crm", "http://127.0.0.1:9/x", "--pattern", "order.*", "--json")
    assert (again.json["result"], again.json["id"], again.err) == ("unchanged", added.json["id"], "")
    assert "secret" not in again.json
    moved = run("endpoints", "ensure", "crm", "http://127.0.0.1:9/y", "--retry", "404=full", "--json").json
    assert (moved["result"], moved["changed"]) == ("changed", ["overrides", "patterns", "url"])
    assert " crm " in run("endpoints", "list").out
    assert f"other endpoints of this URL, and it gets each event once for each: {added.json['id']}" in (
        run("endpoints", "add", "http://127.0.0.1:9/y").err
    )


def test_a_command_reaches_every_tenant_or_the_one_that_it_names(run: Run) -> None:
    ids = {
        tenant: run("endpoints", "add", "http://127.0.0.1:9/", "--tenant", tenant, "--json").json["id"]
        for tenant in ("ann", "bob")
    }
    assert {endpoint["id"] for endpoint in run("endpoints", "list", "--json").json} == set(ids.values())
    assert [endpoint["id"] for endpoint in run("endpoints", "list", "--tenant", "ann", "--json").json] == [ids["ann"]]
    assert run("endpoints", "show", ids["bob"]).exit_code == 0
    refused = run("endpoints", "disable", ids["bob"], "--tenant", "ann")
    assert (refused.exit_code, "there is no endpoint" in refused.err) == (2, True)
    assert run("endpoints", "disable", ids["bob"], "--tenant", "bob").exit_code == 0


def test_the_secret_is_shown_once(run: Run) -> None:
    added = run("endpoints", "add", "http://127.0.0.1:9/")
    secret = next(word for word in added.out.split() if word.startswith("whsec_"))
    assert "shown only once" in added.err
    endpoint_id = next(word for word in added.out.split() if word.startswith("ep_"))
    assert secret not in run("endpoints", "list", "--json").out
    assert secret not in run("endpoints", "show", endpoint_id, "--json").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("endpoints", "add", "ftp://127.0.0.1/"), "https"),
        (("endpoints", "add", "https://example.com/", "--pattern", "order*"), "order*"),
        (("endpoints", "add", "https://example.com/", "--secret", "hunter2"), "whsec_"),
        (("endpoints", "show", "ep_none"), "ep_none"),
        (("endpoints", "disable", "ep_none"), "ep_none"),
        (("send", "--type", "order.paid"), "--data"),
        (("send", "--type", "order.paid", "--data", "{"), "JSON"),
        (("send", "--type", "order.paid", "--data", "[1]"), "object"),
        (("send", "--type", "order.paid", "--data", "[" * 100_000), "deep"),
        (("send", "--type", "order paid", "--data", "{}"), "dotted"),
        (("send", "--type", "order.paid", "--data", '{"a": NaN}'), "NaN"),
        (("send", "--file", "/does/not/exist"), "No such file"),
        (("send", "--file", "-", "--key", "k"), "--file"),
        (("listen", "--secret", "hunter2"), "whsec_"),
        (("listen",), "--secret"),
    ],
)
def test_an_error_is_one_line_and_exit_code_2(run: Run, arguments: tuple[str, ...], says: str) -> None:
    answer = run(*arguments)
    assert answer.exit_code == 2
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert says in answer.err
    assert "hunter2" not in answer.err


def test_without_a_key_no_secret_is_stored(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFFECTS_KEYS")
    answer = run("endpoints", "add", "http://127.0.0.1:9/")
    assert answer.exit_code == 2
    assert "effects keys generate" in answer.err
    assert run("endpoints", "list", "--json").json == []


def test_send_one(run: Run, rows: Rows) -> None:
    run("endpoints", "add", "http://127.0.0.1:9/")
    sent = run("send", "--type", "order.paid", "--data", '{"id": 1}', "--key", "k", "--json").json
    assert len(sent["deliveries"]) == 1
    again = run("send", "--type", "order.paid", "--data", '{"id": 1}', "--key", "k", "--json").json
    assert (again["event_id"], again["existing"]) == (sent["event_id"], True)
    assert run("send", "--type", "order.paid", "--data", '{"id": 2}', "--key", "k").exit_code == 2
    assert len(rows("SELECT id FROM effects_webhook_events")) == 1


def test_bad_lines_of_a_file_are_named_and_good_ones_sent(run: Run, rows: Rows, tmp_path: Path) -> None:
    run("endpoints", "add", "http://127.0.0.1:9/")
    run("send", "--type", "order.paid", "--data", '{"id": 1}', "--key", "taken")
    lines = [
        b'{"type": "order.paid", "data": {"n": 1}}',
        b"",
        b"no json",
        b'{"type": "order.paid", "data": {"id": 2}, "key": "taken"}',
        b'{"type": "order.paid", "data": {"id": 1}, "key": "taken"}',
        b'{"type": "order paid", "data": {}}',
        b'{"type": "order.paid"}',
        b'{"type": "order.paid", "data": {}, "knd": 1}',
        b'{"type": "order.paid", "data": [1]}',
        b'\xff{"type": "order.paid", "data": {}}',
        b'{"type": "order.paid", "data": {"n": "' + b"x" * 300_000 + b'"}}',
        b'{"type": "order.paid", "data": {"n": 2}, "occurred_at": "2026-11-21T12:00:00Z", "id": "mine"}',
    ]
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"\n".join(lines))  # and the last line has no end
    answer = run("send", "--file", file, "--json")
    assert answer.exit_code == 2
    assert [error["line"] for error in answer.json["errors"]] == [3, 4, 6, 7, 8, 9, 10, 11]
    assert (answer.json["events"], answer.json["deliveries"], answer.json["existing"]) == (2, 2, 1)
    for line in (3, 4, 6, 7, 8, 9, 10, 11):
        assert f"error: line {line}: " in answer.err
    assert len(rows("SELECT id FROM effects_webhook_events")) == 3


@pytest.mark.slow
def test_a_bad_line_in_every_batch_of_a_long_file_loses_no_other(run: Run, rows: Rows, tmp_path: Path) -> None:
    count = 2 * BATCH + 7
    lines = [json.dumps({"type": "order.paid", "data": {"n": n}, "key": f"k{n}"}) for n in range(count)]
    lines[3], lines[BATCH + 3] = "{", "{"
    lines[BATCH + 9] = json.dumps({"type": "order.paid", "data": {"n": -1}, "key": "k0"})
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(lines) + "\n")
    answer = run("send", "--file", file)
    assert answer.exit_code == 2
    assert f"{count - 3:,} events" in answer.out
    assert "3 lines refused" in answer.out
    assert len(rows("SELECT id FROM effects_webhook_events")) == count - 3
    again = run("send", "--file", file, "--json").json  # what has a key is not sent twice
    assert (again["events"], again["existing"]) == (0, count - 3)


def test_an_empty_file_is_no_error(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"")
    answer = run("send", "--file", file, "--json")
    assert (answer.exit_code, answer.json["events"]) == (0, 0)


@pytest.mark.slow
def test_what_send_wrote_the_worker_delivers(run: Run, database_url: str) -> None:
    with Receiver() as receiver:
        run("endpoints", "add", receiver.url)
        run("send", "--type", "order.paid", "--data", '{"id": 1}')
        assert effects("--database-url", database_url, "work", "--drain", "--max-seconds", "30").exit_code == 0
        assert json.loads(receiver.requests[0].body)["data"] == {"id": 1}


# -- listen --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_listen_verifies_prints_and_fails_on_purpose() -> None:
    secret = generate_secret()
    process = subprocess.Popen(
        [*COMMAND, "webhooks", "listen", "--fail-first", "1", "--json"],
        cwd=ROOT,
        env={**os.environ, "EFFECTS_WEBHOOK_SECRET": secret, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        assert process.stdout is not None
        url = process.stderr.readline().split()[2]
        signed = headers(secret, b'{"type":"order.paid","data":{"n":1}}')
        statuses = [
            httpx.post(url, content=body, headers=sent_headers, timeout=PATIENCE_SECONDS).status_code
            for body, sent_headers in (
                (b'{"type":"order.paid","data":{"n":1}}', signed),
                (b'{"type":"order.paid","data":{"n":1}}', signed),
                (b'{"type":"order.paid","data":{"n":1}}', signed),
                (b'{"type":"order.paid","data":{"n":2}}', signed),
            )
        ]
        assert statuses == [503, 200, 200, 401]
        lines = [json.loads(process.stdout.readline()) for _ in statuses]
    finally:
        process.terminate()
        process.communicate(timeout=20)
    assert [(line["status"], line["repeat"]) for line in lines] == [
        (503, False),
        (200, False),
        (200, True),
        (401, False),
    ]
    assert lines[1]["event"]["data"] == {"n": 1}
    assert lines[3]["event"] is None  # what a third party sent is not shown


def headers(secret: str, body: bytes) -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": sign(secret, "msg_1", now, body),
    }  # fmt: skip


# -- operating -----------------------------------------------------------------------------------------------------


def added(run: Run, url: str, *options: str) -> str:
    """The id of a new endpoint."""
    answer = run("endpoints", "add", url, *options, "--json")
    assert answer.exit_code == 0
    return str(answer.json["id"])


def work(database_url: str) -> None:
    assert effects("--database-url", database_url, "work", "--drain").exit_code in (0, 1)  # 1: some ended dead


def test_a_secret_from_rotate_to_expire(run: Run) -> None:
    endpoint = added(run, "http://127.0.0.1:9/")
    rotated = run("secrets", "rotate", endpoint, "--json").json
    assert rotated["secret"].startswith("whsec_")
    listed = run("secrets", "list", endpoint)
    assert listed.exit_code == 0
    assert rotated["secret"] not in listed.out
    secrets = run("secrets", "list", endpoint, "--json").json
    assert [secret["signs"] for secret in secrets] == [True, True]
    assert run("secrets", "expire", secrets[1]["id"]).exit_code == 0
    assert [secret["signs"] for secret in run("secrets", "list", endpoint, "--json").json] == [True, False]
    assert run("secrets", "expire", secrets[0]["id"]).exit_code == 2
    assert run("secrets", "rotate", "ep_none").exit_code == 2
    assert "0 h" in run("secrets", "rotate", endpoint, "--overlap-hours", "0").err


def test_an_endpoint_is_changed(run: Run) -> None:
    endpoint = added(
        run, "http://127.0.0.1:9/", "--profile", "patient", "--retry", "404=full", "--ordering", "key",
        "--header", "Authorization: Bearer hunter2",
    )  # fmt: skip
    shown = run("endpoints", "show", endpoint, "--json")
    assert "hunter2" not in shown.out
    details = shown.json
    assert (details["profile"], details["overrides"], details["ordering"], details["has_headers"]) == (
        "patient", {"404": "full"}, "key", True,
    )  # fmt: skip
    assert (
        run("endpoints", "change", endpoint, "--retry", "5xx=short", "--url", "http://127.0.0.1:9/new").exit_code == 0
    )
    details = run("endpoints", "show", endpoint, "--json").json
    assert (details["url"], details["overrides"], details["profile"]) == (
        "http://127.0.0.1:9/new", {"5xx": "short"}, "patient",
    )  # fmt: skip
    for wrong in (["--retry", "404"], ["--retry", "404=ever"], ["--header", "Host: x"], ["--header", "x"],
                  ["--header", "X-Team: a", "--header", "X-Team: b"]):  # fmt: skip
        assert run("endpoints", "change", endpoint, *wrong).exit_code == 2


def test_a_delivery_that_waits_is_due_now(run: Run, database_url: str, rows: Rows) -> None:
    with Receiver([503]) as receiver:
        endpoint = added(run, receiver.url)
        event = run("send", "--type", "a", "--data", "{}", "--json").json["event_id"]
        work(database_url)
        retried = effects("retry", event, database_url=database_url)
    [job] = rows("SELECT id FROM effects_jobs WHERE job_type = 'webhook.deliver' AND status = 'failed'")
    assert (retried.exit_code, retried.out.startswith(f"job {job['id']} is due now on queue webhooks")) == (0, True)
    preview = effects("retry", endpoint, "--json", database_url=database_url).json
    assert [(part["action"], part["job_ids"]) for part in preview["parts"]] == [
        ("retry", []), ("make_due_now", [job["id"]]),
    ]  # fmt: skip


@pytest.mark.slow
def test_deliveries_are_retried_by_what_they_are_known_by(run: Run, database_url: str) -> None:
    def retry(*words: object) -> Answer:
        return effects("retry", *words, database_url=database_url)

    with Receiver([422, 422, 422, 200]) as receiver:
        endpoint = added(run, receiver.url)
        event = run("send", "--type", "a", "--data", "{}", "--json").json["event_id"]
        work(database_url)
        answer = retry(f"{event}:{endpoint}", "--reason", "fixed")
        assert " retried as job " in answer.out
        assert "likely to end as before: the receiver understood the event and refuses it" in answer.out
        assert "is due now on queue webhooks" in retry(f"{event}:{endpoint}").out
        work(database_url)
        assert " retried as job " in retry(event).out
        work(database_url)
        preview = retry(receiver.url)
        assert "cannot help: the receiver understood the event and refuses it; fix the receiver first" in preview.out
        assert "1 to retry. Nothing was done: use --yes" in preview.out
        assert " retried as job " in retry(endpoint, "--yes").out
        work(database_url)
        assert len(receiver.requests) == 4
        assert {request.message_id for request in receiver.requests} == {event}
        assert "only --even-if-done" in error_line(retry(event), 1)
        assert retry(event, "--even-if-done").exit_code == 0
        assert retry("msg_none").exit_code == 2


@pytest.mark.slow
def test_an_event_of_many_deliveries_is_acted_on_with_yes(run: Run, database_url: str) -> None:
    """More of them than `effects why` shows: those that are done are left alone."""
    with Receiver([200] * 100 + [422]) as receiver:
        for _ in range(101):
            added(run, receiver.url)
        event = run("send", "--type", "a", "--data", "{}", "--json").json["event_id"]
        work(database_url)
        preview = effects("retry", event, database_url=database_url)
        assert "1 to retry; 100 done are left alone. Nothing was done: use --yes" in preview.out
        retried = effects("retry", event, "--yes", database_url=database_url)
        assert (retried.exit_code, retried.out.count("retried as job")) == (0, 1)


@pytest.mark.slow
def test_to_a_disabled_endpoint_nothing_is_retried(run: Run, database_url: str) -> None:
    with Receiver([422]) as receiver:
        endpoint = added(run, receiver.url)
        event = run("send", "--type", "a", "--data", "{}", "--json").json["event_id"]
        work(database_url)
    run("endpoints", "disable", endpoint, "--reason", "a test")
    refused = error_line(effects("retry", event, database_url=database_url), 1)
    [enable] = re.findall("`(effects .*)`", refused)
    assert effects(*enable.split()[1:], database_url=database_url).exit_code == 0
    assert effects("retry", event, database_url=database_url).exit_code == 0


def test_a_test_event(run: Run, database_url: str) -> None:
    with Receiver() as receiver:
        endpoint = added(run, receiver.url, "--pattern", "order.*")
        assert run("test", endpoint).exit_code == 0
        work(database_url)
        assert len(receiver.requests) == 1


def test_explain(run: Run) -> None:
    answer = run("explain", "429", "--retry-after", "120")
    assert answer.exit_code == 0
    for word in ("full", "in 120 s", "paused for 120 s", "too many requests"):
        assert word in answer.out
    assert run("explain", "422").out.split()[1] == "none"
    endpoint = added(run, "http://127.0.0.1:9/", "--retry", "422=short")
    assert run("explain", "422", "--endpoint", endpoint, "--json").json["retry_class"] == "short"
    assert run("explain", "404", "--profile", "strict", "--json").json["retry_class"] == "none"
    assert run("explain", "nonsense").exit_code == 2


def test_why_reports_an_event_without_endpoints(run: Run, database_url: str) -> None:
    def why(key: str) -> str:
        answer = effects("--database-url", database_url, "why", key)
        assert answer.exit_code == 2
        return answer.err

    first = run("send", "--type", "user.made", "--data", "{}", "--key", "user:1").out
    assert "no endpoint takes it: see `effects why msg_" in first
    assert "(user.made) is stored and has no delivery: there is no active endpoint (see " in why("user:1")
    endpoint = added(run, "http://127.0.0.1:9/", "--pattern", "order.*")
    reason = f"the only active endpoint does not take user.made: {endpoint} takes order.*"
    assert f"(user.made) is stored and has no delivery: {reason}" in why("user:1")
    run("send", "--type", "order.made", "--data", "{}", "--key", "order:1", "--tenant", "acme")
    assert "no active endpoint of tenant 'acme'; an event goes to those of its own tenant" in why("order:1")
    assert "no effect with key" in why("user:2")


def test_listen_prints_the_beginning_of_the_data() -> None:
    received = Received(200, "msg_1", False, None, json.dumps({"type": "a", "data": {"x": "y" * 500}}).encode())
    short = _words(received, full=False)
    assert "y" * 200 not in short
    assert "--full shows all 509 characters" in short


@pytest.mark.parametrize(("length", "status"), [("9" * 5000, b"413"), ("9" * 19, b"413"), ("x", b"400"), ("", b"400")])
def test_listen_answers_whatever_length_is_claimed(length: str, status: bytes) -> None:
    listener = Listener(0, [generate_secret()], lambda received: None)
    serving = threading.Thread(target=listener.serve)
    serving.start()
    try:
        with socket.create_connection(("127.0.0.1", listener.port), timeout=20) as connection:
            connection.sendall(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode())
            assert connection.recv(100).split()[1] == status
    finally:
        listener.stop()
        serving.join()
        listener.close()
