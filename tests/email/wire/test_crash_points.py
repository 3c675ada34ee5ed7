"""Every crash point of a message × kill, raise, pause past the lease × policy: what the server got, what we say of it.

M1 to M5, S1, S2 and A1 of the crash table: S1 and M1 are `connected` and `enveloped`, S2 is `released` and `data`, M2
is `body`, M3 is `dot`, M4 is `answered` and `perform.after`, M5 is `quit`, A1 is `settle.before`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from effects.keys.encryption import generate_key
from effects.kit import crashpoints
from effects.retry import OnUnknown
from effects_email.transport.smtp import transaction as smtp_transaction
from tests.conftest import AppFactory
from tests.email.wire.post import PAST_EVERY_WAIT_SECONDS, SENDER, Post, write_templates
from tests.peers.smtp import SmtpPeer
from tests.support.processes import Child, Fleet, fleet
from tests.support.sampling import sample
from tests.support.waiting import wait_until

FILLING = "x" * 70 + "\n"
KEYS = f"k1={generate_key()}"

# Point, action → for `hold` and for `repeat_once`: copies that the server has in the end, and the attempts' outcomes.
FREE = ((1,), ("lost", "succeeded"))
GONE, TAKEN = ((0,), ("lost",)), ((1,), ("lost",))
ONCE, TWICE = ((1,), ("lost", "succeeded")), ((2,), ("lost", "succeeded"))
TABLE = {
    ("email.connected", "kill"): (FREE, FREE),
    ("email.enveloped", "kill"): (FREE, FREE),
    ("email.released", "kill"): (GONE, ONCE),
    ("email.data", "kill"): (GONE, ONCE),
    ("email.body", "kill"): (GONE, ONCE),
    ("email.dot", "kill"): (TAKEN, TWICE),
    ("email.answered", "kill"): (TAKEN, TWICE),
    ("email.quit", "kill"): (((1,), ("succeeded",)),) * 2,
    ("perform.after", "kill"): (TAKEN, TWICE),
    ("settle.before", "kill"): (TAKEN, TWICE),
    ("settle.committed", "kill"): (((1,), ("succeeded",)),) * 2,
    ("email.connected", "raise"): (((1,), ("failed", "succeeded")),) * 2,
    ("email.enveloped", "raise"): (((1,), ("failed", "succeeded")),) * 2,
    ("email.released", "raise"): (((0,), ("unknown",)), ((1,), ("unknown", "succeeded"))),
    ("email.data", "raise"): (((0,), ("unknown",)), ((1,), ("unknown", "succeeded"))),
    ("email.body", "raise"): (((0,), ("unknown",)), ((1,), ("unknown", "succeeded"))),
    ("email.dot", "raise"): (((1,), ("unknown",)), ((2,), ("unknown", "succeeded"))),
    ("email.answered", "raise"): (((1,), ("unknown",)), ((2,), ("unknown", "succeeded"))),
    ("email.quit", "raise"): (((1,), ("succeeded",)),) * 2,
    # The woken worker finds that the lease is gone and sends nothing; or it had the mark in time, and may still send.
    ("email.connected", "pause"): (FREE, FREE),
    ("email.enveloped", "pause"): (FREE, FREE),
    ("email.released", "pause"): (((0, 1), ("lost",)), ((1, 2), ("lost", "succeeded"))),
    ("email.data", "pause"): (((0, 1), ("lost",)), ((1, 2), ("lost", "succeeded"))),
    ("email.body", "pause"): (((0, 1), ("lost",)), ((1, 2), ("lost", "succeeded"))),
    ("email.dot", "pause"): (TAKEN, TWICE),
    ("email.answered", "pause"): (TAKEN, TWICE),
    ("email.quit", "pause"): (((1,), ("succeeded",)),) * 2,
}
POLICIES: tuple[OnUnknown, ...] = ("hold", "repeat_once")
# After a kill that leaves a doubt, both policies on both databases; of the others each policy on one of the two.
DOUBTFUL = [case for case, (hold, once) in TABLE.items() if case[1] == "kill" and hold != once]
CASES = sample([(*case, policy) for case in DOUBTFUL for policy in POLICIES], 6)
TURNS = sample([(*case, turn) for turn, case in enumerate(case for case in TABLE if case not in DOUBTFUL)], 5)


@pytest.fixture
def processes(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(database_url, tmp_path) as workers:
        yield workers


@pytest.fixture
def server() -> Iterator[SmtpPeer]:
    with SmtpPeer() as peer:
        yield peer


@pytest.fixture
def post(app_factory: AppFactory, tmp_path: Path, server: SmtpPeer) -> Post:
    """An app whose mail goes to the scripted server."""
    templates = write_templates(tmp_path)
    url = f"{server.url}?idle_seconds=0.1"
    app = app_factory(job_types=[], keys=KEYS, smtp_url=url, email_from=SENDER, templates=str(templates))
    return Post(app, templates, url, KEYS)


def test_the_table_has_every_point_of_ours() -> None:
    assert smtp_transaction.__name__  # which declares them
    points = {name for name in crashpoints.POINTS if name.startswith("email.") and not name.startswith("email.token.")}
    points -= {"email.behind"}  # of two messages
    assert points
    for action in crashpoints.ACTIONS:
        assert {name for name, struck_by in TABLE if struck_by == action and name.startswith("email.")} == points


@pytest.mark.slow
@pytest.mark.parametrize(("point", "action", "policy"), CASES, ids=["-".join(case) for case in CASES])
def test_a_kill_in_doubt_costs_no_message_and_makes_at_most_one_copy_more(
    point: str, action: str, policy: OnUnknown, post: Post, processes: Fleet, server: SmtpPeer
) -> None:
    _strike_and_judge(point, action, policy, post, processes, server)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "action", "turn"), TURNS, ids=[f"{point}-{action}" for point, action, _ in TURNS])
def test_any_other_crash_ends_as_the_table_lists(
    point: str, action: str, turn: int, post: Post, processes: Fleet, server: SmtpPeer
) -> None:
    policy = POLICIES[(turn + post.app.store.is_postgresql) % 2]
    _strike_and_judge(point, action, policy, post, processes, server)


def _strike_and_judge(
    point: str, action: str, policy: OnUnknown, post: Post, processes: Fleet, server: SmtpPeer
) -> None:
    copies, outcomes = TABLE[point, action][POLICIES.index(policy)]
    message_id = post.write(on_unknown=policy, filling=FILLING * 500)
    child = processes.worker(
        app="tests.email.wire.crash_app:app", EFFECTS_CRASHPOINT=f"{point}:1:{action}", **post.environment
    )
    _struck(child, action, post)
    post.app.store.shift_clock(PAST_EVERY_WAIT_SECONDS)
    post.drain()
    if action == "pause":
        child.thaw()
        child.wait_logged("worker.fenced_off")
    child.send(signal.SIGTERM)
    child.wait()
    received = [message.data for message in server.messages]
    assert len(received) in copies
    assert post.faults(received, copies_max=1 if policy == "hold" else 2) == []
    assert post.outcomes() == outcomes
    # What a worker that was frozen learns late resolves the message that waits for a person.
    is_known = outcomes[-1] == "succeeded" or (action == "pause" and len(received) > 0)
    assert post.states() == {message_id: "done" if is_known else "unknown"}
    if outcomes[-1] != "succeeded":
        [job] = post.rows("SELECT status, last_error FROM effects_job_history")
        assert job["status"] == "dead"
        assert "(held for an operator)" in job["last_error"]


def _struck(child: Child, action: str, post: Post) -> None:
    """Return when the action has happened at its point."""
    if action == "kill":
        assert child.wait() == -signal.SIGKILL, child.output
    elif action == "pause":
        child.wait_frozen()
    else:
        wait_until(lambda: post.rows("SELECT 1 AS found FROM effects_job_attempts"))
