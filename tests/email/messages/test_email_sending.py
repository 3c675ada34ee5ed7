"""What becomes of a message: each verdict of the transport, what may have happened, and the same bytes on every try."""

from __future__ import annotations

import email
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email import policy
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effects import Effects
from effects.store import limits
from effects.store.audit import audit
from effects.store.dead_letters import DeadFilters, list_dead
from effects_email import EmailReceipt, NewEmail, send_templated_emails
from effects_email import transports as transports_module
from effects_email.outcomes import CONFIG_SECONDS, KEYED, RETRY, UNKNOWN_AFTER_SECONDS
from effects_email.suppression import find_suppressions, suppress, unsuppress
from effects_email.transport import url as transport_urls
from effects_email.transport.base import Kind, Letter, Verdict
from effects_email.transports import Transports
from tests.email.messages.conftest import CONTEXT, KEYS, MakeShop, drain, job_type
from tests.email.messages.post import KeyedPost, Post, verdict
from tests.support.hands import Hand, row, rows, run_sql

Send: TypeAlias = Callable[..., EmailReceipt]
GROUP = {"to": ["a@x.example", "b@x.example"], "cc": ["c@y.example"], "bcc": ["d@z.example"], "group": True}


def sent(app: Effects) -> dict[str, Any]:
    return row(app, "sent_emails")


def parsed(data: bytes) -> Any:
    return email.message_from_bytes(data, policy=policy.default)


def test_a_message_that_is_taken_is_done(shop: Effects, send: Send, post: Post) -> None:
    receipt = send()
    assert drain(shop) == {"succeeded": 1}
    [letter] = post.letters
    assert (letter.sender, letter.recipients) == ("hello@shop.example", ("ann@example.com",))
    assert letter.message_id == receipt.message_id
    message = parsed(letter.data)
    assert (message["subject"], message["to"]) == ("Welcome, Ann!", "ann@example.com")
    found = sent(shop)
    assert (found["state"], found["outcome"], found["tries"], found["provider_id"]) == ("done", "accepted", 1, "id-0")
    assert found["bytes_sha256"] == hashlib.sha256(letter.data).hexdigest()
    assert audit(shop) == []


# the verdict · job's status, outcome in the log, attempts counted, seconds until the next, ledger's state
TABLE: list[tuple[Verdict, tuple[str, str, int, float, str]]] = [
    (verdict("retry"), ("failed", "failed", 1, 60, "intended")),
    (verdict("retry", after=900), ("failed", "failed", 1, 900, "intended")),
    (verdict("throttle"), ("queued", "paused", 0, 60, "intended")),
    (verdict("throttle", after=120), ("queued", "paused", 0, 120, "intended")),
    (verdict("config"), ("queued", "paused", 0, CONFIG_SECONDS, "intended")),
    (verdict("transport_down"), ("queued", "paused", 0, 15, "intended")),
    (verdict("unknown"), ("failed", "unknown", 1, UNKNOWN_AFTER_SECONDS, "unknown")),
]


@pytest.mark.parametrize(("said", "expected"), TABLE, ids=lambda value: getattr(value, "kind", ""))
def test_each_verdict_has_its_outcome(shop: Effects, send: Send, post: Post, said: Verdict, expected: Any) -> None:
    post.moves = [said, verdict("accepted")]
    send()
    drain(shop)
    status, outcome, attempts, seconds, state = expected
    job, log = row(shop, "jobs"), row(shop, "job_attempts")
    assert (job["status"], log["outcome"], job["attempts"]) == (status, outcome, attempts)
    assert (sent(shop)["state"], sent(shop)["outcome"]) == (state, said.kind)
    shop.store.shift_clock(seconds * 0.95)
    assert drain(shop) == {}
    shop.store.shift_clock(seconds * 0.26 + 2)  # the jitter of a retry
    assert drain(shop) == {"succeeded": 1}
    assert len(set(post.bytes)) == 1
    assert sent(shop)["state"] == "done"
    assert audit(shop) == []


@pytest.mark.parametrize("kind", ["refused_recipient", "refused_message"])
def test_a_refusal_is_dead_and_the_list_learns_of_the_address(shop: Effects, send: Send, post: Post, kind: Any) -> None:
    post.moves = [verdict(kind, suppress="hard" if kind == "refused_recipient" else None)]
    send()
    assert drain(shop) == {"dead": 1}
    assert (sent(shop)["state"], sent(shop)["outcome"]) == ("refused", kind)
    found = [one.reason for one in find_suppressions("ANN@example.com", effects=shop)]
    assert found == (["hard_bounce"] if kind == "refused_recipient" else [])


def test_the_transport_rests_for_all_and_a_throttle_for_its_lane(shop: Effects, send: Send, post: Post) -> None:
    with shop.store.begin() as connection:
        for domain in ("a.example", "b.example"):
            limits.ensure(shop.store, connection, f"email:default:{domain}", parent="email:default")
    post.moves = [verdict("throttle"), verdict("config"), verdict("accepted")]
    send(to="x@a.example")
    drain(shop)
    send(to="x@b.example")
    drain(shop)
    send(to="x@c.example")
    drain(shop)
    paused = {one["limit_key"]: one["pause_reason"] for one in rows(shop, "limits") if one["paused_until"]}
    assert paused == {"email:default:a.example": "it was throttle", "email:default": "it was config"}
    assert post.sent_to() == [("x@a.example",), ("x@b.example",)]
    shop.store.shift_clock(CONFIG_SECONDS + 1)
    drain(shop)
    assert {one["state"] for one in rows(shop, "sent_emails")} == {"done"}


def test_retries_come_at_the_times_that_are_promised() -> None:
    waits = [RETRY.delay_seconds(attempt, draw=lambda: 0.0) / 60 for attempt in range(1, 11)]
    assert waits == [1, 5, 15, 30, 60, 120, 240, 240, 240, 240]
    assert RETRY.delay_seconds(1, draw=lambda: 1.0) == 72
    assert (RETRY.max_attempts, RETRY.max_age_seconds) == (25, 48 * 3600)


def test_age_ends_the_tries_first(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("retry")]
    send()
    while rows(shop, "jobs"):
        drain(shop)
        shop.store.shift_clock(14_400 * 1.2 + 1)
    assert row(shop, "job_history")["status"] == "dead"
    assert 8 < len(post.letters) < 20
    assert len(set(post.bytes)) == 1
    assert "gave up: older than" in row(shop, "job_history")["last_error"]


# -- what may have happened ------------------------------------------------------------------------------------------


def test_by_default_it_is_repeated_once_with_the_same_bytes(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")]
    send()
    for _ in range(4):
        drain(shop)
        shop.store.shift_clock(3600)
    assert len(post.letters) == 2
    assert len(set(post.bytes)) == len({letter.key for letter in post.letters}) == 1
    assert (row(shop, "job_history")["status"], sent(shop)["state"]) == ("dead", "unknown")
    assert [one.unknown for one in list_dead(shop.store, shop.ledgers, DeadFilters())] == [True]


def test_held_it_is_sent_once(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")]
    send("code", context={"code": 7})
    drain(shop)
    shop.store.shift_clock(500)
    assert drain(shop) == {}
    assert len(post.letters) == 1
    assert (row(shop, "job_history")["error_code"], sent(shop)["state"]) == ("unknown", "unknown")


def test_where_the_caller_says_repeat_it_goes_on(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")] * 3 + [verdict("accepted")]
    send(on_unknown="repeat")
    for _ in range(4):
        drain(shop)
        shop.store.shift_clock(2000)
    assert len(post.letters) == 4
    assert len(set(post.bytes)) == 1
    assert sent(shop)["state"] == "done"


def test_a_refusal_after_an_unknown_leaves_it_unknown(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown"), verdict("refused_message")]
    send()
    drain(shop)
    shop.store.shift_clock(2000)
    drain(shop)
    assert (len(post.letters), sent(shop)["state"], sent(shop)["outcome"]) == (2, "unknown", "refused_message")


@pytest.mark.parametrize("template", ["welcome", "code"])
def test_a_provider_that_knows_it_is_believed(shop: Effects, send: Send, post: Post, template: str) -> None:
    post.moves, post.knows = [verdict("unknown")], True
    send(template, context={**CONTEXT, "code": 1})
    assert drain(shop) == {"succeeded": 1}
    assert (len(post.letters), sent(shop)["state"]) == (1, "done")


@pytest.mark.parametrize("knows", [True, False])
def test_a_held_one_is_asked_for_once_more_before_a_person_has_to(
    shop: Effects, send: Send, post: Post, knows: bool
) -> None:
    post.moves, post.knows = [verdict("unknown")], False
    send("code", context={"code": 1}, expires_at=datetime.now(UTC) + timedelta(days=1))
    drain(shop)
    assert (row(shop, "jobs")["status"], sent(shop)["state"]) == ("failed", "unknown")
    post.knows = knows
    shop.store.shift_clock(600 * 1.2 + 1)
    drain(shop)
    assert len(post.letters) == 1
    assert row(shop, "job_history")["status"] == ("succeeded" if knows else "dead")
    assert sent(shop)["state"] == ("done" if knows else "unknown")
    assert audit(shop) == []


def test_of_a_group_that_a_provider_knows_everybody_has_it(shop: Effects, send: Send, post: Post) -> None:
    post.moves, post.knows = [verdict("unknown")], True
    send(**GROUP)
    assert drain(shop) == {"succeeded": 1}
    assert {one["outcome"] for one in rows(shop, "email_recipients")} == {"accepted"}


def test_a_lost_worker_asks_before_it_repeats(shop: Effects, send: Send, post: Post) -> None:
    send()
    hand = Hand(shop, queue="emails")
    job = hand.claim_one(queue="emails")
    assert hand.release(job) == {job.id}
    assert (sent(shop)["state"], sent(shop)["tries"]) == ("released", 0)
    shop.store.shift_clock(1200)
    drain(shop)  # rescues
    shop.store.shift_clock(UNKNOWN_AFTER_SECONDS * 0.9)
    assert drain(shop) == {}
    shop.store.shift_clock(UNKNOWN_AFTER_SECONDS * 0.5)
    post.knows = True
    assert drain(shop) == {"succeeded": 1}
    assert (post.letters, post.asked, sent(shop)["state"]) == ([], 1, "done")


@pytest.mark.parametrize("template", ["welcome", "code"])
def test_with_a_key_it_is_repeated_soon_whatever_the_policy(make_shop: MakeShop, post: Post, template: str) -> None:
    keyed = KeyedPost(verdict("unknown"), verdict("unknown"), verdict("accepted"))
    app = make_shop()
    transport_urls.register("post", lambda parsed: keyed)
    send_templated_emails([NewEmail(template, to="a@x.example", context={**CONTEXT, "code": 1})], effects=app)
    for attempt in range(1, 4):
        drain(app)
        app.store.shift_clock(KEYED.delay_seconds(attempt, draw=lambda: 1.0) + 1)
    assert len(keyed.letters) == 3
    assert len({letter.key for letter in keyed.letters}) == len(set(keyed.bytes)) == 1
    assert sent(app)["state"] == "done"


def test_a_key_is_used_within_half_of_its_life(make_shop: MakeShop, post: Post) -> None:
    keyed = KeyedPost(verdict("unknown"))
    keyed.key_lifetime_seconds = 400.0
    app = make_shop()
    transport_urls.register("post", lambda parsed: keyed)
    send_templated_emails([NewEmail("code", to="a@x.example", context={"code": 1})], effects=app)
    drain(app)
    app.store.shift_clock(201)
    drain(app)
    assert len(keyed.letters) == 1
    assert (row(app, "job_history")["status"], sent(app)["state"]) == ("dead", "unknown")


# -- bytes -----------------------------------------------------------------------------------------------------------


def test_bytes_that_would_differ_do_not_leave(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("retry"), verdict("accepted")]
    send()
    drain(shop)
    run_sql(shop, "UPDATE effects_sent_emails SET bytes_sha256 = 'another'")
    shop.store.shift_clock(100)
    assert drain(shop) == {"dead": 1}
    assert len(post.letters) == 1
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
    codes = {one["error_code"] for one in [*rows(shop, "jobs"), *rows(shop, "job_history")]}
    assert codes == {"attachment_changed", "attachment_missing"}
    gone.write_text("c,d\n")
    shop.store.shift_clock(400)
    drain(shop)
    [letter] = post.letters
    assert letter.message_id == missing.message_id
    [part] = parsed(letter.data).iter_attachments()
    assert (part.get_filename(), part.get_content().replace("\r\n", "\n")) == ("gone.csv", "c,d\n")


def test_one_bad_message_among_many_stops_nothing(shop: Effects, post: Post) -> None:
    emails = [NewEmail("welcome", to=f"u{n}@x.example", context=CONTEXT) for n in range(1000)]
    receipts = send_templated_emails(emails, effects=shop)
    bad = receipts[500].key
    run_sql(shop, "UPDATE effects_sent_emails SET sealed = :junk WHERE key = :key", junk=b"\x01junk", key=bad)
    assert drain(shop)["succeeded"] == 999
    everybody = {f"u{n}@x.example" for n in range(1000)}
    assert {letter.recipients[0] for letter in post.letters} == everybody - {"u500@x.example"}
    assert row(shop, "jobs")["status"] == "queued"  # until somebody mends its key


# -- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_is_one_message_with_a_result_for_each(shop: Effects, send: Send, post: Post) -> None:
    send(**GROUP)
    drain(shop)
    [letter] = post.letters
    assert letter.recipients == ("a@x.example", "b@x.example", "c@y.example", "d@z.example")
    message = parsed(letter.data)
    assert (message["to"], message["cc"], message["bcc"]) == ("a@x.example, b@x.example", "c@y.example", None)
    assert b"d@z.example" not in letter.data
    found = [(one["kind"], one["outcome"]) for one in rows(shop, "email_recipients")]
    assert found == [("to", "accepted"), ("to", "accepted"), ("cc", "accepted"), ("bcc", "accepted")]


def test_only_those_who_have_it_not_yet_are_tried_again(shop: Effects, send: Send, post: Post) -> None:
    ok, later, no = verdict("accepted"), verdict("retry"), verdict("refused_recipient", suppress="hard")
    post.moves = [
        {"a@x.example": ok, "b@x.example": later, "c@y.example": no, "d@z.example": later},
        {"b@x.example": ok, "d@z.example": no},
    ]
    send(**GROUP)
    drain(shop)
    assert sent(shop)["outcome"] == "retry"
    shop.store.shift_clock(100)
    assert drain(shop) == {"succeeded": 1}
    assert post.sent_to()[1] == ("b@x.example", "d@z.example")
    assert len(set(post.bytes)) == 1
    outcomes = [one["outcome"] for one in rows(shop, "email_recipients")]
    assert outcomes == ["accepted", "accepted", "refused_recipient", "refused_recipient"]
    assert [len(find_suppressions(one, effects=shop)) for one in ("c@y.example", "a@x.example")] == [1, 0]


def test_of_a_thousand_mixed_refusals_nobody_is_written_to_twice(shop: Effects, post: Post) -> None:
    """Row 31 of the reliability table: 100 groups of 10, each recipient with a fate of its own a try."""
    dice = random.Random(31)
    kinds: list[Kind] = ["accepted", "accepted", "retry", "retry", "refused_recipient", "refused_message"]
    taken: Counter[str] = Counter()

    def fate(letter: Letter) -> dict[str, Verdict]:
        found = {address: verdict(dice.choice(kinds)) for address in letter.recipients}
        taken.update(address for address, one in found.items() if one.kind == "accepted")
        return found

    post.decide = fate
    groups = [[f"u{n}-{m}@x.example" for m in range(10)] for n in range(100)]
    send_templated_emails([NewEmail("welcome", to=to, group=True, context=CONTEXT) for to in groups], effects=shop)
    while rows(shop, "jobs"):
        drain(shop)
        shop.store.shift_clock(3600)
    assert max(taken.values()) == 1
    recorded = [one["outcome"] for one in rows(shop, "email_recipients")]
    assert recorded.count("accepted") == len(taken) > 500
    assert set(recorded) == {"accepted", "refused_recipient", "refused_message"}
    assert audit(shop) == []


def test_a_group_nobody_of_which_is_taken_is_dead(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("refused_recipient")]
    send(**GROUP)
    assert drain(shop) == {"dead": 1}
    assert {one["outcome"] for one in rows(shop, "email_recipients")} == {"refused_recipient"}


# -- suppression and staging -----------------------------------------------------------------------------------------


def test_who_is_suppressed_gets_nothing_and_nothing_is_dead(shop: Effects, send: Send, post: Post) -> None:
    suppress("ann@example.com", effects=shop)
    assert send().suppressed
    assert drain(shop) == {"cancelled": 1}
    assert post.letters == []
    assert (sent(shop)["state"], sent(shop)["outcome"]) == ("abandoned", "suppressed")
    assert row(shop, "job_history")["error_code"] == "suppressed"


def test_the_list_is_looked_at_again_before_it_leaves(shop: Effects, send: Send, post: Post) -> None:
    assert not send(to="late@example.com").suppressed
    suppress("early@example.com", effects=shop)
    assert send(to="early@example.com").suppressed
    suppress("late@example.com", effects=shop)
    unsuppress("early@example.com", effects=shop)
    drain(shop)
    assert post.sent_to() == [("early@example.com",)]
    assert {one["outcome"] for one in rows(shop, "sent_emails")} == {"accepted", "suppressed"}


def test_a_groups_suppressed_recipients_are_left_out(shop: Effects, send: Send, post: Post) -> None:
    suppress("b@x.example", effects=shop)
    assert not send(**GROUP).suppressed
    drain(shop)
    assert post.sent_to() == [("a@x.example", "c@y.example", "d@z.example")]
    assert [one["outcome"] for one in rows(shop, "email_recipients")] == [
        "accepted", "suppressed", "accepted", "accepted",
    ]  # fmt: skip


def test_staging_sends_everything_to_one_address(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(email_redirect="Team <team@shop.example>")
    emails = [NewEmail("welcome", to="a@x.example", context=CONTEXT), NewEmail("welcome", context=CONTEXT, **GROUP)]  # type: ignore[arg-type]
    send_templated_emails(emails, effects=app)
    drain(app)
    assert post.sent_to() == [("team@shop.example",)] * 2
    for letter in post.letters:
        message = parsed(letter.data)
        assert (message["to"], message["cc"]) == ("Team <team@shop.example>", None)
        assert letter.parts.to[0].spec == "team@shop.example"
    meant = {parsed(letter.data)["x-original-to"] for letter in post.letters}
    assert meant == {"a@x.example", "a@x.example, b@x.example, c@y.example, d@z.example"}


def test_staging_blames_nobody_for_the_redirects_bounce(make_shop: MakeShop, post: Post) -> None:
    post.moves = [verdict("refused_recipient", suppress="hard")]
    app = make_shop(email_redirect="team@shop.example")
    send_templated_emails([NewEmail("welcome", to="a@x.example", context=CONTEXT)], effects=app)
    assert drain(app) == {"dead": 1}
    assert find_suppressions("a@x.example", effects=app) == find_suppressions("team@shop.example", effects=app) == []


def test_held_mail_waits_and_costs_nothing(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(email_hold=True)
    send_templated_emails([NewEmail("welcome", to="a@x.example", context=CONTEXT)], effects=app)
    for _ in range(3):
        drain(app)
        app.store.shift_clock(7 * 86_400)
    assert post.letters == []
    assert row(app, "jobs")["attempts"] == 0
    assert "EFFECTS_EMAIL_HOLD" in row(app, "limits")["pause_reason"]
    app.dispose()
    free = make_shop()
    free.store.shift_clock(21 * 86_400)
    assert drain(free) == {"succeeded": 1}


# -- what is missing -------------------------------------------------------------------------------------------------


def test_a_transport_that_is_not_set_waits_for_the_operator(shop: Effects, send: Send, post: Post) -> None:
    send(transport="bulk")
    drain(shop)
    assert (row(shop, "jobs")["attempts"], row(shop, "jobs")["error_code"]) == (0, "no_transport")
    assert "EFFECTS_EMAIL_TRANSPORT_BULK" in row(shop, "limits")["pause_reason"]


def test_a_key_that_is_missing_waits_for_the_operator(make_shop: MakeShop, send: Send, post: Post) -> None:
    send()
    blind = make_shop(keys=KEYS.replace("k1=", "k2="))
    drain(blind)
    job = row(blind, "jobs")
    assert (job["status"], job["attempts"], post.letters) == ("queued", 0, [])
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
    assert post.letters == []


def test_the_worker_checks_its_transports_before_it_claims(make_shop: MakeShop) -> None:
    app = make_shop(email_transports={"bulk": "gopher://x"})
    with pytest.raises(Exception, match="the mail transport 'bulk'"):
        drain(app)
    assert job_type(app).name == "email.send"


def test_a_transport_that_is_down_rests_longer_each_time_and_not_for_each_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transports, now = Transports({}), [1000.0]
    monkeypatch.setattr(transports_module.time, "monotonic", lambda: now[0])
    assert [transports.down("default") for _ in range(10)] == [15.0] * 10
    rests = []
    for _ in range(7):
        now[0] += 1000.0
        rests.append(transports.down("default"))
    assert rests == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0, 300.0]
    transports.up("default")
    assert transports.down("default") == 15.0
