"""What events prove of a message that may have been sent: for whom, and whenever they come."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import TypeAlias

import pytest
import sqlalchemy as sa

from effects import Effects
from effects.operate.tables.audit import audit
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects_email import EmailReceipt, forget_address
from effects_email.events import EventKind, IncomingEvent, take
from effects_email.transport.base import OutgoingMessage, Verdict
from effects_email.transport.http_api.fields import reference
from tests.email.messages.conftest import drain
from tests.email.messages.post import Post, verdict
from tests.email.messages.sending import Send, sent
from tests.support.manual_workers import ManualWorker, row, rows
from tests.support.sampling import sample
from tests.support.waiting import wait_until

ANN, BEN = "ann@x.example", "ben@x.example"
PAIR = {"to": [ANN, BEN], "group": True}
OK, LATER, UNKNOWN = verdict("accepted"), verdict("retry"), verdict("unknown")

Tell: TypeAlias = Callable[..., None]


@pytest.fixture
def tell(shop: Effects) -> Tell:
    """`tell(message_id, recipient)`: a server reports of a message, to no one by name where the recipient is None."""
    numbers = count()

    def report(message_id: str, recipient: str | None, kind: EventKind = "delivered") -> None:
        event = IncomingEvent(
            provider="dsn", provider_event_id=f"e{next(numbers)}", kind=kind, code=None,
            reference=reference(message_id), provider_id=None, recipient=recipient, at=None,
        )  # fmt: skip
        assert take(shop, [event])

    return report


def outcomes(app: Effects) -> list[tuple[str | None, str | None]]:
    return [(recipient["outcome"], recipient["code"]) for recipient in rows(app, "email_recipients")]


def open_letters(app: Effects) -> int:
    assert audit(app.store, app.ledgers) == []
    return len(list_dead(app.store, app.ledgers, DeadFilters()))


SENT, REPORTED = ("accepted", "test_accepted"), ("accepted", "reported")

Story: TypeAlias = tuple[list[dict[str, Verdict]], list[tuple[int, str | None]], list[tuple[str, ...]], list[object]]

# The transport's moves; of each event, before which round it comes and whom it names; who got each send; how it ended
# for either.
_STORIES: dict[str, Story] = {
    "of an earlier try, about the other": (
        [{ANN: OK, BEN: LATER}, {BEN: UNKNOWN}, {BEN: OK}], [(1, ANN)], [(ANN, BEN), (BEN,), (BEN,)], [SENT, SENT],
    ),
    "late, about the other": (
        [{ANN: OK, BEN: LATER}, {BEN: UNKNOWN}, {BEN: OK}], [(2, ANN)], [(ANN, BEN), (BEN,), (BEN,)], [SENT, SENT],
    ),
    "about no one, and they went out apart": (
        [{ANN: OK, BEN: LATER}, {BEN: UNKNOWN}, {BEN: OK}], [(2, None)], [(ANN, BEN), (BEN,), (BEN,)], [SENT, SENT],
    ),
    "about no one, and only one was taken in": (
        [{ANN: UNKNOWN, BEN: LATER}, {ANN: OK, BEN: OK}], [(1, None)], [(ANN, BEN), (ANN, BEN)], [SENT, SENT],
    ),
    "about the one in doubt": (
        [{ANN: OK, BEN: LATER}, {BEN: UNKNOWN}], [(2, BEN)], [(ANN, BEN), (BEN,)], [SENT, REPORTED],
    ),
    "about one of two in doubt": (
        [{ANN: UNKNOWN, BEN: UNKNOWN}, {BEN: OK}], [(1, ANN)], [(ANN, BEN), (BEN,)], [REPORTED, SENT],
    ),
    "about both": (
        [{ANN: UNKNOWN, BEN: UNKNOWN}], [(1, ANN), (1, BEN)], [(ANN, BEN)], [REPORTED, REPORTED],
    ),
    "about no one, and both went out together": (
        [{ANN: UNKNOWN, BEN: UNKNOWN}], [(1, None)], [(ANN, BEN)], [REPORTED, REPORTED],
    ),
    "about a stranger": (
        [{ANN: UNKNOWN, BEN: UNKNOWN}, {ANN: OK, BEN: OK}], [(1, "eve@x.example")], [(ANN, BEN)] * 2, [SENT, SENT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("story", sample(_STORIES, 4))
@pytest.mark.slow
def test_an_event_proves_a_group_message_for_whom_it_names(
    shop: Effects, send: Send, post: Post, tell: Tell, story: str
) -> None:
    moves, events, sends, ends = _STORIES[story]
    post.moves = [*moves]
    receipt = send(**PAIR)
    for turn in range(4):
        for before, recipient in events:
            if before == turn:
                tell(receipt.message_id, recipient)
        drain(shop)
        shop.store.shift_clock(2000)
    assert post.sent_to() == sends
    assert outcomes(shop) == ends
    assert (row(shop, "job_history")["status"], sent(shop)["state"]) == ("succeeded", "done")
    assert audit(shop.store, shop.ledgers) == []


def test_an_event_about_a_forgotten_recipient_speaks_for_no_other(
    shop: Effects, send: Send, post: Post, tell: Tell
) -> None:
    post.moves = [UNKNOWN, OK]
    receipt = send(**PAIR)
    tell(receipt.message_id, ANN)  # before the try's own record, as a fast server's report may come
    drain(shop)
    assert forget_address(ANN, actor="x", effects=shop).waiting == (receipt.key,)
    shop.store.shift_clock(2000)
    drain(shop)
    assert [BEN in people for people in post.sent_to()] == [True, True]
    assert outcomes(shop)[1] == SENT


def test_a_held_group_message_is_done_once_events_name_all_of_it(
    shop: Effects, send: Send, post: Post, tell: Tell
) -> None:
    post.moves = [UNKNOWN]
    receipt = send(**PAIR, on_unknown="hold")
    drain(shop)
    tell(receipt.message_id, BEN, "failed")
    tell(receipt.message_id, ANN)
    assert (sent(shop)["state"], open_letters(shop)) == ("unknown", 1)
    assert outcomes(shop) == [REPORTED, ("unknown", "test_unknown")]
    tell(receipt.message_id, BEN)
    assert (sent(shop)["state"], open_letters(shop)) == ("done", 0)
    assert outcomes(shop) == [REPORTED, REPORTED]
    assert [(action["action"], action["actor"]) for action in rows(shop, "job_actions")] == [("mark_done", "dsn")]


def test_an_event_about_another_leaves_a_held_group_message_unknown(
    shop: Effects, send: Send, post: Post, tell: Tell
) -> None:
    post.moves = [{ANN: OK, BEN: LATER}, {BEN: UNKNOWN}]
    receipt = send(**PAIR, on_unknown="hold")
    drain(shop)
    shop.store.shift_clock(100)
    drain(shop)
    tell(receipt.message_id, ANN)
    assert (sent(shop)["state"], open_letters(shop)) == ("unknown", 1)
    tell(receipt.message_id, BEN)
    assert (sent(shop)["state"], open_letters(shop)) == ("done", 0)


@pytest.mark.parametrize(("options", "named", "left"), [
    ({"to": ANN}, [ANN], 0),
    (PAIR, [ANN, BEN], 0),
    (PAIR, [ANN], 1),
    (PAIR, [None], 0),
])  # fmt: skip
def test_an_event_that_comes_before_the_unknown_is_recorded_counts(
    shop: Effects, send: Send, post: Post, tell: Tell, options: dict[str, object], named: list[str | None], left: int
) -> None:
    def report(outgoing: OutgoingMessage) -> dict[str, Verdict]:
        for recipient in named:
            tell(outgoing.message_id, recipient)
        return dict.fromkeys(outgoing.recipients, UNKNOWN)

    post.decide = report
    send(**options, on_unknown="hold")
    drain(shop)
    assert (sent(shop)["state"], open_letters(shop)) == ("unknown" if left else "done", left)
    assert [outcome == REPORTED for outcome in outcomes(shop)].count(False) == left
    assert len(post.outgoing) == 1


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("options", [{"to": ANN}, PAIR], ids=["one", "a group"])
def test_an_event_that_is_committed_while_the_unknown_is_recorded_counts(
    shop: Effects, send: Send, post: Post, tell: Tell, options: dict[str, object]
) -> None:
    """It is written before the unknown is committed, and committed after."""
    tellers: list[threading.Thread] = []
    written = threading.Event()

    def commit_late(connection: sa.Connection) -> None:
        if threading.current_thread() in tellers and not written.is_set():
            written.set()
            wait_until(lambda: is_awaited(shop))

    def report(outgoing: OutgoingMessage) -> dict[str, Verdict]:
        tellers.append(threading.Thread(target=tell, args=(outgoing.message_id, None if "group" in options else ANN)))
        tellers[0].start()
        assert written.wait(20)
        return dict.fromkeys(outgoing.recipients, UNKNOWN)

    sa.event.listen(shop.engine, "commit", commit_late)
    post.decide = report
    send(**options, on_unknown="hold")
    drain(shop)
    tellers[0].join()
    assert (sent(shop)["state"], open_letters(shop)) == ("done", 0)


def is_awaited(app: Effects) -> bool:
    """Whether a transaction waits for those that write events."""
    with app.store.read() as connection:
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'effects_email_events'::regclass"
        return connection.exec_driver_sql(waits).first() is not None


def test_an_event_that_comes_before_a_lost_worker_is_noticed_counts(shop: Effects, send: Send, tell: Tell) -> None:
    receipt: EmailReceipt = send(to=ANN, on_unknown="hold")
    manual_worker = ManualWorker(shop, queue="emails")
    manual_worker.release(manual_worker.claim_one(queue="emails"))
    tell(receipt.message_id, ANN)
    assert sent(shop)["state"] == "released"
    shop.store.shift_clock(1200)
    drain(shop)  # rescues
    assert row(shop, "job_history")["error_code"] == "lost"
    assert (sent(shop)["state"], open_letters(shop)) == ("done", 0)
