"""`@app.job`: a function as a job type, enqueued by its own method, on both databases."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.orm import Session

from effects import (
    Attempt,
    ConfigurationError,
    Done,
    Effects,
    EnqueueError,
    IdempotencyConflict,
    JobType,
    NewJob,
    PayloadInvalid,
    Refused,
    RetryPolicy,
    enqueue,
    status,
)
from effects.kit.frames import relative
from effects.model.function_type import JobPolicies
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.support.manual_workers import rows


@dataclass
class Page:
    team: str
    summary: str = "disk full"


class Call(msgspec.Struct):
    team: str


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    return app_factory(job_types=[])


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Effects]:
    """For what needs no database: its file is never made."""
    app = Effects(f"sqlite:///{tmp_path / 'nowhere.db'}")
    yield app
    app.dispose()


def drain(app: Effects) -> None:
    Worker(app, queues={"default": 1, "pager": 1}).drain()


def attempt_of() -> Any:
    """Stands in for the attempt where a test calls a handler itself; counts the releases."""
    releases: list[None] = []
    return SimpleNamespace(release=lambda: releases.append(None), releases=releases)


def test_a_function_is_called_by_a_worker_and_as_it_is(app: Effects) -> None:
    pages: list[tuple[str, int | None]] = []

    @app.job("pager.page", on_unknown="hold", queue="pager", priority=3)
    def page_on_call(page: Page, attempt: Attempt | None = None) -> None:
        """Ring."""
        pages.append((page.team, attempt.number if attempt else None))

    with Session(app.engine) as session, session.begin():
        receipt = page_on_call.enqueue(Page("db"), key="incident:7", session=session)
    assert (receipt.job_type, receipt.key, receipt.existing) == ("pager.page", "incident:7", False)
    assert page_on_call.enqueue(Page("db"), key="incident:7").existing
    with pytest.raises(IdempotencyConflict):
        page_on_call.enqueue(Page("web"), key="incident:7")
    drain(app)
    assert page_on_call(Page("called")) is None
    assert pages == [("db", 1), ("called", None)]
    assert status(key="incident:7", effects=app).state == "done"
    assert (page_on_call.name, page_on_call.__name__, page_on_call.__doc__) == ("pager.page", "page_on_call", "Ring.")
    assert "pager.page" in repr(page_on_call)


def test_a_rolled_back_job_is_not_enqueued(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    with Session(app.engine) as session:
        page_on_call.enqueue(Page("db"), session=session)
        page_on_call.enqueue_many([Page("a"), Page("b")], session=session)
        session.rollback()
    assert rows(app, "jobs") == []


def test_many_are_enqueued_with_a_key_each(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    teams = [Page("db"), Page("web")]
    receipts = page_on_call.enqueue_many(teams, key=lambda page: f"team:{page.team}", priority=1)
    assert [receipt.key for receipt in receipts] == ["team:db", "team:web"]
    again = page_on_call.enqueue_many(teams, key=lambda page: f"team:{page.team}")
    assert [receipt.existing for receipt in again] == [True, True]
    with pytest.raises(PayloadInvalid):
        page_on_call.enqueue_many([Page("x"), cast("Page", 5)])
    assert [row["priority"] for row in rows(app, "jobs")] == [1, 1]


@pytest.mark.parametrize("release", ["before", "manual"])
def test_the_release_comes_before_the_call_unless_it_is_manual(app: Effects, release: Any) -> None:
    released: list[int] = []

    @app.job("pager.page", on_unknown="hold", release=release)
    def page_on_call(page: Page, attempt: Attempt) -> None:
        released.append(len(cast("Any", attempt).releases))

    attempt = attempt_of()
    app.job_types.get("pager.page").perform(Page("db"), attempt)
    assert released == [1 if release == "before" else 0]


def test_a_failure_after_the_release_is_unknown(app: Effects) -> None:
    @app.job("pager.page", on_unknown="hold")
    def page_on_call(page: Page) -> None:
        raise ValueError

    @app.job("pager.ask", on_unknown="hold", release="manual", retry=RetryPolicy(max_attempts=1))
    def ask(page: Page, attempt: Attempt) -> None:
        raise ValueError

    page_on_call.enqueue(Page("db"), key="a")
    ask.enqueue(Page("db"), key="b")
    drain(app)
    assert [status(key=key, effects=app).state for key in "ab"] == ["unknown", "refused"]


def test_the_return_value_is_the_outcome(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> Done | Refused:
        return Refused("nobody there") if page.team == "web" else Done()

    page_on_call.enqueue_many([Page("db"), Page("web")], key=lambda page: page.team)
    drain(app)
    assert [status(key=key, effects=app).state for key in ("db", "web")] == ["done", "refused"]


def test_payloads_may_be_dataclasses_structs_mappings_and_defined_in_a_function(app: Effects) -> None:
    @dataclass
    class Local:
        team: str

    calls: list[Any] = []

    @app.job("pay.dataclass")
    def local(payload: Local) -> None:
        calls.append(payload)

    @app.job("pay.struct")
    def struct(payload: Call) -> None:
        calls.append(payload)

    @app.job("pay.dict")
    def plain(payload: dict[str, Any]) -> None:
        calls.append(payload)

    @app.job("pay.mapping")
    def mapping(payload: Mapping[str, Any]) -> None:
        calls.append(payload)

    local.enqueue(Local("a"))
    struct.enqueue(Call("b"))
    plain.enqueue({"team": "c"})
    mapping.enqueue({"team": "d"})
    enqueue("pay.struct", {"team": "by name"}, effects=app)
    drain(app)
    expected = [Local("a"), Call("b"), {"team": "c"}, {"team": "d"}, Call("by name")]
    assert sorted(calls, key=str) == sorted(expected, key=str)
    with pytest.raises(PayloadInvalid):
        struct.enqueue(cast("Call", {"squad": "b"}))


class Size(enum.Enum):
    LARGE = "l"


class Line(BaseModel):
    price: Decimal


AWKWARD = {
    "order": {"lines": [{"price": Decimal("1.10")}, Line(price=Decimal("2.50"))]},
    "at": datetime(2026, 11, 29, 12, tzinfo=UTC), "id": UUID(int=7), "size": Size.LARGE, "tags": {"a"},
    "page": Page("db"), "call": Call("b"), "nothing": None,
}  # fmt: skip
PLAIN = {
    "order": {"lines": [{"price": "1.10"}, {"price": "2.50"}]},
    "at": "2026-11-29T12:00:00Z", "id": str(UUID(int=7)), "size": "l", "tags": ["a"],
    "page": {"team": "db", "summary": "disk full"}, "call": {"team": "b"}, "nothing": None,
}  # fmt: skip
DICTS = pytest.mark.parametrize("annotation", [dict, dict[str, Any], Mapping[str, Any]], ids=str)


@DICTS
def test_a_payload_may_hold_what_a_context_may(app: Effects, annotation: Any) -> None:
    calls: list[Any] = []

    def plain(payload: Any) -> None:
        calls.append(payload)

    plain.__annotations__["payload"] = annotation
    job = app.job("pay.plain")(plain)
    job.enqueue(AWKWARD)
    job.enqueue(cast("Any", Line(price=Decimal("3.10"))))
    drain(app)
    assert calls == [PLAIN, {"price": "3.10"}]


@DICTS
@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), object(), "\ud83d"], ids=["nan", "infinite", "object", "half"]
)
def test_what_has_no_json_is_named_by_its_path(bare: Effects, annotation: Any, value: object) -> None:
    def plain(payload: Any) -> None: ...

    plain.__annotations__["payload"] = annotation
    with pytest.raises(PayloadInvalid, match=r" - at `\$\.order\.lines\[1\]\.price`$"):
        bare.job("pay.plain")(plain).enqueue({"order": {"lines": [{}, {"price": value}]}})


@pytest.mark.parametrize("delay", [0, timedelta(0)], ids=str)
def test_a_delay_of_zero_is_now(app: Effects, delay: Any) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    page_on_call.enqueue(Page("db"), delay=delay)
    drain(app)
    assert [job["status"] for job in rows(app, "job_history")] == ["succeeded"]


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)], ids=str)
def test_a_delay_counts_from_the_clock_of_the_database(app: Effects, delay: Any) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    page_on_call.enqueue(Page("db"), delay=delay)
    enqueue("pager.page", Page("db"), delay=delay, effects=app)
    page_on_call.enqueue(Page("db"))
    sql = app.store.sql
    with app.store.read() as connection:
        select = f"SELECT {sql.seconds('created_at', 'run_at')} FROM {sql.jobs} ORDER BY id"
        waits = [float(seconds) for seconds in connection.execute(text(select)).scalars()]
    assert waits == pytest.approx([3600, 3600, 0], abs=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"delay": -1}, r"delay is -1; give a timedelta or seconds, from 0 \(now\)"),
        ({"delay": timedelta(seconds=-1)}, "give a timedelta or seconds"),
        ({"delay": "soon"}, "delay is a str; give a timedelta or seconds"),
        ({"delay": float("nan")}, "delay is nan; give a timedelta or seconds"),
        ({"delay": True}, "delay is a bool"),
        ({"delay": timedelta(days=99999)}, "at most a hundred years"),
        ({"delay": 5, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay and run_at are both given"),
    ],
    ids=str,
)
def test_a_wrong_delay_is_refused(app: Effects, options: dict[str, Any], words: str) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    with pytest.raises(EnqueueError, match=words):
        page_on_call.enqueue(Page("db"), **options)
    assert rows(app, "jobs") == []


class Pager:
    def page(self, page: Page) -> None: ...

    @staticmethod
    def static(page: Page) -> None: ...


async def asynchronous(page: Page) -> Any:
    yield page


def generator(page: Page) -> Any:
    yield page


def not_annotated(page) -> None: ...  # type: ignore[no-untyped-def]


def too_many(page: Page, attempt: Attempt, more: int) -> None: ...


def needs_a_keyword(page: Page, *, more: int) -> None: ...


def nothing() -> None: ...


def too_early(page: NotHere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "options", "words"),
    [
        (Pager.page, {}, "Pager.page .* is a method of Pager; a job is a function of a module"),
        (Pager().page, {}, "it is a method"),
        (vars(Pager)["static"], {}, "it is a method"),
        (lambda page: None, {}, "it is a lambda"),
        (asynchronous, {}, "it is a generator"),
        (generator, {}, "it is a generator"),
        (not_annotated, {}, "its first parameter, page, has no annotation: write the class of the payload"),
        (too_many, {}, "must take the payload, or the payload and the attempt, and nothing else"),
        (needs_a_keyword, {}, "and nothing else"),
        (nothing, {}, "must take the payload"),
        (too_early, {}, "annotations cannot be read: name 'NotHere' is not defined. Define the classes above"),
        (Pager, {}, "it is a class"),
        (print, {}, "it is a builtin"),
        (Pager.page, {"release": "after"}, "method"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_a_job_is_refused_where_it_is(
    bare: Effects, function: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        bare.job("pager.page", **options)(function)
    assert "pager.page" in str(caught.value)
    assert "pager.page" not in bare.job_types


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"on_unkown": "hold"}, "there is no policy 'on_unkown'; is it 'on_unknown'? (known: captured_in_tests, "),
        ({"retries": 5}, "there is no policy 'retries'; give retry=RetryPolicy(max_attempts=…) (known: "),
        ({"threads": 5}, "there is no policy 'threads' (known: captured_in_tests, enqueues_more"),
        ({"on_unknown": "never"}, "on_unknown is 'never'; give one of repeat, repeat_once, hold"),
        ({"release": "after"}, "release is 'after'; give 'before' or 'manual'"),
        ({"release": "manual"}, "release='manual' needs a second parameter, attempt"),
        ({"retry": 5}, "retry is an int; give a RetryPolicy"),
    ],
    ids=str,
)
def test_wrong_policies_are_refused(bare: Effects, options: dict[str, Any], words: str) -> None:
    def page_on_call(page: Page) -> None: ...

    with pytest.raises(ConfigurationError) as caught:
        bare.job("pager.page", **options)(page_on_call)
    assert words in str(caught.value)


def test_a_decorator_without_a_name_says_what_to_write(bare: Effects) -> None:
    with pytest.raises(ConfigurationError, match=r"write @app.job\('pager.page'\)"):

        @bare.job  # type: ignore[arg-type]
        def page_on_call(page: Page) -> None: ...


class PageOnCall(JobType[Page]):
    name = "pager.page"
    payload = Page

    def perform(self, payload: Page, attempt: Attempt) -> None: ...


def test_a_name_that_is_taken_names_both_places(bare: Effects) -> None:
    def page_on_call(page: Page) -> None: ...

    bare.job("pager.page")(page_on_call)
    places = [
        f"{relative(__file__)}:{code.co_firstlineno}" for code in (page_on_call.__code__, PageOnCall.perform.__code__)
    ]
    with pytest.raises(ConfigurationError) as caught:
        bare.add(PageOnCall())
    assert str(caught.value) == f"job type 'pager.page' is registered twice: {' and '.join(places)}"


def test_every_policy_of_a_job_type_can_be_given() -> None:
    assert JobPolicies.__annotations__.keys() == JobType.__annotations__.keys() - {"name", "payload"}


def test_a_new_job_takes_a_delay() -> None:
    assert NewJob(job_type="pager.page", payload={}, delay=timedelta(minutes=1)).delay == timedelta(minutes=1)
