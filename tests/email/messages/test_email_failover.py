"""A list of transports: the next one gets a message only where the one before it surely did not send it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from effects import ConfigurationError, Effects
from effects.operate.tables.audit import audit
from effects_email import EmailReceipt, send_templated_email
from effects_email.admin import get_email
from effects_email.settings import EmailSettings
from effects_email.transport import registry
from effects_email.transport import url as transport_urls
from effects_email.transport.base import Reply, Verdict
from effects_email.transport.registry import TRIAL_SECONDS, Rests
from tests.cli.conftest import Run
from tests.email.messages.conftest import CONTEXT, MakeShop, drain
from tests.email.messages.post import KeyedPost, Post, verdict
from tests.email.messages.sending import sent
from tests.support.manual_workers import row, rows

PAST_EVERY_WAIT_SECONDS = 7200.0


class Backup(KeyedPost):
    """The second of the list."""

    name = "backup"


@pytest.fixture
def backup() -> Backup:
    return Backup()


@pytest.fixture
def pair(make_shop: MakeShop, backup: Backup) -> Iterator[Effects]:
    """An app whose mail goes to `post`, and by `backup` where that one surely did not send it."""
    transport_urls.register("backup", lambda parsed: backup)
    yield make_shop(email_transports={"backup": "backup://there"}, email_failover="default,backup")
    transport_urls._registered.pop("backup")


@pytest.fixture
def send_pair(pair: Effects) -> Callable[..., EmailReceipt]:
    def call(template: str = "welcome", **options: Any) -> EmailReceipt:
        arguments = {"to": "ann@example.com", "context": CONTEXT, "effects": pair, **options}
        return send_templated_email(template, **arguments)

    return call


def drain_all(app: Effects) -> None:
    """Until nothing is left to do."""
    for _ in range(10):
        drain(app)
        if not rows(app, "jobs"):
            return
        app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
    raise AssertionError("it never ends")


def about(kind: Any, topic: Any) -> Verdict:
    return Verdict(kind=kind, code="x", reason="it was", reply=Reply(stage="rcpt", code=450), about=topic)


# The first transport's verdict → whether the second one gets the message.
TABLE: list[tuple[Verdict, bool]] = [
    (verdict("accepted"), False),
    (verdict("retry"), True),
    (verdict("throttle"), True),
    (verdict("config"), True),
    (verdict("transport_down"), True),
    (verdict("refused_message"), False),
    (verdict("refused_recipient", suppress="hard"), False),
    (verdict("unknown"), False),
    (about("retry", "server"), True),
    (about("retry", "recipient"), False),  # greylisted, full: by another way it is the same mailbox
    (about("retry", "message"), False),
    (Verdict(kind="retry", code="x", reason="under way", reply=Reply(stage="request", code=409)), False),
]


@pytest.mark.parametrize(("said", "passes"), TABLE, ids=lambda value: getattr(value, "kind", ""))
def test_the_second_one_gets_what_the_first_surely_did_not_send(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup, said: Verdict, passes: bool
) -> None:
    post.moves = [said]
    receipt = send_pair()
    drain(pair)
    pair.store.shift_clock(2)
    drain(pair)
    assert (len(post.outgoing), len(backup.outgoing)) == (1, int(passes))
    record = get_email(pair, receipt.key)
    assert record.used_transport == ("backup" if passes else "default")
    assert [attempt.transport for attempt in record.attempts] == (["backup"] if passes else []) + ["default"]
    if passes:
        assert (record.state, record.tries, post.bytes) == ("done", 1, backup.bytes)
    assert audit(pair.store, pair.ledgers) == []


@pytest.mark.slow
def test_what_the_second_may_have_sent_stays_with_it(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup
) -> None:
    post.moves = [verdict("transport_down"), verdict("accepted")]
    backup.moves = [verdict("unknown"), verdict("transport_down"), verdict("accepted")]
    send_pair()
    drain_all(pair)
    assert (len(post.outgoing), len(backup.outgoing)) == (1, 3)
    assert len(set(backup.bytes)) == 1
    assert (post.asked, backup.asked) == (0, 3)  # after the silence, and before each repeat
    assert (sent(pair)["state"], sent(pair)["used_transport"]) == ("done", "backup")


def test_what_the_first_may_have_sent_is_not_passed_on(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup
) -> None:
    post.moves = [verdict("unknown"), verdict("transport_down"), verdict("throttle"), verdict("config")]
    post.moves += [verdict("retry"), verdict("accepted")]
    send_pair()
    drain_all(pair)
    assert (len(post.outgoing), backup.outgoing) == (6, [])


@pytest.mark.slow
def test_where_both_did_not_send_the_message_waits_and_begins_with_the_first(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup
) -> None:
    post.moves = backup.moves = [verdict("retry"), verdict("retry"), verdict("accepted")]
    send_pair()
    drain(pair)
    pair.store.shift_clock(2)
    drain(pair)
    assert (row(pair, "jobs")["status"], row(pair, "jobs")["attempts"]) == ("failed", 1)
    drain_all(pair)
    assert (len(post.outgoing), len(backup.outgoing)) == (3, 2)


@pytest.mark.slow
def test_while_all_of_a_list_rest_its_mail_waits(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup
) -> None:
    post.moves = backup.moves = [verdict("transport_down")]
    for number in range(5):
        send_pair(event_id=f"signup:{number}")
    drain(pair)
    for _ in range(3):
        pair.store.shift_clock(20)
        drain(pair)
    assert 1 <= len(post.outgoing) <= 5  # those of the first wave
    assert 1 <= len(backup.outgoing) <= 5
    assert {job["status"] for job in rows(pair, "jobs")} == {"queued"}
    assert row(pair, "limits")["limit_key"] == "email:default"


@pytest.mark.slow
def test_a_group_goes_on_with_those_who_are_left(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, backup: Backup
) -> None:
    ann, ben = "ann@example.com", "ben@example.com"
    post.moves = [{ann: verdict("accepted"), ben: verdict("retry")}]
    send_pair(to=[ann, ben], group=True)
    drain_all(pair)
    assert (post.sent_to(), backup.sent_to()) == ([(ann, ben)], [(ben,)])
    assert sent(pair)["state"] == "done"


def test_a_transport_outside_the_list_has_no_other(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(email_transports={"bulk": "post://bulk"}, email_failover="bulk,default")
    post.moves = [verdict("retry"), verdict("accepted")]
    send_templated_email("welcome", to="ann@example.com", context=CONTEXT, effects=shop)
    drain(shop)
    assert row(shop, "jobs")["status"] == "failed"


def test_the_command_shows_the_transport_of_each_attempt(
    pair: Effects, send_pair: Callable[..., EmailReceipt], post: Post, run: Run
) -> None:
    post.moves = [verdict("config")]
    receipt = send_pair()
    drain(pair)
    pair.store.shift_clock(2)
    drain(pair)
    shown = run("email", "show", receipt.key, "--json").json
    tries = [(attempt["transport"], attempt["outcome"], attempt["code"]) for attempt in shown["attempts"]]
    assert tries == [("backup", "succeeded", None), ("default", "paused", "test_config")]
    assert (shown["transport"], shown["used_transport"]) == ("default", "backup")
    text = run("email", "show", receipt.key).out
    assert "used transport" in text
    assert "test_config" in text


@pytest.mark.parametrize(
    "setting", ["default", "default,default", "default,Backup", "a,b a,c", "default,", "default, backup"]
)
def test_a_list_that_cannot_be_is_refused(setting: str) -> None:
    with pytest.raises(ConfigurationError, match="EFFECTS_EMAIL_FAILOVER"):
        EmailSettings.from_environment({"EFFECTS_EMAIL_FAILOVER": setting})


def test_a_transport_of_a_list_must_be_set(make_shop: MakeShop) -> None:
    app = make_shop(email_failover="default,backup")
    with pytest.raises(Exception, match="EFFECTS_EMAIL_TRANSPORT_BACKUP"):
        drain(app)


def test_one_message_at_a_time_tries_a_transport_whose_rest_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    resting, now = Rests(), [1000.0]
    monkeypatch.setattr(registry.time, "monotonic", lambda: now[0])
    assert resting.may_try("default")
    resting.down("default")
    assert not resting.may_try("default")
    now[0] += 14
    assert resting.is_free("default")
    assert [resting.may_try("default") for _ in range(3)] == [True, False, False]
    now[0] += TRIAL_SECONDS  # the trial never came back
    assert [resting.may_try("default") for _ in range(3)] == [True, False, False]
    assert resting.down("default") == 30.0
    now[0] += 28
    assert [resting.may_try("default"), resting.may_try("default")] == [True, False]
    resting.up("default")
    assert [resting.may_try("default") for _ in range(3)] == [True, True, True]
    assert resting.down("default") == 15.0
    resting.rest("default", 100)
    assert 99 < resting.seconds_left(["default"]) <= 100
    assert resting.seconds_left(["default", "backup"]) == 0.0
