"""Mistakes in calls: enqueue, its options, sessions, handlers' answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from effects import Attempt, Done, JobType, NewJob, Retry, enqueue, enqueue_async, enqueue_many
from effects.calls.control import reschedule
from tests.mistakes.shop import Mistake, Shop
from tests.support.scripted import Scripted


def call(name: str, cure: str, payload: Any = None, job_type: Any = "scripted", **options: Any) -> Mistake:
    def make(shop: Shop) -> object:
        return enqueue(job_type, {} if payload is None else payload, effects=shop.app(), **options)

    return Mistake(name, make, cure)


def answer(name: str, cure: str, perform: Callable[[], Any]) -> Mistake:
    return Mistake(name, lambda shop: shop.handled(perform), cure)


class Tagged(JobType[dict[str, str]]):
    name = "tagged"
    payload = dict[str, str]

    def perform(self, payload: dict[str, str], attempt: Attempt) -> Done:
        return Done()


def wrong_value_in_dict(shop: Shop) -> object:
    return enqueue("tagged", {"team": "db", "incident": 7}, effects=shop.app(Tagged()))


def conflict(shop: Shop) -> object:
    app = shop.app()
    enqueue("scripted", {"name": "a"}, key="order:7", effects=app)
    return enqueue("scripted", {"name": "b"}, key="order:7", effects=app)


def of_another_database(shop: Shop) -> object:
    app = shop.app()
    with Session(create_engine(f"sqlite:///{shop.folder}/other.db")) as session:
        return enqueue("scripted", {}, session=session, effects=app)


def of_a_bare_session(shop: Shop) -> object:
    with Session() as session:
        return enqueue("scripted", {}, session=session, effects=shop.app())


def without_tables(shop: Shop) -> object:
    return enqueue("scripted", {}, effects=shop.bare_app(url=f"sqlite:///{shop.folder}/new.db"))


def read_only(shop: Shop) -> object:
    app = shop.app()
    app.dispose()
    with app.engine.connect() as connection:
        is_postgresql = connection.dialect.name == "postgresql"
    url = f"{shop.url}{'&' if '?' in shop.url else '?'}options=-cdefault_transaction_read_only%3Don"
    return enqueue("scripted", {}, effects=shop.bare_app(url=url)) if is_postgresql else _read_only_file(shop)


def _read_only_file(shop: Shop) -> object:
    file = shop.url.removeprefix("sqlite:///")
    return enqueue("scripted", {}, effects=shop.bare_app(url=f"sqlite:///file:{file}?mode=ro&uri=true"))


def cancel_ended(shop: Shop) -> object:
    app = shop.app()
    job = enqueue("scripted", {"moves": ["refuse"]}, key="k", effects=app)
    shop.why(app, "k")
    return shop.effects("cancel", job.job_id)


def one_for_many(shop: Shop) -> object:
    return enqueue_many(NewJob(job_type="scripted", payload={}), effects=shop.app())  # type: ignore[arg-type]


def bad_among_many(shop: Shop) -> object:
    jobs = [NewJob(job_type="scripted", payload={}, key=f"order:{most}", max_attempts=most) for most in (1, 0)]
    return enqueue_many(jobs, effects=shop.app())


def moved_to_a_text(shop: Shop) -> object:
    return reschedule(key="k", run_at="tomorrow", actor="ann", effects=shop.app())  # type: ignore[arg-type]


def of_an_async_app(shop: Shop) -> object:
    return enqueue("scripted", {}, session=AsyncSession(), effects=shop.app())  # type: ignore[arg-type]


def unnamed_among_two(shop: Shop) -> object:
    shop.bare_app()
    shop.bare_app(url=f"sqlite:///{shop.folder}/two.db")
    return enqueue("scripted", {})


def forgotten_with_effects(shop: Shop) -> object:
    app = shop.app()
    with Session(app.engine) as session:
        session.execute(text("CREATE TABLE notes (note TEXT)"))
        return enqueue("scripted", {})


def before_it_is_open(shop: Shop) -> object:
    async def enqueued() -> object:
        connection = create_async_engine(f"sqlite+aiosqlite:///{shop.folder}/shop.db").connect()
        return await enqueue_async("scripted", {}, session=connection, effects=shop.app())

    return asyncio.run(enqueued())


def of_the_inside(shop: Shop) -> object:
    session = AsyncSession(create_async_engine(f"sqlite+aiosqlite:///{shop.folder}/shop.db")).sync_session
    return enqueue("scripted", {}, session=session, effects=shop.app())


def divided() -> Any:
    return 1 / 0


async def asynchronous() -> Done:
    return Done()


def pack(order: dict, copies: int = 1) -> None:  # type: ignore[type-arg]
    """Of a shop."""


def packed(name: str, cure: str, /, *args: Any, **kwargs: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.app().job("shop.pack")(pack).enqueue(*args, **kwargs), cure)


def with_options(name: str, cure: str, /, **options: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.app().job("shop.pack")(pack).using(**options).enqueue({}), cure)


MISTAKES = [
    packed("gives an object deep in an argument", "at `$.order.lines[1].price`", {"lines": [{}, {"price": object()}]}),
    packed("gives an infinite number deep in an argument", "at `$.order.lines[0]`", {"lines": [float("inf")]}),
    packed("gives half of a character in an argument", "at `$.order.name`", {"name": "party \ud83d"}),
    packed("gives an argument of another type", "got `array` - at `$.order`", [1]),
    packed("leaves an argument out", "missing a required argument: 'order'"),
    packed("misspells an argument", "it takes order, copies", {}, copys=2),
    packed("gives an option as an argument", "write .using(key=…, delay=…).enqueue(…)", {}, key="pack:3", delay=60),
    with_options("gives an argument as an option", "write .using(…).enqueue(copies=…)", copies=2),
    call("gives a negative delay", "from 0 (now)", delay=-1),
    with_options("writes `countdown=` as elsewhere", "give delay=", countdown=60),
    call("misspells a job type", "is it 'scripted'?", job_type="scriptd"),
    call("misspells a queue", "is it 'emails'?", queue="emials"),
    call("gives the class of a job type", "job_type is the class Scripted; give a text", job_type=Scripted),
    call("gives a payload of another class", "Expected `array`", payload={"moves": "done"}),
    call("gives a payload that is no JSON", "at `$.moves[0]`", payload={"moves": [object()]}),
    Mistake("gives a number in a dict of texts", wrong_value_in_dict, "at `$.incident`"),
    call("gives a text as payload", "scripted: the payload is not valid", payload="moves"),
    call("gives a payload of 100 KB", "store the large part elsewhere", payload={"name": "x" * 100_000}),
    call("gives a NUL character", "which PostgreSQL cannot store", payload={"name": "\0"}),
    call("gives an empty key", "1 to 255 printable characters", key=""),
    call("gives a number as key", "give a text", key=7),
    call("gives a key with a line break", "printable", key="order\n7"),
    call("gives a text as time", "give an aware datetime, such as datetime.now(UTC)", run_at="tomorrow"),
    call("gives a time without a zone", "give an aware datetime", run_at=datetime(2026, 1, 1)),  # noqa: DTZ001
    call("gives a queue's number", "give a text", queue=3),
    call("allows no attempt of a job", "give 1 to 1000", max_attempts=0),
    call("misspells `on_unknown` of a job", "give one of repeat, repeat_once, hold", on_unknown="never"),
    call("gives anything as session", "pass a SQLAlchemy Session or Connection", session=object()),
    call("gives the class `Session`", "pass a SQLAlchemy Session or Connection", session=Session),
    Mistake("gives a session of another database", of_another_database, "pass effects="),
    Mistake("gives a session without an engine", of_a_bare_session, "or bind it"),
    Mistake("gives the same key with other data", conflict, "use another one for other content"),
    Mistake("calls before `effects init`", without_tables, " init`"),
    Mistake("writes to a database that is read-only", read_only, "is read-only"),
    Mistake("gives one job to `enqueue_many`", one_for_many, "give a list of NewJob"),
    Mistake("has one bad job among many", bad_among_many, "jobs[1] (key 'order:0'): "),
    Mistake("moves a job to a text", moved_to_a_text, "give an aware datetime"),
    Mistake("gives an async session to `enqueue`", of_an_async_app, "enqueue_async"),
    Mistake("gives an async connection that is not open", before_it_is_open, "async with engine.begin()"),
    Mistake("gives the session inside of an async one", of_the_inside, "await enqueue_async"),
    Mistake("names neither of two Effects", unnamed_among_two, "set_default(app)"),
    Mistake("forgets `session=` and `effects=`", forgotten_with_effects, "pass session="),
    Mistake("cancels a job that has ended", cancel_ended, "only a live job can be cancelled"),
    answer("divides by zero in a handler", "ZeroDivisionError at ", divided),
    answer("returns a text from a handler", "it must return an outcome, such as Done(), or None", lambda: "ok"),
    answer("returns a class from a handler", "it must return an outcome, such as Done(), or None", lambda: Done),
    answer("returns a coroutine from a handler", "it must return an outcome", asynchronous),
    answer("gives a text as wait", "give a number of seconds", lambda: Retry("busy", after_seconds="5")),  # type: ignore[arg-type]
]  # fmt: skip
