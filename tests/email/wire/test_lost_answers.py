"""Answers that are lost after the dot, workers that are killed: what was received, and what is said of it."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from effects.keys.encryption import generate_key
from tests.conftest import AppFactory
from tests.email.wire.post import SENDER, Post, copies, write_templates
from tests.peers.smtp import CUT, Script, SmtpPeer
from tests.peers.smtp_proxy import SmtpProxy
from tests.support.processes import fleet
from tests.support.waiting import wait_until

KEYS = f"k1={generate_key()}"
KILLS = max(5, int(os.environ.get("EFFECTS_TEST_KILLS", "200")) // 25)
MESSAGES = 8 * KILLS
IMPATIENCE = {"EFFECTS_LEASE_SECONDS": "1", "EFFECTS_HEARTBEAT_SECONDS": "0.2"}


def post_of(app_factory: AppFactory, folder: Path, url: str) -> Post:
    templates = write_templates(folder)
    app = app_factory(
        job_types=[], keys=KEYS, smtp_url=url, email_from=SENDER, templates=str(templates), lease_seconds=1.0,
        heartbeat_seconds=0.2,
    )  # fmt: skip
    return Post(app, templates, url, KEYS)


@pytest.mark.slow
@pytest.mark.parametrize(("script", "verdict"), [
    ({"dot": [CUT, "550 5.7.1 refused"]}, "refused by the dot"),
    ({"dot": [CUT], "rcpt": ["250 2.1.5 ok", "550 5.1.1 no such user"]}, "refused at RCPT"),
    ({"dot": [CUT, CUT]}, "lost again"),
], ids=["dot", "rcpt", "again"])  # fmt: skip
def test_later_outcomes_leave_an_unknown_unknown(
    script: Script, verdict: str, app_factory: AppFactory, tmp_path: Path
) -> None:
    """A refusal of the second copy says nothing about the first."""
    with SmtpPeer(script) as server:
        post = post_of(app_factory, tmp_path, server.url)
        message_id = post.write(on_unknown="repeat_once")
        post.drain()
        assert post.states() == {message_id: "unknown"}
        assert len(post.outcomes()) == 2, verdict
        assert [row["status"] for row in post.rows("SELECT status FROM effects_job_history")] == ["dead"]
        assert 1 <= len(server.messages) <= 2


def test_the_repeat_of_an_unknown_waits_and_has_the_same_bytes(app_factory: AppFactory, tmp_path: Path) -> None:
    with SmtpPeer({"dot": [CUT]}) as server:
        post = post_of(app_factory, tmp_path, server.url)
        message_id = post.write(on_unknown="repeat_once")
        post.drain()
        assert [message.data for message in server.messages] == [server.messages[0].data] * 2
        assert post.states() == {message_id: "done"}
        assert post.outcomes() == ("unknown", "succeeded")


@pytest.mark.slow
def test_a_proxy_that_loses_every_answer_makes_one_copy_with_hold_and_two_with_repeat_once(
    app_factory: AppFactory, tmp_path: Path
) -> None:
    with SmtpPeer() as server, SmtpProxy(server.port, lose=lambda: True) as proxy:
        post = post_of(app_factory, tmp_path, proxy.url)
        held = {post.write(number, on_unknown="hold") for number in range(10)}
        repeated = {post.write(number, on_unknown="repeat_once") for number in range(10, 20)}
        post.drain()
        counted = copies([message.data for message in server.messages])
        assert {message_id: counted[message_id] for message_id in held} == dict.fromkeys(held, 1)
        assert {message_id: counted[message_id] for message_id in repeated} == dict.fromkeys(repeated, 2)
        assert post.faults([message.data for message in server.messages], copies_max=2) == []
        assert Counter(post.states().values()) == {"unknown": 20}
        assert proxy.lost == 30


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(120 + 6 * KILLS)
@pytest.mark.parametrize(("threads", "options"), [(2, ""), (8, "?connections=1")], ids=["alone", "announced"])
def test_kills_and_lost_answers_lose_nothing(
    threads: int, options: str, app_factory: AppFactory, tmp_path: Path, database_url: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Workers are killed at random moments while a proxy loses a fifth of the answers. The server keeps the books.

    Over one connection, each message is announced behind another.

    `EFFECTS_TEST_SEED` repeats the moments; `EFFECTS_TEST_KILLS` makes it longer.
    """
    seed = int(os.environ.get("EFFECTS_TEST_SEED") or random.SystemRandom().randrange(2**32))
    draw, pause = random.Random(seed), threading.Event()

    def lose() -> bool:
        return draw.random() < 0.2

    with (
        SmtpPeer() as server,
        SmtpProxy(server.port, lose=lose, wait=lambda: pause.wait(0.03) and None) as proxy,
        fleet(database_url, tmp_path) as processes,
    ):
        post = post_of(app_factory, tmp_path, f"{proxy.url}{options}")
        held = {post.write(number, on_unknown="hold") for number in range(0, MESSAGES, 2)}
        repeated = {post.write(number, on_unknown="repeat_once") for number in range(1, MESSAGES, 2)}
        for _ in range(KILLS):
            before = len(server.messages)
            child = processes.worker("--queue", f"emails={threads}", app="tests.email.wire.crash_app:app",
                                     **{**post.environment, **IMPATIENCE})  # fmt: skip
            wait_until(lambda before=before: len(server.messages) > before or _idle(post))  # type: ignore[misc]
            pause.wait(draw.uniform(0, 0.1))
            child.send(signal.SIGKILL)
            child.wait()
        post.drain()
        received = [message.data for message in server.messages]
        counted, states = copies(received), post.states()
    unknown = Counter(states.values())["unknown"]
    summary = f"seed {seed}: {MESSAGES} messages, {KILLS} kills, {proxy.lost} answers lost, {unknown} unknown"
    with capsys.disabled():
        print(f"\n{summary}, {sum(counted.values()) - len(counted)} second copies")
    assert post.faults(received, copies_max=2) == [], summary
    assert len(post.faults([], copies_max=2)) > MESSAGES - unknown, summary  # the judge does notice a loss
    assert max(counted[message_id] for message_id in held) == 1, summary
    assert all(states[message_id] in ("done", "unknown") for message_id in held | repeated), summary
    assert proxy.lost > 0, summary


def _idle(post: Post) -> bool:
    """Nothing is due now."""
    return not post.rows("SELECT 1 AS found FROM effects_jobs WHERE status IN ('queued', 'running')")
