"""Signed mail through a real Postfix, that dies and is restarted while workers are killed, as OpenDKIM verifies it."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trustme

from effects.keys.encryption import generate_key
from effects_email.transport.registry import DOWN_SECONDS
from tests.conftest import AppFactory
from tests.email.dkim.generated import message, source
from tests.email.dkim.keys import both, published, signer, verdicts
from tests.email.wire.conftest import Opened, Released, outgoing_message
from tests.email.wire.post import SENDER, Post, copies, postfix_url, write_templates
from tests.peers.opendkim import unverified
from tests.peers.postfix import Postfix
from tests.support.processes import Fleet, fleet
from tests.support.sampling import is_full, sample
from tests.support.waiting import wait_until

KEYS = both("example.com")
PATIENCE_SECONDS = DOWN_SECONDS[-1] + 60  # a relay that was down is left alone for a while
UNLIMITED = "message_size_limit = 50000000"


def as_signed(stored: bytes) -> bytes:
    """A message from the mailbox without what Postfix has put above it."""
    return re.sub(rb"\r?\n", b"\r\n", stored[stored.index(b"DKIM-Signature:") :])


def without_first(signed: bytes) -> bytes:
    """Without the newest signature, of which verifiers may see no need to go on."""
    return signed[signed.index(b"DKIM-Signature:", 1) :]


def faults(received: list[bytes], folder: Path) -> list[int]:
    """The numbers of those with a signature that dkimpy or OpenDKIM does not verify."""
    records = published(KEYS)
    wrong = [number for number, data in enumerate(received) if verdicts(data, records) != [True, True]]
    folder.mkdir()
    (folder / "second").mkdir()
    return [
        *wrong, *unverified(received, records, folder),
        *unverified([without_first(data) for data in received], records, folder / "second"),
    ]  # fmt: skip


@pytest.mark.slow
def test_generated_messages_verify_after_a_real_postfix(
    authority: trustme.CA, opened: Opened, ca_file: Path, tmp_path: Path
) -> None:
    shop, numbers = signer(KEYS), sample(range(1000), 40)
    with Postfix(authority, UNLIMITED) as server, ThreadPoolExecutor(4) as threads:
        transport = opened(postfix_url(server, ca_file), "")

        def send(number: int) -> str:
            data = shop.sign(message(number, "example.com"), "example.com", source(number)[0].date)
            outgoing = outgoing_message("user1@example.org", data=data)
            return transport.send(outgoing, release=Released(), seconds=60).verdict.kind

        assert set(threads.map(send, numbers)) == {"accepted"}
        wait_until(lambda: len(server.messages()) == len(numbers), seconds=60)
        received = [as_signed(stored) for stored in server.messages()]
    assert faults(received, tmp_path / "verified") == []


@pytest.mark.slow
def test_no_signed_message_is_lost_while_workers_are_killed_and_the_relay_restarts(
    authority: trustme.CA, app_factory: AppFactory, tmp_path: Path, ca_file: Path, database_url: str
) -> None:
    count, kills = (2000, 36) if is_full() else (60, 3)
    templates, keys = write_templates(tmp_path), f"k1={generate_key()}"
    with Postfix(authority) as server, fleet(database_url, tmp_path) as processes:
        url = postfix_url(server, ca_file)
        app = app_factory(
            job_types=[], keys=keys, smtp_url=url, email_from=SENDER, templates=str(templates), dkim_keys=KEYS
        )
        post = Post(app, templates, url, keys)
        written = {post.write(number, filling="x" * 70) for number in range(count)}
        strike(post, processes, server, count, kills)
        post.drain()
        wait_until(lambda: _in(post, "done") <= set(copies(server.messages())), seconds=60)
        received = [as_signed(stored) for stored in server.taken()]
    assert post.faults(received, copies_max=2) == []
    assert set(post.states()) == written
    assert faults(received, tmp_path / "verified") == []


def strike(post: Post, processes: Fleet, server: Postfix, count: int, kills: int) -> None:
    """Two workers, of which the older one is killed after each share of the mail; the relay after every second kill."""

    def started() -> Callable[[], None]:
        worker = processes.worker(app="tests.email.wire.crash_app:app", EFFECTS_DKIM_KEYS=KEYS, **post.environment)
        return worker.kill

    living = [started(), started()]
    for turn in range(1, kills + 1):
        # What a kill left unknown is tried again after hours only.
        wait_until(
            lambda share=turn * count // (kills + 2): len(_in(post, "done", "unknown")) >= share,  # type: ignore[misc]
            seconds=PATIENCE_SECONDS,
        )
        living.pop(0)()
        if turn % 2 == 0:
            server.restart()
        living.append(started())
    for kill in living:
        kill()


def _in(post: Post, *states: str) -> set[str]:
    return {message_id for message_id, state in post.states().items() if state in states}
