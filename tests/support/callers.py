"""Every way in which an app holds the transaction that it hands to `session=`."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import psycopg2
import sqlalchemy as sa
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from effects import Effects, enqueue
from effects.keys.encryption import generate_key
from effects.store.db.urls import database_url as parse_url
from effects_email import send_templated_email
from effects_reports import report, request_report
from effects_webhooks import WebhookEvent, deliver_webhook
from tests.support.django_setup import set_up_django
from tests.support.scripted import Scripted

KEYS = f"k1={generate_key()},digest={generate_key()}"
EFFECTS: dict[str, Callable[[Effects, Any, int], object]] = {  # the job type that each leads to
    "scripted": lambda app, session, n: enqueue("scripted", {}, key=f"{n}", session=session, effects=app),
    "webhook.deliver": lambda app, session, n: deliver_webhook(
        WebhookEvent("order.placed", {"order": n}, key=f"{n}"), session=session, effects=app
    ),
    "email.send": lambda app, session, n: send_templated_email(
        "hello", to=f"ann{n}@example.com", context={}, key=f"{n}", session=session, effects=app
    ),
    "report.plan": lambda app, session, n: request_report("orders", None, key=f"{n}", session=session, effects=app),
}
orders = sa.Table("shop_orders", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))


class RollBackError(Exception):
    """Ends a transaction or a savepoint of a test by an exception."""


@report("orders", key=("id",), formats=("csv",))
def all_orders(params: None) -> Any:
    return sa.select(orders.c.id)


def shop(url: str, folder: Path, keys: str = KEYS) -> Effects:
    """An Effects that has effects of every kind."""
    template = folder / "emails" / "hello"
    template.mkdir(parents=True, exist_ok=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello\n")
    return Effects(
        url, job_types=[Scripted()], reports=[all_orders], keys=keys, templates=folder / "emails",
        email_from="Shop <hello@shop.example>", smtp_url=f"maildir:{folder}/mail", storage_url=f"file:{folder}/files",
    )  # fmt: skip


class Caller:
    """An app's transaction; `session` is what it hands over."""

    session: Any

    def __init__(self, url: str) -> None:
        self.url = make_url(url)

    def execute(self, sql: str) -> None:
        self.session.execute(sql)

    def transaction(self) -> AbstractContextManager[Any]:
        """Commits at the end, or is rolled back by an exception."""
        raise NotImplementedError

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Rolled back by an exception."""
        self.execute("SAVEPOINT of_the_app")
        try:
            yield
        except BaseException:
            self.execute("ROLLBACK TO SAVEPOINT of_the_app")
            raise

    def close(self) -> None:
        self.session.close()


class _OrmCaller(Caller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.engine = sa.create_engine(parse_url(url))
        _begin_by_sqlalchemy(self.engine)
        self.session: Any = Session(self.engine)

    def execute(self, sql: str) -> None:
        self.session.execute(sa.text(sql))

    def transaction(self) -> AbstractContextManager[Any]:
        return self.session.begin()  # type: ignore[no-any-return]

    def savepoint(self) -> Any:
        return self.session.begin_nested()

    def close(self) -> None:
        self.session.close()
        self.engine.dispose()


class _CoreCaller(_OrmCaller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.session = self.engine.connect()


def _begin_by_sqlalchemy(engine: sa.Engine) -> None:
    """As SQLAlchemy's documentation says for savepoints on SQLite."""
    if engine.dialect.name != "sqlite":
        return

    @sa.event.listens_for(engine, "connect")
    def configure(driver: Any, record: Any) -> None:
        driver.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")


def _libpq(url: sa.URL) -> dict[str, Any]:
    return {
        "host": url.query.get("host", url.host), "port": url.port, "user": url.username, "password": url.password,
        "dbname": url.database,
    }  # fmt: skip


class _PsycopgCaller(Caller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.session = psycopg.connect(**_libpq(self.url), row_factory=psycopg.rows.dict_row)

    def transaction(self) -> AbstractContextManager[Any]:
        return self.session.transaction()  # type: ignore[no-any-return]

    def savepoint(self) -> Any:
        return self.session.transaction()


class _Psycopg2Caller(Caller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.session = psycopg2.connect(**_libpq(self.url))

    def execute(self, sql: str) -> None:
        with self.session.cursor() as cursor:
            cursor.execute(sql)

    def transaction(self) -> AbstractContextManager[Any]:
        return self.session  # type: ignore[no-any-return]


class _SqliteCaller(Caller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.session = sqlite3.connect(str(self.url.database))
        self.session.row_factory = sqlite3.Row

    def transaction(self) -> AbstractContextManager[Any]:
        return self.session  # type: ignore[no-any-return]


class _DjangoCaller(Caller):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        set_up_django()
        self.session = connections["shop"] = ConnectionHandler({"default": self._settings()})["default"]
        self.session.alias = "shop"

    def _settings(self) -> dict[str, Any]:
        if self.url.get_backend_name() == "sqlite":
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": self.url.database}
        values = _libpq(self.url)
        return {
            "ENGINE": "django.db.backends.postgresql", "NAME": values["dbname"], "HOST": values["host"] or "",
            "PORT": str(values["port"] or ""), "USER": values["user"] or "", "PASSWORD": values["password"] or "",
        }  # fmt: skip

    def execute(self, sql: str) -> None:
        with self.session.cursor() as cursor:
            cursor.execute(sql)

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using="shop")  # type: ignore[no-any-return]

    def savepoint(self) -> Any:
        return transaction.atomic(using="shop")

    def close(self) -> None:
        self.session.close()
        del connections["shop"]


KINDS: dict[str, tuple[str, type[Caller]]] = {
    f"{database} {name}": (database, kind)
    for name, kind, databases in (
        ("Session", _OrmCaller, ("sqlite", "postgresql")),
        ("Connection", _CoreCaller, ("sqlite", "postgresql")),
        ("Django", _DjangoCaller, ("sqlite", "postgresql")),
        ("sqlite3", _SqliteCaller, ("sqlite",)),
        ("psycopg", _PsycopgCaller, ("postgresql",)),
        ("psycopg2", _Psycopg2Caller, ("postgresql",)),
    )
    for database in databases
}


def act(app: Effects, caller: Caller, number: int, *effects: str) -> None:
    """Write an order and the effects that follow from it."""
    caller.execute(f"INSERT INTO shop_orders (id) VALUES ({number})")
    for effect in effects:
        EFFECTS[effect](app, caller.session, number)


def be_killed(kind: str, url: str, folder: str, keys: str, when: str) -> None:
    """Act on order 1, in a process that does not live to its end."""
    app = shop(url, Path(folder), keys)
    caller = KINDS[kind][1](url)
    with suppress(RollBackError), caller.transaction():
        act(app, caller, 1, *EFFECTS)
        if when == "before the commit":
            os.kill(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
