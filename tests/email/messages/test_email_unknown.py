"""A message that may have been sent: repeated once, held, asked for, or with a key that the provider knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from effects import Effects
from effects.operate.tables.audit import audit
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects_email import NewEmail, send_templated_emails
from effects_email.classify import KEYED, UNKNOWN_AFTER_SECONDS
from effects_email.transport import url as transport_urls
from tests.email.messages.conftest import CONTEXT, MakeShop, drain
from tests.email.messages.post import KeyedPost, Post, verdict
from tests.email.messages.sending import GROUP, Send, sent
from tests.support.manual_workers import ManualWorker, row, rows


@pytest.mark.slow
def test_by_default_it_is_repeated_once_with_the_same_bytes(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")]
    send()
    for _ in range(4):
        drain(shop)
        shop.store.shift_clock(3600)
    assert len(post.outgoing) == 2
    assert len(set(post.bytes)) == len({outgoing.key for outgoing in post.outgoing}) == 1
    assert (row(shop, "job_history")["status"], sent(shop)["state"]) == ("dead", "unknown")
    assert [dead_letter.unknown for dead_letter in list_dead(shop.store, shop.ledgers, DeadFilters())] == [True]


def test_a_held_message_is_sent_once(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")]
    send("code", context={"code": 7})
    drain(shop)
    shop.store.shift_clock(500)
    assert drain(shop) == {}
    assert len(post.outgoing) == 1
    assert (row(shop, "job_history")["error_code"], sent(shop)["state"]) == ("test_unknown", "unknown")


@pytest.mark.slow
def test_on_unknown_repeat_of_the_caller_repeats(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown")] * 3 + [verdict("accepted")]
    send(on_unknown="repeat")
    for _ in range(4):
        drain(shop)
        shop.store.shift_clock(2000)
    assert len(post.outgoing) == 4
    assert len(set(post.bytes)) == 1
    assert sent(shop)["state"] == "done"


def test_a_refusal_after_an_unknown_leaves_it_unknown(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("unknown"), verdict("refused_message")]
    send()
    drain(shop)
    shop.store.shift_clock(2000)
    drain(shop)
    assert (len(post.outgoing), sent(shop)["state"], sent(shop)["outcome"]) == (2, "unknown", "refused_message")


@pytest.mark.parametrize("template", ["welcome", "code"])
def test_a_provider_that_knows_it_is_believed(shop: Effects, send: Send, post: Post, template: str) -> None:
    post.moves, post.knows = [verdict("unknown")], True
    send(template, context={**CONTEXT, "code": 1})
    assert drain(shop) == {"succeeded": 1}
    assert (len(post.outgoing), sent(shop)["state"]) == (1, "done")


@pytest.mark.parametrize("knows", [True, False])
def test_a_held_message_is_searched_once_more_before_an_operator_decides(
    shop: Effects, send: Send, post: Post, knows: bool
) -> None:
    post.moves, post.knows = [verdict("unknown")], False
    send("code", context={"code": 1}, expires_at=datetime.now(UTC) + timedelta(days=1))
    drain(shop)
    assert (row(shop, "jobs")["status"], sent(shop)["state"]) == ("failed", "unknown")
    post.knows = knows
    shop.store.shift_clock(600 * 1.2 + 1)
    drain(shop)
    assert len(post.outgoing) == 1
    assert row(shop, "job_history")["status"] == ("succeeded" if knows else "dead")
    assert sent(shop)["state"] == ("done" if knows else "unknown")
    assert audit(shop.store, shop.ledgers) == []


def test_a_group_known_to_the_provider_was_sent_to_all(shop: Effects, send: Send, post: Post) -> None:
    post.moves, post.knows = [verdict("unknown")], True
    send(**GROUP)
    assert drain(shop) == {"succeeded": 1}
    assert {recipient["outcome"] for recipient in rows(shop, "email_recipients")} == {"accepted"}


@pytest.mark.slow
def test_a_lost_worker_asks_before_it_repeats(shop: Effects, send: Send, post: Post) -> None:
    send()
    manual_worker = ManualWorker(shop, queue="emails")
    job = manual_worker.claim_one(queue="emails")
    assert manual_worker.release(job) == {job.attempt_id}
    assert (sent(shop)["state"], sent(shop)["tries"]) == ("released", 0)
    shop.store.shift_clock(1200)
    drain(shop)  # rescues
    shop.store.shift_clock(UNKNOWN_AFTER_SECONDS * 0.9)
    assert drain(shop) == {}
    shop.store.shift_clock(UNKNOWN_AFTER_SECONDS * 0.5)
    post.knows = True
    assert drain(shop) == {"succeeded": 1}
    assert (post.outgoing, post.asked, sent(shop)["state"]) == ([], 1, "done")


@pytest.mark.slow
@pytest.mark.parametrize("template", ["welcome", "code"])
def test_with_a_key_it_is_repeated_soon_whatever_the_policy(make_shop: MakeShop, post: Post, template: str) -> None:
    keyed = KeyedPost(verdict("unknown"), verdict("unknown"), verdict("accepted"))
    app = make_shop()
    transport_urls.register("post", lambda parsed: keyed)
    send_templated_emails([NewEmail(template, to="a@x.example", context={**CONTEXT, "code": 1})], effects=app)
    for attempt in range(1, 4):
        drain(app)
        app.store.shift_clock(KEYED.delay_seconds(attempt, draw=lambda: 1.0) + 1)
    assert len(keyed.outgoing) == 3
    assert len({outgoing.key for outgoing in keyed.outgoing}) == len(set(keyed.bytes)) == 1
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
    assert len(keyed.outgoing) == 1
    assert (row(app, "job_history")["status"], sent(app)["state"]) == ("dead", "unknown")
