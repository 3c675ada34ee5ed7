"""Errors of the database by class, each raised by a real one; and what becomes of the connection that heard of it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from effects import Effects, EffectsError, SchemaMismatch, StoreUnavailable, enqueue
from effects.errors import StoreConflict, StoreRejected
from effects.operate.tables.server_checks import examine_waits
from effects.store.db.deadlines import BoundedLock, Bounds
from effects.store.db.engine import CONNECTION_TIMEOUTS
from effects.store.db.faults import POSTGRESQL, Fault, fault_of
from effects.store.db.store import Store
from effects.store.notifier import listen
from tests.conftest import AppFactory
from tests.peers.proxy import Proxy
from tests.support.scripted import Scripted
from tests.support.waiting import PATIENCE_SECONDS

on_postgresql = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
on_sqlite = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

STATES = {
    Fault.CONFLICT: "40000 40001 40002 40P01 55P03 25P03 25P04 26000",
    Fault.OUTAGE: "08000 08003 08006 08P01 40003 53000 53100 53200 53300 53400 57000 57014 57P01 57P02 57P03 57P04 "
    "57P05 58000 58030 58P01",
    Fault.READ_ONLY: "25006",
    Fault.SCHEMA: "3D000 3F000 42703 42704 42883 42P01 42P10",
    Fault.DATA: "21000 22000 22003 22007 22008 22021 22P02 22P05 23502 23503 23505 23514 23P01 44000 54000 P0001",
    Fault.DENIED: "28000 28P01 42501",
    Fault.BUG: "0A000 25P02 34000 42601 55000 55006 F0000 HV000 XX000 XX001 XX002",
}
STALE = "26000"  # of a prepared statement that is gone: only a fresh connection prepares it again
BY_STATE = {state: fault for fault, states in STATES.items() for state in states.split()}
OURS = {
    Fault.CONFLICT: StoreConflict,
    Fault.OUTAGE: StoreUnavailable,
    Fault.READ_ONLY: StoreUnavailable,
    Fault.SCHEMA: StoreRejected,
    Fault.DATA: DBAPIError,
    Fault.DENIED: StoreRejected,
    Fault.BUG: StoreRejected,
}


@on_postgresql
def test_every_sqlstate_has_a_class_and_an_outage_costs_the_connection(app: Effects) -> None:
    """The last because waiting on the same session never ends: only a fresh one finds the server that is there now."""
    heard = {}
    for state, fault in BY_STATE.items():
        before = _backend(app.store)
        error = _raised(app.store, f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
        heard[state] = fault_of(error if isinstance(error, DBAPIError) else error.__context__ or error)
        assert isinstance(error, OURS[fault]), state
        assert (_backend(app.store) != before) is (fault in (Fault.OUTAGE, Fault.READ_ONLY) or state == STALE), state
    assert heard == BY_STATE
    assert {state[: len(prefix)] for prefix in POSTGRESQL for state in BY_STATE} >= set(POSTGRESQL)


@on_postgresql
def test_a_fault_of_the_server_is_told_from_one_that_is_not_there(app: Effects) -> None:
    words = {"58P01": "cannot use a file of its own", "53300": "short of connections", "57P03": "cannot be reached"}
    for state, expected in words.items():
        error = _raised(app.store, f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END $$")
        assert expected in str(error), state


def test_a_pool_that_is_too_small_is_named(app: Effects) -> None:
    engine = sa.create_engine(app.engine.url, poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01)
    own = Effects(engine=engine, job_types=[Scripted()])
    with engine.connect(), pytest.raises(StoreConflict, match=r"every connection of the pool is in use: .*pool_size"):
        enqueue("scripted", {}, effects=own)
    own.dispose()
    engine.dispose()


def test_a_missing_table_of_the_apps_own_is_not_made_by_init(app: Effects) -> None:
    """As a handler's `apply` may meet it."""
    with pytest.raises(StoreRejected, match=r"^a table of the app's own is missing: create it .*shop_sessions"):
        _write(app, "DELETE FROM shop_sessions")
    _write(app, "DROP TABLE effects_alert_episodes")
    with pytest.raises(StoreRejected, match=r"run `effects .*init` .*effects_alert_episodes"):
        _write(app, "DELETE FROM effects_alert_episodes")


def _write(app: Effects, statement: str) -> None:
    with app.store.begin() as connection:
        connection.exec_driver_sql(statement)


@on_postgresql
def test_a_read_only_server_is_recognised(app: Effects, app_factory: AppFactory) -> None:
    with app.store.begin() as connection:
        name = connection.exec_driver_sql("SELECT current_database()").scalar()
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    with pytest.raises(StoreUnavailable, match=r"is read-only: .*default_transaction_read_only is set"):
        enqueue("scripted", {}, effects=app_factory())


@on_postgresql
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("own", [True, False])
def test_every_transaction_is_read_committed(isolation: str, own: bool, database_url: str) -> None:
    """Whatever the server's default, and whatever the app's own engine is set to."""
    options = {"connect_args": {"options": f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"}}
    if own:
        quoted = isolation.replace(" ", "%5C%20")
        app = Effects(
            f"{database_url.partition('?')[0]}?{_query(database_url)}options=-cdefault_transaction_isolation%3D{quoted}"
        )
    else:
        url = database_url.replace("postgresql:", "postgresql+psycopg:")
        app = Effects(engine=sa.create_engine(url, isolation_level="SERIALIZABLE", **options))
    try:
        for step in (app.store.begin, app.store.single):
            with step() as connection:
                assert connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"
    finally:
        app.dispose()


def _query(url: str) -> str:
    query = url.partition("?")[2]
    return f"{query}&" if query else ""


@on_postgresql
def test_an_engine_of_ours_bounds_every_wait_for_its_server(database_url: str) -> None:
    """A value of the URL goes before ours."""
    app = Effects(f"{database_url.partition('?')[0]}?{_query(database_url)}keepalives_idle=7")
    expected = {**{name: str(value) for name, value in CONNECTION_TIMEOUTS.items()}, "keepalives_idle": "7"}
    for engine in app.store.engines:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
        parameters = driver.info.get_parameters()
        assert {name: parameters.get(name, "1") for name in expected} == expected  # libpq does not name a default
    app.dispose()


@pytest.mark.slow
@on_postgresql
def test_a_transaction_waits_for_a_lock_no_longer_than_its_bounds(app: Effects, app_factory: AppFactory) -> None:
    store = app_factory().store
    with app.store.begin() as holder:
        holder.exec_driver_sql("LOCK TABLE effects_jobs")
        with store.within(Bounds(lock_seconds=0.05, seconds=60)):
            for step in (store.begin, store.single):
                with pytest.raises(StoreConflict), step() as connection:
                    connection.exec_driver_sql("SELECT 1 FROM effects_jobs")


def _transaction(store: Store) -> None:
    with store.begin():
        pass


class _Deaf(Proxy):
    """Once armed, it passes the next statement to no one, and closes nothing."""

    armed = False

    def verdict(self, statement: str, transaction: str | None) -> str | None:
        armed, self.armed = self.armed, False
        return "hang" if armed else None


def _listener(store: Store) -> None:
    listen(store, "anything").close()


# Whether it is connected already, options of its engine, what it does, and how that ends.
UNANSWERED: dict[str, tuple[bool, dict[str, bool], Callable[[Store], None], type[Exception]]] = {
    "a transaction": (True, {}, _transaction, StoreUnavailable),
    "the first connection": (False, {}, _transaction, StoreUnavailable),
    "a ping": (True, {"pool_pre_ping": True}, _transaction, StoreUnavailable),
    "a listener": (True, {}, _listener, psycopg.OperationalError),
    "a listener that connects": (False, {}, _listener, OperationalError),
}


@pytest.mark.slow
@on_postgresql
@pytest.mark.parametrize("case", UNANSWERED)
def test_a_server_that_does_not_answer_is_left(database_url: str, case: str) -> None:
    """It closes nothing: another thread shuts the socket, and the wait ends as when a server dies."""
    connected, options, use, kind = UNANSWERED[case]
    with _Deaf(database_url) as proxy:
        store = Store(sa.create_engine(sa.make_url(proxy.url).set(drivername="postgresql+psycopg"), **options))
        if connected:
            _transaction(store)
        proxy.armed = True
        failed: list[Exception] = []

        def wait() -> None:
            try:
                with store.within(Bounds(lock_seconds=1, seconds=0.05)):
                    use(store)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while thread.is_alive() and time.monotonic() < deadline:
            store.deadlines.cut_overdue()
            thread.join(0.02)
        assert not thread.is_alive()
        assert not proxy.armed
        assert [type(error) for error in failed] == [kind]
        _transaction(store)
        store.engine.dispose()


@pytest.mark.slow
@on_postgresql
def test_doctor_warns_of_an_engine_without_timeouts(proxy: Proxy) -> None:
    """A socket of this host needs no timeouts; over TCP the app's own engine may lack them."""
    url = sa.make_url(proxy.url).set(drivername="postgresql+psycopg")
    plain = sa.create_engine(url)
    timely = sa.create_engine(url, connect_args=CONNECTION_TIMEOUTS)
    assert [finding.level for finding in examine_waits(Store(plain))] == ["warning"]
    assert [finding.level for finding in examine_waits(Store(timely))] == ["ok"]
    plain.dispose()
    timely.dispose()


def test_missing_tables_are_named(empty_database_url: str) -> None:
    app = Effects(empty_database_url, job_types=[Scripted()])
    with pytest.raises(StoreRejected, match=r"run `effects .*init`"), app.store.begin() as connection:
        connection.exec_driver_sql("SELECT 1 FROM effects_jobs")
    with pytest.raises(SchemaMismatch, match=r"run `effects .*init`"):
        enqueue("scripted", {}, effects=app)
    app.dispose()


@on_sqlite
def test_each_error_of_sqlite_has_a_class(app: Effects, tmp_path: Path) -> None:
    store = app.store
    assert _fault(store, "SELECT 1 FROM nowhere") is Fault.SCHEMA
    assert _fault(store, "SELECT absent FROM effects_jobs") is Fault.SCHEMA
    assert _fault(store, "INSERT INTO effects_jobs (id) VALUES ('x')") is Fault.DATA
    assert _fault(store, "SELECT CAST(x'e9' AS TEXT)") in (Fault.DATA, None)  # None once a text may be anything
    assert _fault(store, "nonsense") is Fault.BUG
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database at all, but long enough to be read as the header of one" * 20)
    assert _fault(Effects(f"sqlite:///{noise}").store, "SELECT 1 FROM effects_jobs") is Fault.CORRUPT
    assert _fault(Effects(f"sqlite:///{tmp_path}/no/folder.db").store, "SELECT 1") is Fault.OUTAGE


@on_sqlite
def test_a_file_that_may_not_be_written_is_recognised(app: Effects) -> None:
    with app.store.begin() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")  # SQLITE_READONLY, for root too
    refused = _raised(app.store, "DELETE FROM effects_jobs")
    assert isinstance(refused, StoreUnavailable)
    assert refused.read_only
    assert "give it the permission to write" in str(refused)


@on_sqlite
def test_a_file_that_another_transaction_holds_is_a_conflict(app: Effects, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'effects.db'}", connect_args={"timeout": 0.05})
    engine_store = Store(engine)
    holder = sqlite3.connect(tmp_path / "effects.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreConflict, match="pass session="), engine_store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM effects_jobs")
    holder.close()
    engine.dispose()


def test_a_thread_waits_for_another_no_longer_than_for_another_process() -> None:
    lock = BoundedLock(0.02)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock, lock:  # its holder may take it again
            held.set()
            done.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    with pytest.raises(StoreConflict), lock:
        pass
    done.set()
    thread.join()


def _raised(store: Store, statement: str) -> Exception:
    with pytest.raises((EffectsError, DBAPIError)) as raised, store.begin() as connection:
        connection.exec_driver_sql(statement)
    return raised.value


def _fault(store: Store, statement: str) -> Fault | None:
    try:
        with store.begin() as connection:
            connection.exec_driver_sql(statement)
    except (EffectsError, DBAPIError) as error:
        return fault_of(error if isinstance(error, DBAPIError) else error.__context__ or error)
    finally:
        store.dispose()
    return None


def _backend(store: Store) -> int:
    with store.begin() as connection:
        return int(connection.exec_driver_sql("SELECT pg_backend_pid()").scalar() or 0)
