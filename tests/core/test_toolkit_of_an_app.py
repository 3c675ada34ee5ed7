"""The toolkit on an app that knows nothing of it: who holds its Effects or its engine comes to the test's database."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import psycopg
import pytest
from sqlalchemy import Column, Connection, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    Effects,
    EnqueueError,
    JobType,
    Refused,
    RetryPolicy,
    Schedule,
    Sensitive,
    default,
    enqueue,
    enqueue_async,
    set_default,
)
from effects.keys.encryption import generate_key
from effects.store.db.engine import create_engine as own_engine
from effects.testing import NetworkRefused, Toolkit
from effects_reports import report, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.support.database_pool import DatabasePool
from tests.support.manual_workers import rows

metadata = MetaData()
orders = Table("shop_orders", metadata, Column("id", Integer, primary_key=True), Column("item", String))


@dataclass
class Parcel:
    order: int
    address: Annotated[str, Sensitive] = ""


class Pack(JobType[Parcel]):
    name = "shop.pack"
    payload = Parcel

    def __init__(self) -> None:
        self.packed = 0

    def perform(self, payload: Parcel, attempt: Attempt) -> Done:
        self.packed += 1
        return Done()


class Broken(JobType[dict[str, Any]]):
    name = "shop.broken"
    retry = RetryPolicy(backoff=lambda attempt: 3600.0)  # however long a test takes

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Done:
        if payload["at"] == "perform":
            raise ZeroDivisionError("the scale")
        if payload["at"] == "refused":
            raise Refused("not ours")
        return Done(apply=lambda connection: _fail())


def _fail() -> None:
    raise LookupError("the counter")


@report("orders", key=("id",), formats=("csv",))
def all_orders(params: None) -> Any:
    return select(orders.c.id, orders.c.item)


class Shop:
    """An app as its modules make it, long before a test begins."""

    def __init__(self, url: str, **options: Any) -> None:
        self.pack = Pack()
        self.app = Effects(url, job_types=[self.pack, Broken()], reports=[all_orders], **options)
        self.sessions = sessionmaker(self.app.engine)

    def order(self, item: str) -> None:
        with self.sessions.begin() as session:
            session.execute(insert(orders).values(item=item))
            enqueue("shop.pack", Parcel(1, "Secret Street"), key=f"pack:{item}", session=session, effects=self.app)
            deliver_webhook(WebhookEvent("order.placed", {"item": item}), session=session, effects=self.app)


@pytest.fixture
def shop(database_url: str) -> Iterator[Shop]:
    shop_app = Shop(database_url)
    metadata.create_all(shop_app.app.engine)
    yield shop_app
    shop_app.app.dispose()


@pytest.fixture
def test_url(shop: Shop, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str | None]:
    """A test's database of the app's own kind: None where the temporary file is one."""
    if not shop.app.store.is_postgresql:
        yield None
        return
    with request.getfixturevalue("postgresql_pool").database() as url:
        yield url


def state_of(app: Effects) -> dict[str, Any]:
    return {**vars(app), "job_types": {job_type.name: id(job_type) for job_type in app.job_types}}


def test_everything_that_holds_the_app_or_its_engine_comes_to_the_test_database(
    shop: Shop, test_url: str | None
) -> None:
    before = state_of(shop.app)
    with Toolkit(shop.app, database=test_url, metadata=metadata) as toolkit:
        add_endpoint("https://partner.example/hooks", ["order.*"], effects=shop.app)
        shop.order("teapot")
        enqueue("shop.pack", Parcel(2))
        assert default() is shop.app
        toolkit.assert_enqueued("shop.pack", times=2)
        toolkit.assert_enqueued("shop.pack", key="pack:teapot", address="Secret Street")
        assert {job.job_type for job in toolkit.jobs} == {"shop.pack", "webhook.deliver"}
        assert toolkit.drain().counts == {"succeeded": 3}
        with Session(shop.app.engine) as session:
            assert session.scalars(select(orders.c.item)).all() == ["teapot"]
        [event] = toolkit.webhooks
        assert (event.type, event.data) == ("order.placed", {"item": "teapot"})
        assert [(delivery.url, delivery.state) for delivery in event.deliveries] == [
            ("https://partner.example/hooks", "done")
        ]
    assert shop.pack.packed == 2
    assert state_of(shop.app) == before
    assert rows(shop.app, "jobs") == rows(shop.app, "job_history") == rows(shop.app, "webhook_events") == []
    with Session(shop.app.engine) as session:
        assert session.scalars(select(orders.c.item)).all() == []


def test_an_app_of_the_other_kind_of_database_is_on_sqlite_meanwhile(shop: Shop) -> None:
    if not shop.app.store.is_postgresql:
        pytest.skip("the temporary database is of the app's own kind")
    with Toolkit(shop.app, metadata=metadata) as toolkit:
        with pytest.raises(ConfigurationError, match=r"bind the Session to `app\.engine` when it is made"):
            shop.order("teapot")
        shop.sessions.configure(bind=shop.app.engine)
        shop.order("teapot")
        assert toolkit.drain().counts == {"succeeded": 1}
    assert shop.app.store.is_postgresql
    assert rows(shop.app, "jobs") == rows(shop.app, "job_history") == []


def test_an_engine_of_the_apps_own_is_redirected_too(tmp_path: Path) -> None:
    engine: Engine = create_engine(f"sqlite:///{tmp_path / 'own.db'}")
    app = Effects(engine=engine, job_types=[Pack()])
    with Toolkit(app) as toolkit, Session(engine) as session, session.begin():
        enqueue("shop.pack", Parcel(1), session=session, effects=app)
        session.commit()
        assert toolkit.drain().counts == {"succeeded": 1}
    assert not (tmp_path / "own.db").exists()
    engine.dispose()


@pytest.mark.parametrize(
    ("at", "error", "counted", "note"),
    [
        ("perform", ZeroDivisionError, "unknown", r"raised by job 1 \(shop\.broken\), attempt 1"),
        ("apply", LookupError, "failed", r"raised by `apply` of a Done of shop\.broken"),
    ],
)
def test_an_exception_of_a_handler_fails_the_test(
    at: str, error: type[Exception], counted: str, note: str, tmp_path: Path
) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with Toolkit(shop.app) as toolkit:
        enqueue("shop.broken", {"at": at})
        with pytest.raises(error) as caught:
            toolkit.drain()
        assert re.match(note, caught.value.__notes__[0])
        enqueue("shop.broken", {"at": at})
        assert toolkit.drain(raises=False).counts == {counted: 1}


def test_a_dead_letter_that_the_test_did_not_expect_fails_it(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with Toolkit(shop.app) as toolkit:
        enqueue("shop.broken", {"at": "refused"})
        with pytest.raises(AssertionError, match=r"job 1 shop\.broken \(refused\): not ours") as caught:
            toolkit.drain()
        assert "drain(expect_dead=['shop.broken'])" in str(caught.value)
        assert toolkit.drain().counts == {}, "those of an earlier drain are that one's"
        enqueue("shop.broken", {"at": "refused"})
        assert toolkit.drain(expect_dead="shop.broken").counts == {"dead": 1}
        with pytest.raises(AssertionError, match=r"no job did: shop\.broken"):
            toolkit.drain(expect_dead=["shop.broken"])
        enqueue("shop.broken", {"at": "refused"})
        assert asyncio.run(toolkit.drain_async(expect_dead={"shop.broken"})).counts == {"dead": 1}
        enqueue("shop.broken", {"at": "refused"})
        assert toolkit.drain(raises=False).counts == {"dead": 1}
        toolkit.capture("shop.broken", Refused("as the test has it"))
        enqueue("shop.broken", {"at": "refused"})
        assert toolkit.drain().counts == {"dead": 1}, "the test's own answer"


def test_a_mail_that_can_never_be_rendered_fails_the_test_of_the_report(tmp_path: Path) -> None:
    """What a handler leads to, by the kit: nothing is captured but what sends."""
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}", keys=f"k1={generate_key()}", templates=str(tmp_path))
    with Toolkit(shop.app, metadata=metadata) as toolkit:
        notice = {"job_type": "email.compose", "payload": {"template": "gone", "to": "ann@example.com"}}
        enqueue("report.request", {"report": "orders", "key": "k", "notify": [notice]})
        with pytest.raises(AssertionError, match=r"email\.compose \(TemplateNotFound\): there is no template 'gone'"):
            toolkit.drain()


def test_a_handler_may_request_a_report_of_the_same_app(tmp_path: Path) -> None:
    class Close(JobType[dict[str, Any]]):
        name = "shop.close"

        def perform(self, payload: dict[str, Any], attempt: Attempt) -> None:
            request_report("orders", key="orders:today", effects=shop.app)

    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")
    with Toolkit(shop.app, metadata=metadata) as toolkit:
        toolkit.add(Close())
        shop.order("teapot")
        enqueue("shop.close", {}, effects=shop.app)
        toolkit.drain()
        [orders_today] = toolkit.reports
        assert (orders_today.state, orders_today.key) == ("ready", "orders:today")
        assert orders_today.content.split() == [b"\xef\xbb\xbfid,item", b"1,teapot"]
        assert toolkit.app.storage.url != shop.app.settings.storage_url or "effects-toolkit-" in toolkit.app.storage.url
    assert "shop.close" not in shop.app.job_types


def test_a_job_type_that_is_registered_meanwhile_stays(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}")
    with Toolkit(app) as toolkit:
        app.add(pack := Pack())
        enqueue("shop.pack", Parcel(1))
        toolkit.drain()
    assert app.job_types.get("shop.pack") is pack
    assert pack.packed == 1


def test_no_transport_leaves_the_process(tmp_path: Path) -> None:
    """The real job type, put back by the test, and a server of the test's own that is called only when admitted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}/hooks"
        app = Effects(f"sqlite:///{tmp_path / 'shop.db'}", private_networks="127.0.0.0/8")
        real = app.job_types.get("webhook.deliver")
        for admitted in (False, True):
            with Toolkit(app, allow_loopback=admitted) as toolkit:
                toolkit.add(real)
                add_endpoint(url, ["order.*"], effects=app)
                deliver_webhook(WebhookEvent("order.placed", {}), effects=app)
                server.setblocking(False)
                if not admitted:
                    with pytest.raises(NetworkRefused, match=r"about to connect to 127\.0\.0\.1"):
                        toolkit.drain()
                    with pytest.raises(BlockingIOError):
                        server.accept()


@pytest.mark.parametrize("name", ["sqlite:///shop.db", "postgresql://shop@db/shop", "own"])
def test_a_database_that_is_not_called_a_tests_is_refused_unopened(name: str, tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}")
    with pytest.raises(ConfigurationError, match=r"'shop(\.db)?' is not called a test's"), Toolkit(app, database=name):
        pass
    assert not list(tmp_path.glob("shop*"))


@pytest.mark.slow
def test_the_apps_own_database_is_emptied_where_it_is_a_tests(database_url: str, tmp_path: Path) -> None:
    url = database_url if database_url.startswith("postgresql") else f"sqlite:///{tmp_path / 'test_shop.db'}"
    app = Effects(url, job_types=[Pack()], keys=f"k={generate_key()},digest={generate_key()}")
    app.create_tables()
    for _ in range(2):
        enqueue("shop.pack", Parcel(1), key="pack:1", effects=app)
        with Toolkit(app, database="own") as toolkit:
            assert toolkit.jobs == []
            assert not enqueue("shop.pack", Parcel(2), key="pack:1").existing
            assert toolkit.drain().counts == {"succeeded": 1}
        assert len(rows(app, "job_history")) == 1
        app.store.dispose()
        with Toolkit(app, database="own"):
            pass
    app.dispose()


NIGHTLY = Schedule("shop.nightly", "shop.pack", {"order": 7}, cron="0 2 * * *")


@pytest.mark.parametrize("kind", ["temporary", "own", "connection"])
@pytest.mark.slow
def test_declared_schedules_fall_due_when_the_clock_moves(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'test_shop.db'}", job_types=[Pack()], schedules=[NIGHTLY])
    options: dict[str, Any] = {} if kind == "temporary" else {"database": "own"}
    if kind == "connection":
        options = {"connection": request.getfixturevalue("connection")}
    for _ in range(2):
        with Toolkit(app, **options) as toolkit:
            toolkit.drain()
            assert toolkit.jobs == []
            toolkit.move_clock(86_400)
            assert toolkit.drain().counts == {"succeeded": 1}
            toolkit.assert_enqueued("shop.pack", order=7, times=1)
        if kind == "connection":
            break
    if kind == "own":
        assert [row["name"] for row in rows(app, "job_definitions")] == ["shop.nightly"]
    app.dispose()


def test_a_slot_from_before_the_test_is_not_due(connection: Connection, tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}", job_types=[Pack()], schedules=[NIGHTLY])
    with Toolkit(app, connection=connection):
        pass
    connection.exec_driver_sql("UPDATE effects_job_definitions SET last_slot = '2020-01-01'")
    with Toolkit(app, connection=connection) as toolkit:
        toolkit.drain()
        assert toolkit.jobs == []
    app.dispose()


def test_the_time_that_a_test_takes_makes_no_slot_due(tmp_path: Path) -> None:
    """At the full hour neither a drain nor a clock that is moved by some minutes has the slot of that hour."""
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}", job_types=[Pack()], schedules=[NIGHTLY])
    with Toolkit(app) as toolkit:
        app.store.shift_clock(86_400)  # as if the test had been at it for so long
        toolkit.drain()
        assert toolkit.jobs == []
        app.store.shift_clock(86_400)
        toolkit.move_clock(0.001)
        toolkit.move_clock(0.001)
        toolkit.drain()
        assert toolkit.jobs == []
        toolkit.move_clock(43_200)
        toolkit.move_clock(43_200)
        toolkit.drain()
        toolkit.assert_enqueued("shop.pack", order=7, times=1)
    app.dispose()


def test_a_toolkit_within_another_reads_what_the_other_has_sealed(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}", job_types=[Pack()])
    with Toolkit(app):
        keys, storage = app.keys, app.storage.url
        with Toolkit(app):
            assert (app.keys, app.storage.url) == (keys, storage)
    app.dispose()


def test_drain_async_leaves_the_loop_to_others(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'shop.db'}")

    async def visit() -> int:
        with Toolkit(shop.app) as toolkit:
            enqueue("shop.pack", Parcel(1))
            drained, turns = asyncio.ensure_future(toolkit.drain_async()), 0
            while not drained.done():
                turns += 1
                await asyncio.sleep(0)
            assert (await drained).counts == {"succeeded": 1}
            return turns

    assert asyncio.run(visit()) > 1


def test_the_fixture_takes_the_app_of_an_option_or_of_a_fixture(tmp_path: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        shop="from effects import Effects\napp = Effects('sqlite:///shop.db')",
        test_option="import shop\ndef test(effects_toolkit):\n    assert effects_toolkit.app is shop.app",
        test_fixture="""
            import pytest
            from effects import Effects
            own = Effects('sqlite:///own.db')
            @pytest.fixture
            def effects_app():
                return own
            def test(effects_toolkit):
                assert effects_toolkit.app is own""",
    )
    pytester.makeini("[pytest]\neffects_app = shop:app")
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=2)
    assert not list(tmp_path.glob("*.db"))


def test_the_app_must_be_an_effects() -> None:
    with pytest.raises(ConfigurationError, match="app is a list; give the Effects of the app"):
        Toolkit([Pack()])  # type: ignore[arg-type]


def test_the_default_of_before_comes_back_although_a_test_failed(tmp_path: Path) -> None:
    before, app = (Effects(f"sqlite:///{tmp_path / name}.db") for name in ("before", "shop"))
    set_default(before)
    toolkit = Toolkit(app)

    def fail() -> None:
        with toolkit:
            assert default() is app
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert default() is before


@pytest.mark.parametrize("inner_first", [False, True])
def test_another_effects_is_refused_unless_it_has_a_toolkit_too(tmp_path: Path, inner_first: bool) -> None:
    app, second_app = (Effects(f"sqlite:///{tmp_path / name}.db", job_types=[Broken()]) for name in ("shop", "other"))
    with Toolkit(app):
        with pytest.raises(ConfigurationError, match="another Effects than the toolkit's was used in a test"):
            enqueue("shop.broken", {"at": "perform"}, effects=second_app)
        enqueue("shop.broken", {"at": "perform"}, effects=app)
    first, second = (second_app, app) if inner_first else (app, second_app)
    with Toolkit(first) as toolkit, Toolkit(second) as second_toolkit:
        for named in (app, second_app):
            enqueue("shop.broken", {"at": "perform"}, effects=named)
        assert (len(toolkit.jobs), len(second_toolkit.jobs)) == (1, 1)
    assert not list(tmp_path.glob("*.db"))
    app.dispose()
    second_app.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_an_asynchronous_engine_of_the_apps_own_is_redirected_too(driver: str, postgresql_pool: DatabasePool) -> None:
    async def visit(test_url: str) -> None:
        url = make_url(test_url).set(drivername=f"postgresql+{driver}", database="nowhere")
        engine = create_async_engine(url)
        app = Effects(engine=engine, job_types=[Pack()])
        with Toolkit(app, database=test_url) as toolkit:
            async with AsyncSession(engine) as session:
                await enqueue_async("shop.pack", Parcel(1), session=session)
                await session.commit()
            assert (await toolkit.drain_async()).counts == {"succeeded": 1}
            await engine.dispose()
        app.dispose()

    with postgresql_pool.database() as url:
        asyncio.run(visit(url))


@pytest.fixture
def connection(postgresql_pool: DatabasePool) -> Iterator[Connection]:
    """Of a test's database, in a transaction that is rolled back."""
    with postgresql_pool.database() as url:
        engine = own_engine(url)
        with engine.connect() as connection:
            transaction = connection.begin()
            yield connection
            transaction.rollback()
            assert connection.exec_driver_sql("SELECT count(*) FROM effects_job_history").scalar() == 0
        engine.dispose()


def test_everything_happens_in_the_tests_transaction(shop: Shop, connection: Connection) -> None:
    if not shop.app.store.is_postgresql:
        pytest.skip("a transaction of PostgreSQL")
    with Toolkit(shop.app, connection=connection, metadata=metadata) as toolkit:
        add_endpoint("https://partner.example/hooks", ["order.*"], effects=shop.app)
        shop.order("teapot")
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            enqueue("shop.pack", Parcel(2), session=session, effects=shop.app)
            session.commit()
            enqueue("shop.pack", Parcel(3), session=session, effects=shop.app)
            session.rollback()
        with suppress(ZeroDivisionError), shop.sessions.begin() as own:
            enqueue("shop.pack", Parcel(4), session=own, effects=shop.app)
            raise ZeroDivisionError
        request_report("orders", effects=shop.app)
        assert toolkit.drain().counts == {"succeeded": 7}
        assert [job.payload.order for job in toolkit.enqueued("shop.pack")] == [1, 2]
        assert [event.deliveries[0].state for event in toolkit.webhooks] == ["done"]
        assert toolkit.reports[0].content
        with shop.sessions() as reading:
            assert reading.scalars(select(orders.c.item)).all() == ["teapot"]
            with pytest.raises(AssertionError, match="commit or close it before the drain"):
                toolkit.drain()
        with pytest.raises(ValueError, match="would take the test's connection"):
            toolkit.crash_at("perform.before")
    assert rows(shop.app, "jobs") == rows(shop.app, "job_history") == []


def test_the_drivers_own_connection_is_accepted(postgresql_pool: DatabasePool, tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'shop.db'}", job_types=[Pack()])
    with postgresql_pool.database() as url, psycopg.connect(url) as driver:
        with Toolkit(app, connection=driver) as toolkit:
            enqueue("shop.pack", Parcel(1), session=driver)
            enqueue("shop.pack", Parcel(2))
            assert toolkit.drain().counts == {"succeeded": 2}
        driver.rollback()
        assert driver.execute("SELECT count(*) FROM effects_job_history").fetchone() == (0,)
        driver.rollback()
        driver.autocommit = True
        with (
            pytest.raises(EnqueueError, match="is in AUTOCOMMIT"),
            Toolkit(app, connection=driver),
        ):
            pass


@pytest.mark.slow
def test_a_connection_of_another_driver_is_refused(tmp_path: Path) -> None:
    engine = own_engine(f"sqlite:///{tmp_path / 'test.db'}")
    toolkit = Toolkit(Effects(f"sqlite:///{tmp_path / 'shop.db'}"), connection=(connection := engine.connect()))
    with pytest.raises(ConfigurationError, match="connection is one of sqlite3"):
        toolkit.__enter__()
    connection.close()
    engine.dispose()
    with pytest.raises(ConfigurationError, match="give one of the two"):
        Toolkit(database="own", connection=connection)
