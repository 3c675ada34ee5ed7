"""What becomes of a message: each verdict of the transport, and the same bytes on every try."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from effects import Effects
from effects.operate.tables.audit import audit
from effects.store.limits import key_limits as limit_rows
from effects_email import EmailInvalid, NewEmail, send_templated_email, send_templated_emails
from effects_email.classify import CONFIG_SECONDS, HOLD_SECONDS, RETRY, UNKNOWN_AFTER_SECONDS
from effects_email.suppression import find_suppressions
from effects_email.transport import registry as rests_module
from effects_email.transport.base import Verdict
from effects_email.transport.registry import Rests
from tests.email.messages.conftest import CONTEXT, KEYS, MakeShop, drain, job_type
from tests.email.messages.post import Post, verdict
from tests.email.messages.sending import Send, parsed, sent
from tests.support.manual_workers import row, rows, run_sql


def test_an_accepted_message_is_done(shop: Effects, send: Send, post: Post) -> None:
    receipt = send()
    assert drain(shop) == {"succeeded": 1}
    [outgoing] = post.outgoing
    assert (outgoing.sender, outgoing.recipients) == ("hello@shop.example", ("ann@example.com",))
    assert outgoing.message_id == receipt.message_id
    message = parsed(outgoing.data)
    assert (message["subject"], message["to"]) == ("Welcome, Ann!", "ann@example.com")
    email = sent(shop)
    assert (email["state"], email["outcome"], email["tries"], email["provider_id"]) == ("done", "accepted", 1, "id-0")
    assert email["bytes_sha256"] == hashlib.sha256(outgoing.data).hexdigest()
    assert audit(shop.store, shop.ledgers) == []


# the verdict · job's status, outcome in the log, attempts counted, seconds until the next, ledger's state
TABLE: list[tuple[Verdict, tuple[str, str, int, float, str]]] = [
    (verdict("retry"), ("failed", "failed", 1, 60, "intended")),
    (verdict("retry", after=900), ("failed", "failed", 1, 900, "intended")),
    (verdict("throttle"), ("queued", "paused", 0, 60, "intended")),
    (verdict("throttle", after=120), ("queued", "paused", 0, 120, "intended")),
    (verdict("config"), ("queued", "paused", 0, HOLD_SECONDS, "intended")),
    (verdict("transport_down"), ("queued", "paused", 0, 15, "intended")),
    (verdict("unknown"), ("failed", "unknown", 1, UNKNOWN_AFTER_SECONDS, "unknown")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("said", "expected"), TABLE, ids=lambda value: getattr(value, "kind", ""))
def test_each_verdict_has_its_outcome(shop: Effects, send: Send, post: Post, said: Verdict, expected: Any) -> None:
    post.moves = [said, verdict("accepted")]
    send()
    drain(shop)
    status, outcome, attempts, seconds, state = expected
    job, log = row(shop, "jobs"), row(shop, "job_attempts")
    assert (job["status"], log["outcome"], job["attempts"]) == (status, outcome, attempts)
    assert (sent(shop)["state"], sent(shop)["outcome"]) == (state, said.kind)
    shop.store.shift_clock(seconds * 0.6)  # time goes by itself too, on a busy machine
    assert drain(shop) == {}
    shop.store.shift_clock(seconds * 0.61 + 2)  # the jitter of a retry
    assert drain(shop) == {"succeeded": 1}
    assert len(set(post.bytes)) == 1
    assert sent(shop)["state"] == "done"
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.parametrize("kind", ["refused_recipient", "refused_message"])
def test_a_refusal_is_dead_and_suppresses_the_address(shop: Effects, send: Send, post: Post, kind: Any) -> None:
    post.moves = [verdict(kind, suppress="hard" if kind == "refused_recipient" else None)]
    send()
    assert drain(shop) == {"dead": 1}
    assert (sent(shop)["state"], sent(shop)["outcome"]) == ("refused", kind)
    reasons = [suppression.reason for suppression in find_suppressions("ANN@example.com", effects=shop)]
    assert reasons == (["hard_bounce"] if kind == "refused_recipient" else [])


@pytest.mark.slow
def test_a_fault_pauses_the_transport_and_a_throttle_its_limit_key(shop: Effects, send: Send, post: Post) -> None:
    with shop.store.begin() as connection:
        for domain in ("a.example", "b.example"):
            limit_rows.ensure_limit(shop.store, connection, f"email:default:{domain}", parent="email:default")
    post.moves = [verdict("throttle"), verdict("config"), verdict("config"), verdict("accepted")]
    for domain in ("a", "b", "b2", "c"):
        send(to=f"x@{domain}.example")
        drain(shop)
    paused = {limit["limit_key"]: limit["pause_reason"][:15] for limit in rows(shop, "limits") if limit["paused_until"]}
    assert paused == {"email:default:a.example": "it was throttle", "email:default": "it was config; "}
    assert post.sent_to() == [("x@a.example",), ("x@b.example",), ("x@b2.example",)]
    shop.store.shift_clock(CONFIG_SECONDS + HOLD_SECONDS + 1)
    drain(shop)
    assert {email["state"] for email in rows(shop, "sent_emails")} == {"done"}


def test_retries_come_at_the_times_that_are_promised() -> None:
    waits = [RETRY.delay_seconds(attempt, draw=lambda: 0.0) / 60 for attempt in range(1, 11)]
    assert waits == [1, 5, 15, 30, 60, 120, 240, 240, 240, 240]
    assert RETRY.delay_seconds(1, draw=lambda: 1.0) == 72
    assert (RETRY.max_attempts, RETRY.max_age_seconds) == (25, 48 * 3600)


@pytest.mark.slow
def test_age_ends_the_tries_first(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("retry")]
    send()
    while rows(shop, "jobs"):
        drain(shop)
        shop.store.shift_clock(14_400 * 1.2 + 1)
    assert row(shop, "job_history")["status"] == "dead"
    assert 8 < len(post.outgoing) < 20
    assert len(set(post.bytes)) == 1
    assert "gave up: older than" in row(shop, "job_history")["last_error"]


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_that_would_differ_are_not_sent(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("retry"), verdict("accepted")]
    send()
    drain(shop)
    run_sql(shop, "UPDATE effects_sent_emails SET bytes_sha256 = 'another'")
    shop.store.shift_clock(100)
    assert drain(shop) == {"dead": 1}
    assert len(post.outgoing) == 1
    assert row(shop, "job_history")["error_code"] == "content_changed"


def test_an_attachment_that_changed_or_is_gone(shop: Effects, send: Send, post: Post, tmp_path: Path) -> None:
    changed, gone = tmp_path / "changed.csv", tmp_path / "gone.csv"
    changed.write_text("a,b\n")
    gone.write_text("c,d\n")
    send(attachments=[changed])
    missing = send(attachments=[gone])
    changed.write_text("a,x\n")
    gone.unlink()
    drain(shop)
    codes = {job["error_code"] for job in [*rows(shop, "jobs"), *rows(shop, "job_history")]}
    assert codes == {"attachment_changed", "attachment_missing"}
    gone.write_text("c,d\n")
    shop.store.shift_clock(400)
    drain(shop)
    [outgoing] = post.outgoing
    assert outgoing.message_id == missing.message_id
    [part] = parsed(outgoing.data).iter_attachments()
    assert (part.get_filename(), part.get_content().replace("\r\n", "\n")) == ("gone.csv", "c,d\n")


@pytest.mark.slow
def test_one_bad_message_among_many_stops_nothing(shop: Effects, post: Post) -> None:
    emails = [NewEmail("welcome", to=f"u{n}@x.example", context=CONTEXT) for n in range(1000)]
    receipts = send_templated_emails(emails, effects=shop)
    bad = receipts[500].key
    run_sql(shop, "UPDATE effects_sent_emails SET sealed = :junk WHERE key = :key", junk=b"\x01junk", key=bad)
    assert drain(shop)["succeeded"] == 999
    everybody = {f"u{n}@x.example" for n in range(1000)}
    assert {outgoing.recipients[0] for outgoing in post.outgoing} == everybody - {"u500@x.example"}
    assert rows(shop, "job_history", "status = 'dead'")[0]["error_code"] == "payload_invalid"


# -- what is missing -------------------------------------------------------------------------------------------------


def test_a_transport_that_this_process_does_not_know_is_refused(shop: Effects, send: Send, post: Post) -> None:
    with pytest.raises(
        EmailInvalid, match=r"the mail transport 'defalt' is not set; is it 'default'\? \(set: default\)"
    ):
        send(transport="defalt")
    assert rows(shop, "jobs") == []


def test_a_transport_that_is_not_set_waits_for_the_operator(shop: Effects, make_shop: MakeShop) -> None:
    """Written by a process that knows no transport at all."""
    to = "ann@shop.example"
    send_templated_email("welcome", to=to, context=CONTEXT, key="k", transport="bulk", effects=make_shop(smtp_url=None))
    drain(shop)
    assert row(shop, "jobs")["attempts"] == 0
    assert "EFFECTS_EMAIL_TRANSPORT_BULK" in row(shop, "jobs")["last_error"]
    assert [limit["paused_until"] for limit in rows(shop, "limits")] in ([], [None])  # another worker may have it


def test_a_key_that_is_missing_waits_for_the_operator(make_shop: MakeShop, send: Send, post: Post) -> None:
    send()
    blind = make_shop(keys=KEYS.replace("k1=", "k2="))
    drain(blind)
    job = row(blind, "jobs")
    assert (job["status"], job["attempts"], post.outgoing) == ("queued", 0, [])
    assert "k1" in job["last_error"]


def test_without_keys_content_is_kept_in_clear_and_sent(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(keys="")
    send_templated_emails([NewEmail("welcome", to="a@x.example", context=CONTEXT)], effects=app)
    assert (sent(app)["sealed"], sent(app)["content"] is None) == (None, False)
    assert drain(app) == {"succeeded": 1}


def test_a_job_of_a_plain_insert_has_nothing_to_send(shop: Effects, post: Post) -> None:
    run_sql(shop, "INSERT INTO effects_jobs (job_type, payload) VALUES ('email.send', '{}')")
    while drain(shop):
        pass
    assert row(shop, "job_history")["error_code"] == "content_gone"
    assert post.outgoing == []


def test_the_worker_checks_its_transports_before_it_claims(make_shop: MakeShop) -> None:
    app = make_shop(email_transports={"bulk": "gopher://x"})
    with pytest.raises(Exception, match="the mail transport 'bulk'"):
        drain(app)
    assert job_type(app).name == "email.send"


def test_a_failing_transport_pauses_longer_each_time_but_once_for_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resting, now = Rests(), [1000.0]
    monkeypatch.setattr(rests_module.time, "monotonic", lambda: now[0])
    assert [resting.down("default") for _ in range(10)] == [15.0] * 10
    pauses = []
    for _ in range(7):
        now[0] += 1000.0
        pauses.append(resting.down("default"))
    assert pauses == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
    resting.up("default")
    assert resting.down("default") == 15.0
