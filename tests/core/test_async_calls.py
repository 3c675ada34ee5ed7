"""The awaitable calls, on every asynchronous driver: the caller's transaction decides, as it does for the others."""

from __future__ import annotations

import asyncio
import inspect
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import psycopg
import pytest
from sqlalchemy import event, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

import effects
import effects_email
import effects_reports
import effects_webhooks
from effects import (
    Attempt,
    Done,
    Effects,
    EnqueueError,
    IdempotencyConflict,
    JobType,
    NewJob,
    Sensitive,
    cancel,
    cancel_async,
    enqueue,
    enqueue_async,
    enqueue_many_async,
    reschedule_async,
    status_async,
    wait_async,
)
from effects.keys.encryption import generate_key
from effects.kit import crashpoints
from effects.worker import Worker
from effects_email import NewEmail, send_templated_email, send_templated_email_async, send_templated_emails_async
from effects_reports import Notify, report, request_report, request_report_async
from effects_webhooks import (
    WebhookEvent,
    add_endpoint,
    deliver_webhook,
    deliver_webhook_async,
    deliver_webhooks_async,
)
from tests.support.manual_workers import rows

Run: TypeAlias = Callable[[Callable[["Shop"], Awaitable[Any]]], Any]
PACKAGES = (effects, effects_email, effects_reports, effects_webhooks)


@dataclass
class Parcel:
    order: int
    address: Annotated[str, Sensitive] = ""


class Pack(JobType[Parcel]):
    name = "shop.pack"
    payload = Parcel

    def perform(self, payload: Parcel, attempt: Attempt) -> Done:
        return Done()


@report("orders", key=("n",), formats=("csv",))
def orders(params: None) -> Any:
    return select(func.abs(-1).label("n"))


class Shop:
    """An app with an asynchronous engine beside its Effects."""

    def __init__(self, app: Effects, url: str) -> None:
        self.app = app
        self.engine = create_async_engine(url)
        self.sessions = async_sessionmaker(self.engine)

    async def order(self, session: Any, key: str = "order:1") -> list[Any]:
        """Every kind of effect in one transaction."""
        common: dict[str, Any] = {"session": session, "effects": self.app}
        first = await enqueue_async("shop.pack", Parcel(1, "Secret Street"), key=f"{key}:pack", priority=3, **common)
        jobs = [NewJob(job_type="shop.pack", payload=Parcel(n), group_key=key, key=f"{key}:{n}") for n in range(3)]
        many = await enqueue_many_async([*jobs, NewJob(job_type="shop.pack", payload=Parcel(9))], **common)
        event = WebhookEvent("order.placed", {"order": key, "total": 1.5}, key=f"{key}:placed", ordering_key=key)
        delivery = await deliver_webhook_async(event, **common)
        others = await deliver_webhooks_async([WebhookEvent("order.seen", {"order": key})], **common)
        mail = await send_templated_email_async("hi", to="ann@example.com", context={}, event_id=key, **common)
        mails = await send_templated_emails_async([NewEmail("hi", to=f"{n}@example.com", context={}) for n in "ab"],
                                                  **common)  # fmt: skip
        notify = Notify(job_type="shop.pack", payload={"order": 7})
        report = await request_report_async("orders", key=f"{key}:report", notify=notify, **common)
        return [first, *many, delivery, *others, mail, *mails, report]

    def written(self) -> dict[str, int]:
        tables = ("jobs", "effect_ledger", "webhook_events", "delivered_webhooks", "sent_emails", "report_runs")
        return {table: len(rows(self.app, table)) for table in tables}


WHOLE = {
    "jobs": 11,
    "effect_ledger": 4,
    "webhook_events": 2,
    "delivered_webhooks": 2,
    "sent_emails": 3,
    "report_runs": 1,
}
NOTHING = dict.fromkeys(WHOLE, 0)


@pytest.fixture(params=["aiosqlite", "asyncpg", "psycopg"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    """Runs a coroutine function in a loop of its own on a shop with this driver."""
    if request.param == "aiosqlite":
        shutil.copy(request.getfixturevalue("sqlite_template"), tmp_path / "effects.db")
        yield lambda visit: asyncio.run(
            _visit(visit, f"sqlite:///{tmp_path / 'effects.db'}", "sqlite+aiosqlite", tmp_path)
        )
        return
    with request.getfixturevalue("postgresql_pool").database() as url:
        yield lambda visit: asyncio.run(_visit(visit, url, f"postgresql+{request.param}", tmp_path))


async def _visit(visit: Callable[[Shop], Awaitable[Any]], url: str, driver: str, folder: Path) -> Any:
    (folder / "emails" / "hi").mkdir(parents=True)
    for name in ("subject", "body"):
        (folder / "emails" / "hi" / f"{name}.txt").write_text("Hello")
    app = Effects(
        url, queues=["parcels"], job_types=[Pack()], reports=[orders],
        keys=f"k={generate_key()},digest={generate_key()}",
        templates=folder / "emails", email_from="shop@example.com", storage_url=str(folder / "files"),
    )  # fmt: skip
    add_endpoint("https://partner.example/hooks", ["order.*"], effects=app)
    shop = Shop(app, make_url(url).set(drivername=driver).render_as_string(False))
    try:
        return await visit(shop)
    finally:
        await shop.engine.dispose()
        app.dispose()


@asynccontextmanager
async def session_of(shop: Shop, kind: str) -> AsyncIterator[Any]:
    """A session of this kind whose transaction is the caller's to end; None has one of its own for each call."""
    if kind == "connection":
        async with shop.engine.connect() as connection:
            yield connection
    elif kind == "scoped":
        scoped = async_scoped_session(shop.sessions, scopefunc=asyncio.current_task)
        try:
            yield scoped
        finally:
            await scoped.remove()
    else:
        async with shop.sessions() as session:
            yield session


@pytest.mark.parametrize("kind", ["session", pytest.param("connection", marks=pytest.mark.slow), "scoped"])
def test_the_callers_transaction_decides(run: Run, kind: str) -> None:
    async def visit(shop: Shop) -> None:
        async with session_of(shop, kind) as session:
            await shop.order(session)
            await session.rollback()
        assert shop.written() == NOTHING
        async with session_of(shop, kind) as session:
            await shop.order(session)
            savepoint = await session.begin_nested()
            await shop.order(session, "order:2")
            await savepoint.rollback()
            again = await shop.order(session)
            assert [index for index, receipt in enumerate(again) if receipt.existing] == [0, 1, 2, 3, 5, 7, 10]
            await session.commit()

    run(visit_and_check(visit))


def visit_and_check(visit: Callable[[Shop], Awaitable[None]]) -> Callable[[Shop], Awaitable[None]]:
    async def both(shop: Shop) -> None:
        await visit(shop)
        written = shop.written()
        assert {**written, "jobs": 0} == {
            **WHOLE,
            "jobs": 0,
            "webhook_events": 3,
            "delivered_webhooks": 3,
            "sent_emails": 5,
        }

    return both


@pytest.mark.slow
def test_without_a_session_each_call_is_a_transaction_of_its_own_off_the_loop(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        threads: set[int] = set()
        crashpoints.install(lambda point: threads.add(threading.get_ident()))
        await shop.order(None)
        assert threads
        assert threading.get_ident() not in threads
        assert shop.written() == WHOLE

    run(visit)


@pytest.mark.slow
def test_a_worker_carries_out_what_was_written(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        async with shop.sessions.begin() as session:
            await shop.order(session)
        counts = (await asyncio.to_thread(Worker(shop.app, queues={"default": 1, "reports": 1}).drain)).counts
        assert counts == {"succeeded": 5 + 4 + 1}  # parcels; a report and its cleanup; its notice

    run(visit)


@pytest.mark.slow
@pytest.mark.parametrize("swallowed", [False, True])
def test_a_call_that_is_cancelled_in_the_middle_leaves_all_or_nothing(run: Run, swallowed: bool) -> None:
    """At each of its statements; and whoever swallows the cancellation cannot commit a half."""

    async def visit(shop: Shop) -> None:
        statements, cancelled_at = 0, 0
        is_whole_on_commit = swallowed and not shop.app.store.is_postgresql

        def cancel_now(*_: object) -> None:
            nonlocal statements
            statements += 1
            if statements == cancelled_at:
                calling.cancel()

        async def call(session: AsyncSession, key: str) -> None:
            with suppress(asyncio.CancelledError) if swallowed else nullcontext():
                await deliver_webhook_async(
                    WebhookEvent("order.placed", {}, key=key), session=session, effects=shop.app
                )
            await session.commit()

        async def visit_once(key: str) -> None:
            async with shop.sessions() as session:
                await call(session, key)

        event.listen(shop.engine.sync_engine, "before_cursor_execute", cancel_now)
        for cancelled_at in range(1, 200):
            statements, before = 0, shop.written()
            calling = asyncio.ensure_future(visit_once(f"k{cancelled_at}"))
            with suppress(asyncio.CancelledError, InvalidRequestError):
                await calling
            added = {table: count - before[table] for table, count in shop.written().items()}
            is_cancelled = statements >= cancelled_at
            whole = {**NOTHING, "webhook_events": 1, "delivered_webhooks": 1, "jobs": 1}
            assert added == (NOTHING if is_cancelled and not is_whole_on_commit else whole), cancelled_at
            if not is_cancelled:
                return
        pytest.fail("the call never came to its end")

    run(visit)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
def test_a_cancelled_call_without_a_session_comes_to_its_end_first(run: Run, times: int) -> None:
    async def visit(shop: Shop) -> None:
        reached, go_on = threading.Event(), threading.Event()

        def hold(point: str) -> None:
            if point == "enqueue.before_commit":
                reached.set()
                assert go_on.wait(30)

        crashpoints.install(hold)
        call = asyncio.ensure_future(enqueue_async("shop.pack", Parcel(1), key="pack:1", effects=shop.app))
        await asyncio.to_thread(reached.wait, 30)
        for _ in range(times):
            call.cancel()
            for _ in range(3):
                await asyncio.sleep(0)
        assert not call.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert [row["key"] if "key" in row else row["idempotency_key"] for row in rows(shop.app, "jobs")] == ["pack:1"]

    run(visit)


def test_a_decorated_function_is_enqueued(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        @shop.app.job("shop.wrap")
        def wrap(parcel: Parcel, *, paper: str = "brown") -> None: ...

        async with shop.sessions() as session:
            receipt = await wrap.using(key="wrap:1", session=session).enqueue_async(Parcel(1))
            jobs = [wrap.using(priority=1).job(Parcel(number)) for number in (2, 3)]
            await enqueue_many_async(jobs, session=session, effects=shop.app)
            with pytest.raises(EnqueueError, match=r"await enqueue_async\(…, session=session\)"):
                wrap.using(session=session).enqueue(Parcel(1))  # type: ignore[misc]
            await session.rollback()
            assert shop.written() == NOTHING
            assert (await wrap.using(key="wrap:1", session=session).enqueue_async(Parcel(1))).key == receipt.key
            await session.commit()
        await wrap.enqueue_async(Parcel(2), paper="red")
        assert shop.written()["jobs"] == 2

    run(visit)


def test_errors_are_those_of_the_synchronous_call(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        async with shop.sessions.begin() as session:
            await enqueue_async("shop.pack", Parcel(1), key="k", session=session, effects=shop.app)
            with pytest.raises(IdempotencyConflict):
                await enqueue_async("shop.pack", Parcel(2), key="k", session=session, effects=shop.app)
        assert shop.written()["jobs"] == 1

    run(visit)


@pytest.mark.slow
def test_workers_are_notified_after_the_commit(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        if not shop.app.store.is_postgresql:
            return
        url = make_url(shop.app.settings.database_url).set(drivername="postgresql").render_as_string(False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("LISTEN effects")
            async with shop.sessions() as session:
                await enqueue_async("shop.pack", Parcel(1), session=session, effects=shop.app)
                await session.rollback()
                await enqueue_async("shop.pack", Parcel(1), queue="parcels", session=session, effects=shop.app)
                await session.commit()
            [hint] = connection.notifies(timeout=30, stop_after=1)
            assert hint.payload == "parcels"

    run(visit)


@pytest.mark.slow
def test_an_effect_is_read_rescheduled_and_cancelled(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        async with shop.sessions.begin() as session:
            common: dict[str, Any] = {"key": "k", "session": session, "effects": shop.app}
            await enqueue_async("shop.pack", Parcel(1), **common)
            assert (await status_async(**common)).state == "intended"
            moved = await reschedule_async(run_at=effects_time(), actor="app:shop", **common)
            assert moved.result == "rescheduled"
            assert (await cancel_async(actor="app:shop", **common)).prevented
        assert (await wait_async(key="k", timeout_seconds=30, effects=shop.app)).state == "abandoned"
        await enqueue_async("shop.pack", Parcel(1), key="later", effects=shop.app)
        assert not (await wait_async(key="later", timeout_seconds=0, effects=shop.app)).ended
        waiting = asyncio.ensure_future(wait_async(key="later", timeout_seconds=60, effects=shop.app))
        await asyncio.to_thread(cancel, key="later", actor="app:shop", effects=shop.app)
        assert (await waiting).ended

    run(visit)


def effects_time() -> Any:
    from datetime import UTC, datetime  # noqa: PLC0415

    return datetime(2040, 1, 1, tzinfo=UTC)


def test_a_session_of_the_other_kind_is_refused_with_the_form_that_takes_it(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        app = shop.app
        async with shop.sessions() as session:
            calls: dict[str, Callable[[], object]] = {
                "enqueue_async": lambda: enqueue("shop.pack", Parcel(1), session=session, effects=app),  # type: ignore[arg-type]
                "deliver_webhook_async": lambda: deliver_webhook(
                    WebhookEvent("order.placed", {}),
                    session=session,
                    effects=app,  # type: ignore[arg-type]
                ),
                "send_templated_email_async": lambda: send_templated_email(
                    "hi",
                    to="ann@example.com",
                    context={},
                    session=session,
                    effects=app,  # type: ignore[arg-type]
                ),
                "request_report_async": lambda: request_report("orders", session=session, effects=app),  # type: ignore[arg-type]
                "cancel_async": lambda: cancel(key="k", actor="app", session=session, effects=app),  # type: ignore[arg-type]
            }
            for form, call in calls.items():
                with pytest.raises(EnqueueError, match=rf"await {form}\(…, session=session\)"):
                    call()
            with pytest.raises(
                EnqueueError, match=r"await session\.run_sync\(lambda s: add_endpoint\(…, session=s\)\)"
            ):
                add_endpoint("https://partner.example/", ["*"], session=session, effects=app)  # type: ignore[arg-type]
        with Session() as session, pytest.raises(EnqueueError, match=r"or call enqueue\(…, session=session\)"):
            await enqueue_async("shop.pack", Parcel(1), session=session, effects=app)  # type: ignore[arg-type]

    run(visit)


def test_a_closed_session_or_one_inside_an_asynchronous_one_is_refused(run: Run) -> None:
    async def visit(shop: Shop) -> None:
        job: dict[str, Any] = {"job_type": "shop.pack", "payload": Parcel(1), "effects": shop.app}
        not_open, closed = shop.engine.connect(), await shop.engine.connect()
        await closed.close()
        for connection in (not_open, closed):
            with pytest.raises(EnqueueError, match=r"AsyncConnection that is not open.*async with engine\.begin\(\)"):
                await enqueue_async(**job, session=connection)
        async with shop.sessions() as session, shop.engine.connect() as open_connection:
            for inside in (session.sync_session, open_connection.sync_connection):
                with pytest.raises(EnqueueError, match=r"inside of an asynchronous one.*await enqueue_async"):
                    enqueue(**job, session=inside)
            await session.run_sync(lambda inside: enqueue(**job, session=inside))
            await session.commit()
        assert shop.written()["jobs"] == 1

    run(visit)


@pytest.mark.parametrize(
    "form", [getattr(package, name) for package in PACKAGES for name in package.__all__ if name.endswith("_async")],
    ids=lambda form: form.__name__,
)  # fmt: skip
def test_an_awaitable_form_has_the_signature_of_its_call(form: Callable[..., Coroutine[Any, Any, Any]]) -> None:
    [call] = [getattr(package, name) for package in PACKAGES for name in package.__all__
              if f"{name}_async" == form.__name__]  # fmt: skip
    own, expected_signature = inspect.signature(form), inspect.signature(call)
    assert own.return_annotation == expected_signature.return_annotation
    assert list(own.parameters) == list(expected_signature.parameters)
    for name, parameter in own.parameters.items():
        expected = "AnyAsyncSession | None" if name == "session" else expected_signature.parameters[name].annotation
        assert (parameter.annotation, parameter.default, parameter.kind) == (
            expected, expected_signature.parameters[name].default, expected_signature.parameters[name].kind,
        )  # fmt: skip
    assert inspect.iscoroutinefunction(form)


def test_every_call_that_requests_an_effect_has_an_awaitable_form() -> None:
    requests = {"enqueue", "enqueue_many", "status", "cancel", "reschedule", "wait", "deliver_webhook",
                "deliver_webhooks", "send_email", "send_templated_email", "send_templated_emails",
                "request_report", "subscribe", "unsubscribe"}  # fmt: skip
    forms = {name for package in PACKAGES for name in package.__all__ if name.endswith("_async")}
    assert {f"{name}_async" for name in requests} == forms
