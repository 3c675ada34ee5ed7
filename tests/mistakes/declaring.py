"""Mistakes in declaring: job types, settings, schedules, the database."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from effects import Attempt, Done, JobType, RetryPolicy, Schedule
from tests.mistakes.shop import Mistake, Shop


@dataclass
class Pack:
    order_id: int


class Order(JobType[Any]):
    """Right as it is; each mistake makes a wrong one of it."""

    name = "shop.pack"

    def perform(self, payload: Any, attempt: Attempt) -> Done:
        return Done()


def order(**attributes: Any) -> JobType[Any]:
    return type("PackOrder", (Order,), attributes)()


async def load_async(self: Any, connection: Any, jobs: Any) -> dict[int, Any]:
    return {}


def perform_alone(self: Any, payload: Any) -> Done:
    return Done()


def perform_yielding(self: Any, payload: Any, attempt: Attempt) -> Any:
    yield Done()


class Forgotten(JobType[Pack]):
    name = "shop.pack"

    def perform(self, payload: Pack, attempt: Attempt) -> Done:
        return Done()


class Unwritten(JobType[Any]):
    name = "shop.pack"


def declare(name: str, cure: str, /, **attributes: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.bare_app(order(**attributes)), cure)


def decorated(name: str, cure: str, /, **policies: Any) -> Mistake:
    def pack(order: dict[str, int]) -> None: ...

    return Mistake(name, lambda shop: shop.bare_app().job("shop.pack", **policies)(pack), cure)


def written(name: str, cure: str, function: Callable[..., Any]) -> Mistake:
    return Mistake(name, lambda shop: shop.bare_app().job("shop.pack")(function), cure)


def without_a_type(order):  # type: ignore[no-untyped-def]
    """Of a shop."""


def with_a_session(order: int, session: Session) -> None: ...


def with_the_attempt_last(order: int, attempt: Attempt) -> None: ...


def with_any(*orders: int) -> None: ...


def misspelt_hook(shop: Shop) -> None:
    shop.bare_app().on("failed", print)  # type: ignore[arg-type]


def registered(name: str, cure: str, *job_types: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.bare_app(*job_types), cure)


def option(name: str, cure: str, /, **options: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.bare_app(**options), cure)


def schedule(name: str, cure: str, /, job_type: str = "scripted", **options: Any) -> Mistake:
    return Mistake(name, lambda shop: shop.bare_app(schedules=[Schedule("nightly", job_type, **options)]), cure)


def other_file(shop: Shop) -> object:
    file = shop.write("shop.db", "not a database, and longer than a header of SQLite is: " + "x" * 200)
    return shop.effects("status", url=f"sqlite:///{file}")


MISTAKES = [
    declare("writes `async def load`", "write a plain `def`: only perform may be async", load=load_async),
    declare("forgets the attempt in `perform`", "write `def perform(self, payload, attempt)`", perform=perform_alone),
    declare("puts a `yield` into `perform`", "it must return its answer", perform=perform_yielding),
    registered("writes no `perform`", "write `def perform(self, payload, attempt)`", Unwritten()),
    registered("registers the class", "give an instance, Order()", Order),
    registered("registers a function", "give an instance of a subclass of JobType", perform_alone),
    registered("forgets `payload = Pack`", "write `payload = Pack`", Forgotten()),
    registered("registers a job type twice", "registered twice", order(), order()),
    declare("names a job type with capitals", "dotted lower case, such as 'report.chunk'", name="Pack Order"),
    declare("leaves a job type without a name", "dotted lower case, such as 'report.chunk'", name=""),
    declare("mistypes `on_unknown`", "give one of repeat, repeat_once, hold", on_unknown="holdd"),
    declare("gives a number as `retry`", "give a RetryPolicy", retry=3),
    decorated("writes `max_attempts=` beside a job function", "retry=RetryPolicy(max_attempts=…)", max_attempts=3),
    decorated("writes `timeout=` beside a job function", "time_limit_seconds=", timeout=3),
    decorated("writes `delay=` beside a job function", "to each job: .using(…).enqueue(…)", delay=3),
    written("writes an argument without its type", "write its type", without_a_type),
    written("takes a session as an argument", "give an id, and look it up", with_a_session),
    written("takes the attempt behind an argument", "put it first", with_the_attempt_last),
    written("takes any number of arguments", "give each a name of its own", with_any),
    declare("gives a class that JSON cannot be made into", "a dataclass, a msgspec Struct, or dict", payload=Shop),
    Mistake("misspells a hook", misspelt_hook, "dead, unknown, paused"),
    declare("gives a negative time limit", "it must be above 0", time_limit_seconds=-1),
    declare("gives an instance as `payload`", "give a class", payload=Pack(1)),
    declare("gives a reserved share of 1", "give 0 to below 1", reserved_share=1.0),
    declare("gives a text as `priority`", "give a whole number", priority="high"),
    declare("takes the queue of quarantine", "not a name that a job type's queue may have", queue="quarantine"),
    Mistake("allows no attempt", lambda shop: RetryPolicy(max_attempts=0), "give 1 to 1000"),
    option("misspells an option of `Effects`", "is it 'threads'?", thread=3),
    option("gives a text as a number", "give a whole number, 1 to 2,147,483,647", threads="many"),
    option("gives a lease shorter than its heartbeats", "at least three heartbeats", lease_seconds=10.0),
    option("gives a queue without threads", "give name=threads, such as emails=8", queues="emails"),
    option("gives an unknown log format", "give text or json", log_format="xml"),
    option("gives keys that are not base64", "EFFECTS_KEYS, entry 1 (k1)", keys="k1=?"),
    option("gives a key that is too short", "a key has 32", keys="k1=c2hvcnQ="),
    option("gives a storage URL that is not known", "EFFECTS_STORAGE_URL", storage_url="ftp://bucket"),
    option("gives a schema with capitals", "give a plain lower-case identifier", schema="My Jobs"),
    option("gives another database's URL", "use sqlite or postgresql", url="mysql://root@localhost/shop"),
    option("asks for sealed texts of errors without keys", "needs EFFECTS_KEYS", error_texts="sealed"),
    option("gives a database file with a question mark in its name", "rename the file", url="sqlite:///a?b.db"),
    option("gives a file name as the database", "sqlite:///file.db", url="shop.db"),
    option("gives an in-memory database", "which no worker could share", url="sqlite://"),
    schedule("writes a crontab line with four fields", "give five fields", cron="0 7 * *"),
    schedule("writes an hour of 25", "0 to 23", cron="0 25 * * *"),
    schedule("misspells a time zone", "Europe/Berlin", cron="0 7 * * *", zone="Europe/Berln"),
    schedule("schedules a job type that is not there", "is it 'scripted'?", job_type="scriptd", cron="0 7 * * *"),
    schedule("schedules a payload that does not fit", "Expected `array`", cron="0 7 * * *", payload={"moves": 7}),
    Mistake("takes another file for the database", other_file, "restore it from a backup"),
]  # fmt: skip
