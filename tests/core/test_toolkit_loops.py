"""The toolkit and event loops: what a test opens on one loop is never used from another, whichever driver opened it.

Handlers have one loop in all drains of a process, so that what an app keeps in a module serves as it does in a worker.
"""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from effects import Effects, enqueue
from effects.testing import Toolkit
from tests.support.sampling import sample

pytestmark = pytest.mark.slow

metadata = MetaData()
orders = Table("loop_orders", metadata, Column("id", Integer, primary_key=True))

Loop: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, Any]]], Any]


class Shop:
    """An app of async code. Its only handler reads by `sessions`, as those of apps do."""

    def __init__(self, engine: AsyncEngine, test_url: str) -> None:
        self.engine, self.test_url = engine, test_url
        self.sessions = async_sessionmaker(engine)
        self.app = Effects(engine=engine)
        self.packed = 0

        @self.app.job("shop.pack", on_unknown="hold")
        async def pack(order: int) -> None:
            await asyncio.gather(self._read(order), self._read(order))
            self.packed += 1

        self.pack = pack

    async def _read(self, number: int) -> None:
        async with self.sessions() as session:
            assert await session.scalar(select(orders.c.id).where(orders.c.id == number)) == number

    async def place(self) -> None:
        async with self.sessions.begin() as session:
            number = (await session.execute(insert(orders).returning(orders.c.id))).scalar_one()
            await self.pack.using(session=session).enqueue_async(order=number)

    async def count(self) -> int:
        async with self.sessions() as session:
            return (await session.scalar(select(func.count()).select_from(orders))) or 0

    def toolkit(self) -> Toolkit:
        return Toolkit(self.app, database=self.test_url, metadata=metadata)


@pytest.fixture(params=["asyncpg", *sample(["psycopg", "aiosqlite"], 1)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """Its own database is also the test's, so that what is pooled before a toolkit can be opened."""
    if request.param == "aiosqlite":
        url = make_url(f"sqlite+aiosqlite:///{tmp_path / 'shop_test.db'}")
        yield from _shop(url)
        return
    with request.getfixturevalue("postgresql_pool").database() as database_url:
        yield from _shop(make_url(database_url).set(drivername=f"postgresql+{request.param}"))


def _shop(url: Any) -> Iterator[Shop]:
    shop = Shop(create_async_engine(url), url.render_as_string(hide_password=False))
    yield shop
    shop.app.dispose()
    shop.engine.sync_engine.dispose(close=False)
    gc.collect()  # a connection that was left open warns here, and the test fails


@contextmanager
def _running_loop() -> Iterator[Loop]:
    """Runs coroutines on a loop that stays open, in a thread of its own: a module's loop, or that of an HTTP client."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield lambda visit: asyncio.run_coroutine_threadsafe(visit(), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _asyncio(visit: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(visit())


def _anyio(visit: Callable[[], Awaitable[Any]]) -> Any:
    return anyio.run(visit)


def _portal(visit: Callable[[], Awaitable[Any]]) -> Any:
    """As Starlette's TestClient calls an app."""
    with start_blocking_portal() as portal:
        return portal.call(visit)


@pytest.mark.parametrize("run", [_asyncio, _anyio, _portal])
def test_each_loop_has_connections_of_its_own(shop: Shop, run: Loop) -> None:
    with shop.toolkit() as toolkit:
        for number in (1, 2):
            run(shop.place)
            assert toolkit.drain().counts == {"succeeded": 1}
            assert run(shop.count) == number
    assert shop.packed == 2


def test_a_test_on_a_loop_drains_beside_it_or_in_its_way(shop: Shop) -> None:
    async def visit() -> None:
        with shop.toolkit() as toolkit:
            await shop.place()
            assert (await toolkit.drain_async()).counts == {"succeeded": 1}
            async with shop.sessions() as session:
                await session.scalar(select(func.count()).select_from(orders))  # open while the handler runs
                await session.commit()
                await shop.place()
                assert toolkit.drain().counts == {"succeeded": 1}
            assert await shop.count() == 2

    asyncio.run(visit())


def test_what_was_pooled_on_a_loop_is_used_there_again(shop: Shop) -> None:
    """A module's loop: the app's connections are opened before a test, and are closed on their loop after it."""
    with _running_loop() as run:
        with shop.toolkit():  # creates the tables
            pass
        run(shop.count)
        pooled = shop.engine.pool
        for number in (1, 2):
            with shop.toolkit() as toolkit:
                assert shop.engine.pool is not pooled
                run(shop.place)
                toolkit.drain()
                run(shop.engine.dispose)  # a lifespan's end within the test
            assert shop.packed == number
        assert shop.engine.pool is pooled
        assert run(shop.count) == 2
        run(shop.engine.dispose)


def test_a_toolkit_within_another_puts_back_what_it_found(shop: Shop) -> None:
    own = shop.engine.pool
    with shop.toolkit():
        with shop.toolkit() as toolkit:
            asyncio.run(shop.place())
            assert toolkit.drain().counts == {"succeeded": 1}
        assert asyncio.run(shop.count()) == 1
    assert shop.engine.pool is own


def test_a_worker_that_is_killed_takes_no_connection_with_it(shop: Shop) -> None:
    with shop.toolkit() as toolkit:
        asyncio.run(shop.place())
        toolkit.crash_at("perform.after")
        toolkit.drain(expect_dead="shop.pack")
        assert [job.status for job in toolkit.enqueued("shop.pack")] == ["dead"]  # held: it may have happened
        assert asyncio.run(shop.count()) == 1


class Bound:
    """What apps keep in a module, each bound to a loop, or to its thread, at its first use by a handler.

    A consumer, a generator and what belongs to a thread end with the toolkit; the others serve in the next test too.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = httpx.AsyncClient(trust_env=False)
        self.locks = [asyncio.Lock(), asyncio.Semaphore(1), asyncio.Condition(), anyio.Lock()]
        self.queue: asyncio.Queue[int] = asyncio.Queue()
        self.event = asyncio.Event()
        self.rates: asyncio.Future[int] | None = None

    def begin(self) -> None:
        """As a test does that reloads the app."""
        self.connection: sqlite3.Connection | None = None
        self.consumer: asyncio.Task[None] | None = None
        self.numbers: AsyncGenerator[int, None] | None = None
        self.orders: asyncio.Queue[int] = asyncio.Queue()
        self.log: list[str] = []

    async def get(self) -> None:
        assert (await self.client.get(self.url)).text == "ok"

    async def close(self) -> None:
        await self.client.aclose()

    async def lock(self) -> None:
        async def hold(lock: Any) -> None:
            async with lock:
                await asyncio.sleep(0)

        await asyncio.gather(*(hold(lock) for lock in self.locks * 2))

    async def wait(self) -> None:
        self.event.clear()
        waiting = asyncio.gather(self.queue.get(), self.event.wait())
        await asyncio.sleep(0)
        self.queue.put_nowait(1)
        self.event.set()
        await waiting

    async def remember(self) -> None:
        if self.rates is None:
            self.rates = asyncio.ensure_future(asyncio.sleep(0, 7))
        assert await self.rates == 7

    async def leave(self) -> None:
        """Leave a task and a generator on the loop, and a connection that its thread alone may use."""
        if self.connection is None:
            self.connection = sqlite3.connect(":memory:")
            self.consumer = asyncio.create_task(self._consume())
            self.numbers = self._count()
        assert self.numbers is not None
        await anext(self.numbers)
        self.orders.put_nowait(1)
        await self.orders.join()
        self.connection.execute("SELECT 1")

    async def _consume(self) -> None:
        try:
            while True:
                await self.orders.get()
                self.orders.task_done()
        finally:
            self.log.append("consumer ended")

    async def _count(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            while True:
                yield 2
        finally:
            await asyncio.sleep(0)
            self.log.append("generator ended")


@pytest.fixture
def bound() -> Iterator[Bound]:
    with _serving() as url:
        yield Bound(url)


@contextmanager
def _serving() -> Iterator[str]:
    """A server of this machine that keeps connections."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ok)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Ok(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        """Nothing."""


def _using(shop: Shop, bound: Bound, *names: str) -> None:
    for name in names:
        _handle(shop, name, getattr(bound, name))


def _handle(shop: Shop, name: str, use: Callable[[], Awaitable[None]]) -> None:
    @shop.app.job(f"bound.{name}", on_unknown="hold")
    async def handle() -> None:
        await use()


LASTING = ("get", "lock", "wait", "remember")


def test_what_a_module_keeps_serves_in_each_drain_of_each_toolkit(shop: Shop, bound: Bound) -> None:
    _using(shop, bound, *LASTING, "leave", "close")
    for _ in range(2):
        bound.begin()
        with shop.toolkit() as toolkit:
            for _ in range(2):
                for name in (*LASTING, "leave"):
                    enqueue(f"bound.{name}", {}, effects=shop.app)
                asyncio.run(shop.place())  # by connections of its own
                assert toolkit.drain().counts == {"succeeded": 6}
            assert bound.log == []
        assert bound.log == ["consumer ended", "generator ended"]
        assert [thread for thread in threading.enumerate() if thread.name == "effects-toolkit-loop"] == []
    _close(shop)


def test_a_worker_that_is_killed_shares_nothing_with_the_loop_of_the_test(shop: Shop, bound: Bound) -> None:
    _using(shop, bound, *LASTING, "close")
    with shop.toolkit() as toolkit:
        for crash in (False, True, False):
            for name in LASTING:
                enqueue(f"bound.{name}", {}, effects=shop.app)
            if crash:
                toolkit.crash_at("perform.after", nth=4)
                toolkit.drain(raises=False)
            else:
                assert toolkit.drain().counts == {"succeeded": 4}
    _close(shop)


def _close(shop: Shop) -> None:
    """By a handler, as its connections are of the handlers' loop."""
    with shop.toolkit() as toolkit:
        enqueue("bound.close", {}, effects=shop.app)
        assert toolkit.drain().counts == {"succeeded": 1}


def test_a_toolkit_within_another_ends_its_own_tasks_alone(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'own.db'}")
    ended: list[str] = []

    async def stay(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    left = set()

    @app.job("left", on_unknown="hold")
    async def leave(name: str) -> None:
        left.add(asyncio.create_task(stay(name)))
        await asyncio.sleep(0)

    with Toolkit(app) as outer:
        leave.enqueue(name="outer")
        outer.drain()
        with Toolkit(app) as inner:
            leave.enqueue(name="inner")
            inner.drain()
        assert ended == ["inner"]
    assert ended == ["inner", "outer"]


def test_a_handler_that_blocks_the_loop_for_good_leaves_the_next_test_another_one(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'own.db'}")
    gate = threading.Event()

    @app.job("blocking", on_unknown="hold", time_limit_seconds=0.1)
    async def block(*, for_good: bool) -> None:
        if for_good:
            gate.wait()

    try:
        with Toolkit(app) as toolkit:
            block.enqueue(for_good=True)
            toolkit.drain(raises=False)
        with Toolkit(app) as toolkit:
            block.enqueue(for_good=False)
            assert toolkit.drain().counts == {"succeeded": 1}
    finally:
        gate.set()


SESSION = """
import asyncio

import httpx
import pytest

from effects import Effects, enqueue

app = Effects("sqlite:///own.db")
client = httpx.AsyncClient(trust_env=False)
lock = asyncio.Lock()


@app.job("ask", on_unknown="hold")
async def ask(url: str) -> None:
    async with lock:
        assert (await client.get(url)).text == "ok"


@pytest.fixture
def effects_app():
    return app


@pytest.mark.parametrize("test", [1, 2])
def test_two_at_a_time(effects_toolkit, test):
    for _ in range(2):
        ask.enqueue(url=URL)
        ask.enqueue(url=URL)
        assert effects_toolkit.drain().counts == {"succeeded": 2}
"""


def test_a_session_of_pytest_has_one_loop_and_ends_without_a_warning(tmp_path: Path) -> None:
    with _serving() as url:
        (tmp_path / "test_session.py").write_text(SESSION.replace("URL", repr(url)))
        command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_session.py"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "2 passed" in ran.stdout, ran.stdout
    assert "warning" not in ran.stdout
    assert ran.stderr == ""
