"""Who gets it: groups, the suppression list, and staging."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from effects import Effects
from effects.operate.tables.audit import audit
from effects_email import NewEmail, send_templated_emails
from effects_email.suppression import find_suppressions, suppress, unsuppress
from effects_email.transport.base import Kind, OutgoingMessage, Verdict
from tests.email.messages.conftest import CONTEXT, MakeShop, drain
from tests.email.messages.post import Post, verdict
from tests.email.messages.sending import GROUP, Send, parsed, sent
from tests.support.manual_workers import row, rows

# -- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_is_one_message_with_a_result_for_each(shop: Effects, send: Send, post: Post) -> None:
    send(**GROUP)
    drain(shop)
    [outgoing] = post.outgoing
    assert outgoing.recipients == ("a@x.example", "b@x.example", "c@y.example", "d@z.example")
    message = parsed(outgoing.data)
    assert (message["to"], message["cc"], message["bcc"]) == ("a@x.example, b@x.example", "c@y.example", None)
    assert b"d@z.example" not in outgoing.data
    results = [(recipient["kind"], recipient["outcome"]) for recipient in rows(shop, "email_recipients")]
    assert results == [("to", "accepted"), ("to", "accepted"), ("cc", "accepted"), ("bcc", "accepted")]


def test_only_recipients_without_the_message_are_tried_again(shop: Effects, send: Send, post: Post) -> None:
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
    outcomes = [recipient["outcome"] for recipient in rows(shop, "email_recipients")]
    assert outcomes == ["accepted", "accepted", "refused_recipient", "refused_recipient"]
    assert [len(find_suppressions(address, effects=shop)) for address in ("c@y.example", "a@x.example")] == [1, 0]


@pytest.mark.slow
def test_a_thousand_mixed_refusals_repeat_no_recipient(shop: Effects, post: Post) -> None:
    """Row 31 of the reliability table: 100 groups of 10, each recipient with a fate of its own a try."""
    dice = random.Random(31)
    kinds: list[Kind] = ["accepted", "accepted", "retry", "retry", "refused_recipient", "refused_message"]
    taken: Counter[str] = Counter()

    def fate(outgoing: OutgoingMessage) -> dict[str, Verdict]:
        verdicts = {address: verdict(dice.choice(kinds)) for address in outgoing.recipients}
        taken.update(address for address, outcome in verdicts.items() if outcome.kind == "accepted")
        return verdicts

    post.decide = fate
    groups = [[f"u{n}-{m}@x.example" for m in range(10)] for n in range(100)]
    send_templated_emails([NewEmail("welcome", to=to, group=True, context=CONTEXT) for to in groups], effects=shop)
    while rows(shop, "jobs"):
        drain(shop)
        shop.store.shift_clock(3600)
    assert max(taken.values()) == 1
    recorded = [recipient["outcome"] for recipient in rows(shop, "email_recipients")]
    assert recorded.count("accepted") == len(taken) > 500
    assert set(recorded) == {"accepted", "refused_recipient", "refused_message"}
    assert audit(shop.store, shop.ledgers) == []


def test_a_group_without_an_accepted_recipient_is_dead(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("refused_recipient")]
    send(**GROUP)
    assert drain(shop) == {"dead": 1}
    assert {recipient["outcome"] for recipient in rows(shop, "email_recipients")} == {"refused_recipient"}


# -- suppression and staging -----------------------------------------------------------------------------------------


def test_a_suppressed_recipient_gets_nothing_and_no_job_is_dead(shop: Effects, send: Send, post: Post) -> None:
    suppress("ann@example.com", effects=shop)
    assert send().suppressed
    assert drain(shop) == {"cancelled": 1}
    assert post.outgoing == []
    assert (sent(shop)["state"], sent(shop)["outcome"]) == ("abandoned", "suppressed")
    assert row(shop, "job_history")["error_code"] == "suppressed"


def test_the_list_is_checked_again_before_sending(shop: Effects, send: Send, post: Post) -> None:
    assert not send(to="late@example.com").suppressed
    suppress("early@example.com", effects=shop)
    assert send(to="early@example.com").suppressed
    suppress("late@example.com", effects=shop)
    unsuppress("early@example.com", effects=shop)
    drain(shop)
    assert post.sent_to() == [("early@example.com",)]
    assert {email["outcome"] for email in rows(shop, "sent_emails")} == {"accepted", "suppressed"}


def test_a_groups_suppressed_recipients_are_left_out(shop: Effects, send: Send, post: Post) -> None:
    suppress("b@x.example", effects=shop)
    assert not send(**GROUP).suppressed
    drain(shop)
    assert post.sent_to() == [("a@x.example", "c@y.example", "d@z.example")]
    assert [recipient["outcome"] for recipient in rows(shop, "email_recipients")] == [
        "accepted", "suppressed", "accepted", "accepted",
    ]  # fmt: skip


def test_staging_sends_everything_to_one_address(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(email_redirect="Team <team@shop.example>")
    emails = [NewEmail("welcome", to="a@x.example", context=CONTEXT), NewEmail("welcome", context=CONTEXT, **GROUP)]  # type: ignore[arg-type]
    send_templated_emails(emails, effects=app)
    drain(app)
    assert post.sent_to() == [("team@shop.example",)] * 2
    for outgoing in post.outgoing:
        message = parsed(outgoing.data)
        assert (message["to"], message["cc"]) == ("Team <team@shop.example>", None)
        assert outgoing.source.to[0].spec == "team@shop.example"
    meant = {parsed(outgoing.data)["x-original-to"] for outgoing in post.outgoing}
    assert meant == {"a@x.example", "a@x.example, b@x.example, c@y.example, d@z.example"}


def test_a_bounce_of_the_staging_redirect_suppresses_no_recipient(make_shop: MakeShop, post: Post) -> None:
    post.moves = [verdict("refused_recipient", suppress="hard")]
    app = make_shop(email_redirect="team@shop.example")
    send_templated_emails([NewEmail("welcome", to="a@x.example", context=CONTEXT)], effects=app)
    assert drain(app) == {"dead": 1}
    assert find_suppressions("a@x.example", effects=app) == find_suppressions("team@shop.example", effects=app) == []


@pytest.mark.slow
def test_held_mail_waits_and_uses_up_no_attempt(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(email_hold=True)
    send_templated_emails([NewEmail("welcome", to="a@x.example", context=CONTEXT)], effects=app)
    for _ in range(3):
        drain(app)
        app.store.shift_clock(7 * 86_400)
    assert post.outgoing == []
    assert row(app, "jobs")["attempts"] == 0
    assert "EFFECTS_EMAIL_HOLD" in row(app, "limits")["pause_reason"]
    app.dispose()
    free = make_shop()
    free.store.shift_clock(21 * 86_400)
    assert drain(free) == {"succeeded": 1}
