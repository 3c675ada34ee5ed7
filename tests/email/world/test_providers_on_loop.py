"""Messages by a provider's API on the worker's event loop: how many at a time, beside transports that take threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from effects import Effects
from effects.testing import Toolkit
from effects.worker import Worker
from effects_email.api import send_templated_email
from effects_email.jobs import send
from effects_email.jobs.send import EmailSend
from effects_email.jobs.waits import RoomInMemory
from effects_email.message.source import Address, MessageSource
from effects_email.transport import url as transport_urls
from effects_email.transport.base import OutgoingMessage, SendResult, Verdict
from effects_email.transport.http_api.client import ProviderClient
from tests.conftest import AppFactory
from tests.email.wire.post import SENDER, write_templates
from tests.email.world.conftest import KEYS
from tests.email.world.stand_ins import TOKEN, PostmarkBox, receiver
from tests.peers.http import Answer, Request
from tests.support.waiting import wait_until

MESSAGES, THREADS = 50, 3
SECONDS = 30.0


class Slow:
    """Postmark, which answers none before so many requests wait at the same time."""

    def __init__(self, together: int) -> None:
        self.box, self.waiting, self.most = PostmarkBox(), 0, 0
        self._together = threading.Barrier(together)
        self._lock = threading.Lock()

    def serve(self, request: Request) -> Answer:
        with self._lock:
            answer = self.box.serve(request)
        self._together.wait(SECONDS)
        return answer


@pytest.fixture
def provider() -> Iterator[Callable[[int], tuple[Slow, str]]]:
    with ExitStack() as peers:

        def open_provider(together: int) -> tuple[Slow, str]:
            slow = Slow(together)
            peer = peers.enter_context(receiver(slow.serve))
            return slow, f"postmark://{TOKEN}@?origin=http://127.0.0.1:{peer.port}"

        yield open_provider


@pytest.fixture
def make_app(app_factory: AppFactory, tmp_path: Path) -> Callable[..., Effects]:
    templates = write_templates(tmp_path)

    def make(**options: Any) -> Effects:
        return app_factory(job_types=[], keys=KEYS, email_from=SENDER, templates=str(templates), **options)

    return make


def write(app: Effects, count: int, transport: str = "default") -> None:
    for number in range(count):
        send_templated_email(
            "note", to=f"user{number}@example.org", context={"number": number, "filling": ""}, transport=transport,
            effects=app,
        )  # fmt: skip


def outcomes(app: Effects) -> list[str]:
    with app.store.read() as connection:
        rows = connection.exec_driver_sql("SELECT outcome FROM effects_job_attempts WHERE attempt > 0")
        return [row[0] for row in rows]


def test_many_more_are_in_flight_than_there_are_threads(
    make_app: Callable[..., Effects], provider: Callable[[int], tuple[Slow, str]]
) -> None:
    slow, url = provider(MESSAGES)
    app = make_app(smtp_url=url)
    assert app.job_types.get("email.send").is_async
    write(app, MESSAGES)
    Worker(app).drain(SECONDS)
    assert outcomes(app) == ["succeeded"] * MESSAGES
    assert len(slow.box.messages) == MESSAGES


class Threaded:
    """A transport that takes up a thread for each message, and counts them."""

    key_lifetime_seconds = rate_per_second = None
    traceable = False

    def __init__(self, name: str) -> None:
        self.name, self.now, self.most, self.sent = name, 0, 0, 0
        self.open = threading.Event()
        self._lock = threading.Lock()

    def send(self, outgoing: OutgoingMessage, *, release: Callable[[], None], seconds: float) -> SendResult:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        release()
        assert self.open.wait(SECONDS)
        with self._lock:
            self.now, self.sent = self.now - 1, self.sent + 1
        verdict = Verdict(kind="accepted", code="ok", reason="taken")
        return SendResult(verdict=verdict, recipients=dict.fromkeys(outgoing.recipients, verdict))

    def ask(self, outgoing: OutgoingMessage) -> bool | None:
        return None

    def close(self) -> None:
        self.open.set()


def test_a_transport_that_takes_threads_has_few_beside_a_provider(
    make_app: Callable[..., Effects], provider: Callable[[int], tuple[Slow, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    threaded = Threaded("default")
    monkeypatch.setitem(transport_urls._registered, "threaded", (lambda parsed: threaded, False))
    slow, url = provider(MESSAGES)
    app = make_app(smtp_url="threaded:x", email_transports={"bulk": url}, threads=THREADS)
    write(app, MESSAGES)
    write(app, MESSAGES, "bulk")
    worker = Worker(app)
    running = threading.Thread(target=worker.drain, args=(SECONDS,))
    running.start()
    wait_until(lambda: len(slow.box.messages) == MESSAGES)  # all of them, while the others hold all their threads
    assert threaded.sent == 0
    threaded.open.set()
    running.join(SECONDS)
    assert outcomes(app) == ["succeeded"] * 2 * MESSAGES
    assert THREADS <= threaded.most <= 2 * THREADS


def test_without_a_provider_messages_have_the_threads_of_their_queue(make_app: Callable[..., Effects]) -> None:
    job_type = make_app(smtp_url="smtp://localhost:25").job_types.get("email.send")
    assert not job_type.is_async
    assert job_type.max_in_flight("email:default") is None


def test_limits_by_domain_are_the_transports_too(make_app: Callable[..., Effects]) -> None:
    urls = {"bulk": f"postmark://{TOKEN}@"}
    job_type = make_app(smtp_url="smtp://localhost:25", email_transports=urls, threads=THREADS).job_types.get(
        "email.send"
    )
    assert isinstance(job_type, EmailSend)
    bounds = {key: job_type.max_in_flight(key) for key in ("email:default", "email:default:b.example", "email:bulk:a")}
    assert bounds == {"email:default": 2 * THREADS, "email:default:b.example": 2 * THREADS, "email:bulk:a": None}


# -- memory ----------------------------------------------------------------------------------------------------------


def source(count: int) -> MessageSource:
    ann = Address("ann", "example.com")
    return MessageSource(
        message_id="1@x", date=datetime(2026, 1, 1, tzinfo=UTC), sender=ann, to=(ann,), subject="", text="x" * count
    )


def test_large_messages_wait_for_room_in_their_order() -> None:
    room, begun = RoomInMemory(400), list[str]()
    gate: dict[str, asyncio.Event] = {}

    async def send_one(name: str, count: int) -> None:
        async with room.hold(source(count), seconds=SECONDS):
            begun.append(name)
            await gate[name].wait()

    async def run() -> None:
        tasks = {}
        for name, count in {"half": 50, "large": 10_000, "small": 1}.items():
            gate[name] = asyncio.Event()
            tasks[name] = asyncio.create_task(send_one(name, count))
            await asyncio.sleep(0)
        assert begun == ["half"]  # the small one is behind the large one, which would never come otherwise
        tasks["large"].cancel()
        await asyncio.wait([tasks["large"]])
        await asyncio.sleep(0)
        assert begun == ["half", "small"]
        for event in gate.values():
            event.set()
        await asyncio.gather(tasks["half"], tasks["small"])
        async with room.hold(source(10_000), seconds=SECONDS) as held:
            assert held

    asyncio.run(run())


def test_who_is_cancelled_when_his_turn_has_come_gives_the_room_back() -> None:
    async def run() -> None:
        room = RoomInMemory(4)

        async def send_one() -> None:
            async with room.hold(source(1), seconds=SECONDS):
                pass

        async with room.hold(source(1), seconds=SECONDS):
            waiting = asyncio.create_task(send_one())
            await asyncio.sleep(0)
        waiting.cancel()  # admitted, and not yet begun
        await asyncio.wait([waiting])
        async with room.hold(source(1), seconds=SECONDS) as held:
            assert held

    asyncio.run(run())


def test_who_finds_no_room_in_time_goes_back_and_leaves_room_to_others() -> None:
    async def run() -> None:
        room = RoomInMemory(4)
        async with room.hold(source(1), seconds=SECONDS) as first:
            assert first
            async with room.hold(source(1), seconds=0.01) as second:
                assert not second
        async with room.hold(source(1), seconds=SECONDS) as third:
            assert third

    asyncio.run(run())


def test_a_message_without_room_costs_no_try(
    make_app: Callable[..., Effects], provider: Callable[[int], tuple[Slow, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, url = provider(1)
    monkeypatch.setattr(send, "ROOM_SECONDS", 0.0)
    monkeypatch.setattr(RoomInMemory, "_take", lambda self, count: asyncio.Event().wait())
    app = make_app(smtp_url=url)
    write(app, 1)
    Worker(app).drain(SECONDS)
    with app.store.read() as connection:
        [job] = connection.exec_driver_sql("SELECT status, attempts, error_code FROM effects_jobs").all()
    assert tuple(job) == ("queued", 0, "no_room")
    assert slow.box.messages == []


# -- names -----------------------------------------------------------------------------------------------------------


def test_a_name_that_does_not_resolve_holds_up_no_one() -> None:
    gate = threading.Event()

    def silent(host: str, port: int) -> list[str]:
        gate.wait(SECONDS)
        return ["127.0.0.1"]

    async def release() -> None:
        raise AssertionError("nothing can be sent")

    async def run() -> tuple[str | None, bool]:
        client = ProviderClient("http://api.provider.test", resolver=silent)
        ticked = asyncio.create_task(asyncio.sleep(0))
        exchange = await client.request("GET", "/", {}, b"", release=release, seconds=0.2)
        return exchange.failure, ticked.done()

    try:
        assert asyncio.run(run()) == ("connect_timeout", True)
    finally:
        gate.set()


def test_a_name_that_is_not_there_is_no_connection() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError("no such name")

    async def release() -> None:
        raise AssertionError("nothing can be sent")

    client = ProviderClient("http://api.provider.test", resolver=unknown)
    exchange = asyncio.run(client.request("GET", "/", {}, b"", release=release, seconds=5))
    assert (exchange.failure, exchange.wrote) == ("connect_failed", False)


# -- tests of apps ---------------------------------------------------------------------------------------------------


def test_a_toolkit_sends_nothing_to_a_provider(
    make_app: Callable[..., Effects], provider: Callable[[int], tuple[Slow, str]]
) -> None:
    slow, url = provider(1)
    app = make_app(smtp_url=url)
    with Toolkit(app) as toolkit:
        write(app, 2)
        toolkit.drain()
        assert [mail.state for mail in toolkit.emails] == ["done", "done"]
    assert slow.box.messages == []
