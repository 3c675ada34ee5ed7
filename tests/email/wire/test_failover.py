"""A first transport that dies at each stage, and a second one: which messages each of the two has in the end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.email.wire.post import PAST_EVERY_WAIT_SECONDS, SENDER, Post, copies, write_templates
from tests.peers.smtp import CUT, RESET, STALL, SmtpPeer, Step
from tests.support.processes import Fleet, fleet
from tests.support.sampling import is_full, sample

KEYS = f"k1={generate_key()}"
LISTS = "default,backup"
STAGES = ("banner", "ehlo", "mail", "rcpt", "data", "body", "dot")
ACTS: dict[str, Step] = {
    "cut": CUT, "reset": RESET, "stall": STALL, "4xx": "451 4.3.0 not now", "5xx": "554 5.7.0 relaying denied",
    "garbage": b"\x00\xff what is this\r\n",
}  # fmt: skip
CASES = [(stage, act) for stage in STAGES for act in ACTS if (stage, act) not in {("body", "garbage")}]
MAILS = 500 if is_full() else 60
PATIENCE = "connect_timeout=1&timeout=1&answer_timeout=1"


@pytest.fixture
def second() -> Iterator[SmtpPeer]:
    with SmtpPeer() as peer:
        yield peer


def the_app(app_factory: AppFactory, templates: Path, first: SmtpPeer, second: SmtpPeer) -> Effects:
    return app_factory(
        job_types=[], keys=KEYS, templates=str(templates), email_from=SENDER, email_failover=LISTS,
        smtp_url=f"{first.url}?{PATIENCE}", email_transports={"backup": second.url},
    )  # fmt: skip


@pytest.mark.slow
def test_no_message_is_sent_by_both(app_factory: AppFactory, second: SmtpPeer, tmp_path: Path) -> None:
    """Each server is asked what it may have taken; the first refuses what it answers with 4xx or 5xx."""
    templates, numbers = write_templates(tmp_path), iter(range(MAILS))
    cases = sample(CASES, 8)
    for turn, (stage, act) in enumerate(cases):
        share = MAILS // len(cases) + (turn < MAILS % len(cases))
        with SmtpPeer({stage: ACTS[act]}) as first:
            post = Post(the_app(app_factory, templates, first, second), templates, first.url, KEYS)
            written = [post.write(next(numbers), on_unknown="hold") for _ in range(share)]
            for _ in range(6):
                Worker(post.app).drain(60)
                post.app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
            may_have = set(copies([message.data for message in first.messages]))
        by_first = set() if act in ("4xx", "5xx") else may_have
        by_second = copies([message.data for message in second.messages])
        states = post.states()
        assert not by_first & by_second.keys(), (stage, act)
        for message_id in written:
            expected = {"unknown"} if message_id in by_first else {"done", "unknown", "refused", "intended"}
            assert states[message_id] in expected, (stage, act, states[message_id])
            assert by_second[message_id] == (states[message_id] == "done"), (stage, act, states[message_id])
        if stage in ("banner", "ehlo", "mail") or act == "4xx":
            assert {states[message_id] for message_id in written} == {"done"}, (stage, act)
        post.app.dispose()


@pytest.mark.slow
def test_a_dead_first_one_does_not_make_each_message_wait(
    app_factory: AppFactory, second: SmtpPeer, tmp_path: Path
) -> None:
    templates = write_templates(tmp_path)
    with SmtpPeer({"banner": STALL}) as first:
        app = the_app(app_factory, templates, first, second)
        post = Post(app, templates, first.url, KEYS)
        written = {post.write(number) for number in range(40)}
        for _ in range(3):
            Worker(app).drain(60)
            app.store.shift_clock(2)
        assert first.connections <= app.settings.threads
    assert set(copies([message.data for message in second.messages])) == written
    assert set(post.states().values()) == {"done"}


# Where a worker dies while it speaks to the second one → copies that this one has in the end. The first is alive again
# by then, and has none: what the second may have sent stays with it.
KILLS = {"email.enveloped": 1, "email.released": 1, "email.body": 1, "email.dot": 2, "settle.before": 2}


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.parametrize("point", KILLS)
def test_a_kill_at_the_second_one_leaves_the_message_to_it(
    point: str, app_factory: AppFactory, processes: Fleet, second: SmtpPeer, tmp_path: Path
) -> None:
    templates = write_templates(tmp_path)
    # Its first transport answers at the banner: no crash point of a message is passed there but that of settling.
    count = 2 if point == "settle.before" else 1
    with SmtpPeer({"banner": ["421 4.3.2 not now"]}) as first:
        post = Post(the_app(app_factory, templates, first, second), templates, f"{first.url}?{PATIENCE}", KEYS)
        message_id = post.write(on_unknown="repeat_once")
        more = {"EFFECTS_EMAIL_TRANSPORT_BACKUP": second.url, "EFFECTS_EMAIL_FAILOVER": LISTS}
        child = processes.worker(
            app="tests.email.wire.crash_app:app", EFFECTS_CRASHPOINT=f"{point}:{count}:kill", **post.environment, **more
        )
        assert child.wait() == -signal.SIGKILL, child.output
        post.app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
        post.drain()
        assert first.messages == []
    assert copies([message.data for message in second.messages]) == {message_id: KILLS[point]}
    assert post.outcomes()[-2:] == ("lost", "succeeded")
    assert post.states() == {message_id: "done"}
    assert post.rows("SELECT used_transport FROM effects_sent_emails") == [{"used_transport": "backup"}]
