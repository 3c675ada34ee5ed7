"""Whose fault a refusal is: one is its message's, many alike are the transport's, and others show which it was."""

from __future__ import annotations

import threading

import pytest

from effects import Effects
from effects.errors import StoreUnavailable
from effects.operate.tables.audit import audit
from effects.operate.tables.limit_status import list_limits
from effects.worker.queues import worker_queues
from effects.worker.recording import settler
from effects_email import classify
from effects_email.classify import (
    ADDRESS_MESSAGES,
    ALIKE_MESSAGES,
    BEHIND_SECONDS,
    CONFIG_SECONDS,
    HOLD_SECONDS,
    LOGIN_SECONDS,
    RefusalRun,
    enough,
    likeness,
    weigh,
)
from effects_email.suppression import list_suppressions
from effects_email.tables import transports as table
from effects_email.transport.base import OutgoingMessage, Reply, Verdict
from effects_email.transport.http_api.client import ProviderExchange
from effects_email.transport.http_api.transport import Said, verdict_of
from effects_email.transport.replies.verdicts import reply_of, verdict_of_fault, verdict_of_reply
from tests.email.messages.conftest import MakeShop, drain
from tests.email.messages.post import Post
from tests.email.messages.sending import GROUP, Send
from tests.support.manual_workers import rows
from tests.support.sampling import sample

OK = "250 2.0.0 queued"
CLOSED = "550 5.7.1 You must authenticate first"  # a closed group in words that might be about our login
A_WHILE = CONFIG_SECONDS + 2 * HOLD_SECONDS


def said(text: str, stage: str = "rcpt") -> Verdict:
    return verdict_of_reply(reply_of("dot" if text.startswith("2") else stage, int(text[:3]), text[4:]))  # type: ignore[arg-type]


def answers(post: Post, **replies: str) -> None:
    """What the server says to RCPT for these local parts; the rest is taken. `everybody` is for all."""

    def decide(outgoing: OutgoingMessage) -> dict[str, Verdict]:
        return {
            address: said(replies.get(address.partition("@")[0], replies.get("everybody", OK)).format(address))
            for address in outgoing.recipients
        }

    post.decide = decide


def paused_seconds(app: Effects) -> float:
    with app.store.read() as connection:
        [limit] = list_limits(app.store, connection, paused=True)
        assert limit.paused_until is not None
        return float(limit.paused_until.timestamp() - app.store.now(connection))


def is_paused(app: Effects) -> bool:
    paused = {row["limit_key"]: row["paused_until"] for row in rows(app, "limits")}
    return paused.get("email:default") is not None


def state(app: Effects) -> dict[str, int]:
    states = [row["state"] for row in rows(app, "sent_emails")]
    return {name: states.count(name) for name in states}


# -- a fault of ours ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_closed_recipient_blocks_no_other_and_ends_dead(shop: Effects, send: Send, post: Post) -> None:
    answers(post, boss=CLOSED)
    for name in ("boss", *(f"u{number}" for number in range(50))):
        send(to=f"{name}@x.example")
    drain(shop)
    assert state(shop) == {"intended": 1, "done": 50}
    assert not is_paused(shop)
    attempts = []
    for number in range(60):
        shop.store.shift_clock(14_400 * 1.2 + 1)
        send(to=f"later{number}@x.example")
        drain(shop)
        if not rows(shop, "jobs"):
            break
        attempts.append(max(row["attempts"] for row in rows(shop, "jobs")))
    assert not is_paused(shop)
    assert attempts[:3] == sorted(attempts[:3])
    assert attempts[2] > 0
    assert state(shop) == {"refused": 1, "done": 50 + number + 1}
    assert list_suppressions(effects=shop) == []
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.slow
def test_a_fault_of_ours_pauses_the_transport_at_the_second_message_and_loses_nothing(
    shop: Effects, send: Send, post: Post
) -> None:
    answers(
        post, everybody="550 5.1.0 <hello@shop.example>: Sender address rejected: User unknown in virtual mailbox table"
    )
    for number in range(8):
        send(to=f"u{number}@x.example")
    drain(shop)
    assert is_paused(shop)
    assert len(post.outgoing) >= 2
    for _ in range(5):
        shop.store.shift_clock(A_WHILE)
        drain(shop)
    assert state(shop) == {"intended": 8}
    assert {row["attempts"] for row in rows(shop, "jobs")} == {0}
    answers(post)
    shop.store.shift_clock(A_WHILE)
    drain(shop)
    assert state(shop) == {"done": 8}
    assert rows(shop, "email_refusals") == []
    assert list_suppressions(effects=shop) == []


async def released() -> None:
    """Nothing was to be recorded."""


def provider_said(provider: str, *, status: int | None = None, failure: str | None = None) -> Verdict:
    exchange = ProviderExchange(released, 30)
    exchange.status, exchange.failure = status, failure
    return verdict_of(provider, (), exchange, Said())


LOGIN_FAULTS = {
    "535 at the login": lambda: said("535 5.7.8 wrong", "auth"),
    "534 at the login": lambda: said("534 5.7.9 too weak", "auth"),
    "530 at MAIL": lambda: said("530 5.7.0 authenticate first", "mail"),
    "530 at RCPT": lambda: said("530 5.7.1 authenticate first"),
    "a certificate": lambda: verdict_of_fault("starttls", "tls_unverified"),
    "no STARTTLS": lambda: verdict_of_fault("starttls", "not_offered"),
    "a provider's 401": lambda: provider_said("resend", status=401),
    "a provider's 403": lambda: provider_said("mailgun", status=403),
    "a provider's certificate": lambda: provider_said("ses", failure="tls_unverified"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", sample(LOGIN_FAULTS, 3))
def test_a_refused_login_pauses_the_transport_at_once_and_one_message_tries(
    shop: Effects, send: Send, post: Post, fault: str
) -> None:
    """Three messages to one person: the pause depends neither on the number of recipients nor on that of messages."""
    post.decide = lambda outgoing: dict.fromkeys(outgoing.recipients, LOGIN_FAULTS[fault]())
    for number in range(3):
        send(to="boss@x.example", event_id=str(number))
    drain(shop)
    begun, tries = len(post.outgoing), [0]
    assert 1 <= begun <= 3, "those that were under way at that moment"
    for seconds in (*LOGIN_SECONDS, LOGIN_SECONDS[-1]):
        left = paused_seconds(shop)
        assert seconds - 30 < left <= seconds
        shop.store.shift_clock(left - 5)
        drain(shop)
        assert len(post.outgoing) == begun + tries[-1], "nothing is tried before the pause ends"
        shop.store.shift_clock(7 + BEHIND_SECONDS)
        drain(shop)
        tries.append(len(post.outgoing) - begun)
    assert tries == [0, 1, 2, 3, 4, 5]
    assert {row["attempts"] for row in rows(shop, "jobs")} == {0}
    answers(post)
    shop.store.shift_clock(LOGIN_SECONDS[-1] + 10)
    drain(shop)
    assert state(shop) == {"done": 3}
    assert [row["breaker_state"] for row in rows(shop, "limits")] == ["closed"]


@pytest.mark.slow
def test_a_worker_with_the_wrong_password_costs_no_other_message_a_try(shop: Effects, send: Send, post: Post) -> None:
    """Every second message comes to the worker that cannot log in."""
    turns = iter(range(1000))

    def decide(outgoing: OutgoingMessage) -> dict[str, Verdict]:
        return dict.fromkeys(outgoing.recipients, said(OK) if next(turns) % 2 else said("535 5.7.8 wrong", "auth"))

    post.decide = decide
    for number in range(10):
        send(to=f"u{number}@x.example")
    while rows(shop, "jobs"):
        drain(shop)
        assert max((row["attempts"] for row in rows(shop, "jobs")), default=0) == 0
        shop.store.shift_clock(LOGIN_SECONDS[-1])
    assert state(shop) == {"done": 10}


@pytest.mark.slow
def test_a_single_message_waits_without_a_pause(shop: Effects, send: Send, post: Post) -> None:
    answers(post, boss=CLOSED)
    send(to="boss@x.example")
    for _ in range(3):
        drain(shop)
        shop.store.shift_clock(HOLD_SECONDS + 1)
    assert len(post.outgoing) == 3
    assert not is_paused(shop)


def test_a_fault_of_ours_in_a_message_that_others_got_is_the_recipients(shop: Effects, send: Send, post: Post) -> None:
    answers(post, b=CLOSED)
    send(**GROUP)
    drain(shop)
    assert state(shop) == {"done": 1}
    outcomes = {row["number"]: row["outcome"] for row in rows(shop, "email_recipients")}
    assert sorted(outcomes.values()) == ["accepted", "accepted", "accepted", "refused_recipient"]
    assert not is_paused(shop)
    assert list_suppressions(effects=shop) == []
    assert len(post.outgoing) == 1


@pytest.mark.slow
def test_a_throttled_recipient_does_not_delay_others(shop: Effects, send: Send, post: Post) -> None:
    answers(post, boss="421 4.7.0 Too many messages, slow down")
    send(to="boss@x.example")
    drain(shop)
    for name in ("u1", "u2"):
        send(to=f"{name}@x.example")
    drain(shop)
    assert state(shop) == {"intended": 3}  # the transport rests
    shop.store.shift_clock(60)
    drain(shop)
    assert state(shop) == {"intended": 1, "done": 2}
    others = {recipient for message in post.outgoing[1:3] for recipient in message.recipients}
    assert others == {"u1@x.example", "u2@x.example"}, "they come first; on a slow machine the first one is due again"
    shop.store.shift_clock(10)
    drain(shop)
    assert max(row["attempts"] for row in rows(shop, "jobs")) == 1  # others pass: this one uses up tries


# -- the same refusal, whatever it says --------------------------------------------------------------------------------

UNHEARD_OF = "550 5.7.0 Kimlik bilgileri {0} 4711abc"


@pytest.mark.slow
@pytest.mark.parametrize(("reply", "most"), [
    (UNHEARD_OF, ALIKE_MESSAGES), ("550 nyet {0}", ALIKE_MESSAGES), ("550 5.1.1 <{0}>: User unknown", ADDRESS_MESSAGES),
])  # fmt: skip
def test_the_same_unknown_refusal_in_a_row_pauses_the_transport(
    shop: Effects, send: Send, post: Post, reply: str, most: int
) -> None:
    answers(post, everybody=reply)
    for number in range(most + 5):
        send(to=f"u{number}@x.example")
    for _ in range(4):
        drain(shop)
        shop.store.shift_clock(A_WHILE)
    assert state(shop) == {"refused": most - 1, "intended": 6}
    assert list_suppressions(effects=shop) == []  # what the first ones had put there is taken back
    answers(post)
    shop.store.shift_clock(A_WHILE)
    drain(shop)
    assert state(shop) == {"refused": most - 1, "done": 6}
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.slow
def test_refusals_between_accepted_messages_are_counted_apart(shop: Effects, send: Send, post: Post) -> None:
    answers(post, **{f"dead{number}": "550 5.1.1 <{0}>: User unknown" for number in range(12)})
    for number in range(12):
        send(to=f"dead{number}@x.example")
        drain(shop)
        if number % 4 == 3:
            send(to=f"good{number}@x.example")
            drain(shop)
    assert state(shop) == {"refused": 12, "done": 3}
    assert not is_paused(shop)
    assert len(list_suppressions(effects=shop)) == 12


def test_refusals_between_messages_whose_outcomes_are_not_written_yet_are_counted_apart(
    make_shop: MakeShop, send: Send, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a provider, to which hundreds are on their way at a time."""
    messages = 4 * ALIKE_MESSAGES
    monkeypatch.setattr(settler, "FULL_BATCH", messages)
    monkeypatch.setattr(worker_queues, "SATURATED_SECONDS", 2.0)
    monkeypatch.setattr(worker_queues, "BUSY_SECONDS", 2.0)
    shop = make_shop(queues="emails=1")
    answers(post, **{f"u{number}": UNHEARD_OF for number in range(0, messages, 2)})
    for number in range(messages):
        send(to=f"u{number}@x.example")
    drain(shop)
    assert state(shop) == {"refused": messages // 2, "done": messages // 2}
    assert not is_paused(shop)


@pytest.mark.slow
def test_one_recipient_refused_many_times_pauses_nothing(shop: Effects, send: Send, post: Post) -> None:
    answers(post, boss="550 5.7.0 your message is not wanted")
    for _ in range(ALIKE_MESSAGES * 2):
        send(to="boss@x.example")
        drain(shop)
    assert state(shop) == {"refused": ALIKE_MESSAGES * 2}
    assert not is_paused(shop)


def test_different_refusals_are_counted_apart(shop: Effects, send: Send, post: Post) -> None:
    words = ("apple", "pear", "plum", "fig", "quince")
    answers(post, **{f"u{number}": f"550 5.7.0 {words[number % 5]}" for number in range(20)})
    for number in range(20):
        send(to=f"u{number}@x.example")
    while rows(shop, "jobs"):
        drain(shop)
    assert state(shop) == {"refused": 20}
    assert not is_paused(shop)


def test_threads_count_their_refusals_independently(shop: Effects) -> None:
    verdict, seen, lock = said("550 5.7.0 no"), list[int](), threading.Lock()
    start = threading.Barrier(8)

    def refuse(thread: int) -> None:
        start.wait()
        for number in range(3):
            run = classify.count(shop, "default", verdict, f"u{thread}.{number}@x.example", None)
            with lock:
                seen.append(run.messages)

    threads = [threading.Thread(target=refuse, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 25))
    with shop.store.begin() as connection:
        table.clear_refusals(shop.store, connection, ["default"])
    assert classify.count(shop, "default", verdict, "u@x.example", None).messages == 1


def test_an_unavailable_database_does_not_change_a_refusal(shop: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise StoreUnavailable

    monkeypatch.setattr(shop.store, "begin", away)
    verdict = said("550 5.7.0 no")
    assert weigh(verdict, classify.count(shop, "default", verdict, "u@x.example", None), None) == "as_said"


# -- the rules, without a database -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second", "alike"), [
    ("5.1.1 <ann@x.example>: User unknown", "5.1.1 <bob@y.example>: User unknown", True),
    ("5.7.1 no (id 4711-ab)", "5.7.1 no (id 9-zz)", True),
    ("5.7.1 no [mx1.x.example]", "5.7.1 no [mx2.x.example]", True),
    ("5.7.1 No  THANKS", "5.7.1 no thanks", True),
    ("5.7.1 refused\n5.7.1 for ann@x.example", "5.7.1 refused\n5.7.1 for bob@x.example", True),
    ("5.7.1 no", "5.7.1 yes", False), ("5.7.1 no", "5.1.1 no", False),
])  # fmt: skip
def test_names_numbers_and_ids_make_no_difference(first: str, second: str, *, alike: bool) -> None:
    assert (likeness(reply_of("rcpt", 550, first)) == likeness(reply_of("rcpt", 550, second))) is alike


def test_stage_and_code_make_a_difference() -> None:
    texts = {likeness(reply_of(stage, code, "no")) for stage in ("rcpt", "dot") for code in (550, 554)}  # type: ignore[arg-type]
    assert len(texts) == 4


@pytest.mark.parametrize(("reply", "messages", "held_in", "weight"), [
    (CLOSED, 1, None, "hold"), (CLOSED, 2, None, "rest"), (CLOSED, 1, "this", "hold"), (CLOSED, 9, "earlier", "own"),
    ("421 too many messages", 0, None, "as_said"), ("421 too many messages", 0, "this", "as_said"),
    ("421 too many messages", 0, "earlier", "own"),
    ("550 5.7.0 no", 4, None, "as_said"), ("550 5.7.0 no", 5, None, "rest"), ("550 5.7.0 no", 5, "earlier", "rest"),
    ("550 5.1.1 no", 19, None, "as_said"), ("550 5.1.1 no", 20, None, "rest"),
])  # fmt: skip
def test_weight_of_a_refusal(reply: str, messages: int, held_in: str | None, weight: str) -> None:
    assert weigh(said(reply), RefusalRun("this", messages), held_in) == weight


def test_temporary_refusals_and_those_before_a_message_do_not_count() -> None:
    for stage, reply in (("rcpt", "451 wait"), ("banner", "421 no"), ("rcpt", "250 ok")):
        assert not classify.is_weighed(said(reply, stage))
    assert not classify.is_weighed(said("535 5.7.8 no", "auth"))
    login = said("530 5.7.0 authenticate first", "mail")
    assert classify.is_weighed(login)
    assert weigh(login, RefusalRun("this", 2), "this") == "as_said"
    assert weigh(login, RefusalRun("this", 1), "earlier") == "own"
    fault = Verdict(kind="retry", code="closed", reason="", reply=Reply(stage="rcpt"))
    assert not classify.is_weighed(fault)
    assert enough(said("550 5.1.1 no")) > enough(said("550 5.7.0 no")) > enough(said(CLOSED)) > 1
