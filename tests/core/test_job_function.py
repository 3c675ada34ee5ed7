"""`@app.job`: a function as a job type, enqueued by its own method, on both databases."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, cast
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
    Sensitive,
    enqueue,
    enqueue_many,
    status,
)
from effects.keys.encryption import generate_key
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
    pages: list[tuple[str, int, int]] = []

    @app.job("pager.page", on_unknown="hold", queue="pager", priority=3)
    def page_on_call(attempt: Attempt, team: str, *, floor: int = 1) -> None:
        """Ring."""
        pages.append((team, floor, attempt.number))

    with Session(app.engine) as session, session.begin():
        receipt = page_on_call.using(key="incident:7", session=session).enqueue("db", floor=2)
    assert (receipt.job_type, receipt.key, receipt.existing) == ("pager.page", "incident:7", False)
    assert page_on_call.using(key="incident:7").enqueue(floor=2, team="db").existing
    with pytest.raises(IdempotencyConflict):
        page_on_call.using(key="incident:7").enqueue("web")
    page_on_call.enqueue(team="web")
    stored = [row["payload"] for row in rows(app, "jobs")]
    decoded = [json.loads(payload) if isinstance(payload, str) else payload for payload in stored]
    assert decoded == [{"team": "db", "floor": 2}, {"team": "web"}]
    drain(app)
    attempt = cast("Attempt", SimpleNamespace(number=0))
    assert page_on_call(attempt, "called") is None
    assert pages == [("db", 2, 1), ("web", 1, 1), ("called", 1, 0)]
    assert status(key="incident:7", effects=app).state == "done"
    assert (page_on_call.name, page_on_call.__name__, page_on_call.__doc__) == ("pager.page", "page_on_call", "Ring.")
    assert "pager.page" in repr(page_on_call)


def test_a_rolled_back_job_is_not_enqueued(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    with Session(app.engine) as session:
        page_on_call.using(session=session).enqueue(Page("db"))
        enqueue_many([page_on_call.job(Page("a")), page_on_call.job(Page("b"))], session=session)
        session.rollback()
    assert rows(app, "jobs") == []


def test_many_are_enqueued_with_a_key_each(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    jobs = [page_on_call.using(key=f"team:{team}", priority=1).job(Page(team)) for team in ("db", "web")]
    assert [receipt.key for receipt in enqueue_many(jobs, effects=app)] == ["team:db", "team:web"]
    assert [receipt.existing for receipt in enqueue_many(jobs, effects=app)] == [True, True]
    with pytest.raises(
        PayloadInvalid, match=r"jobs\[1\]: .*page_on_call .*Expected `object`, got `int` - at `\$.page`"
    ):
        enqueue_many([page_on_call.job(Page("x")), page_on_call.job(cast("Page", 5))], effects=app)
    assert [row["priority"] for row in rows(app, "jobs")] == [1, 1]


@pytest.mark.parametrize("release", ["before", "manual"])
def test_the_release_comes_before_the_call_unless_it_is_manual(app: Effects, release: Any) -> None:
    released: list[int] = []

    @app.job("pager.page", on_unknown="hold", release=release)
    def page_on_call(attempt: Attempt) -> None:
        released.append(len(cast("Any", attempt).releases))

    page = app.job_types.get("pager.page")
    page.perform(page.decode("{}"), attempt_of())
    assert released == [1 if release == "before" else 0]


def test_a_failure_after_the_release_is_unknown(app: Effects) -> None:
    @app.job("pager.page", on_unknown="hold")
    def page_on_call(page: Page) -> None:
        raise ValueError

    @app.job("pager.ask", on_unknown="hold", release="manual", retry=RetryPolicy(max_attempts=1))
    def ask(attempt: Attempt, page: Page) -> None:
        raise ValueError

    page_on_call.using(key="a").enqueue(Page("db"))
    ask.using(key="b").enqueue(Page("db"))
    drain(app)
    assert [status(key=key, effects=app).state for key in "ab"] == ["unknown", "refused"]


def test_the_return_value_is_the_outcome(app: Effects) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> Done | Refused:
        return Refused("nobody there") if page.team == "web" else Done()

    for team in ("db", "web"):
        page_on_call.using(key=team).enqueue(Page(team))
    drain(app)
    assert [status(key=key, effects=app).state for key in ("db", "web")] == ["done", "refused"]


def test_arguments_may_be_dataclasses_structs_mappings_and_defined_in_a_function(app: Effects) -> None:
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
    enqueue("pay.struct", {"payload": {"team": "by name"}}, effects=app)
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
def test_an_argument_may_hold_what_a_context_may(app: Effects, annotation: Any) -> None:
    calls: list[Any] = []

    def plain(payload: Any) -> None:
        calls.append(payload)

    plain.__annotations__["payload"] = annotation
    job = app.job("pay.plain")(plain)
    job.enqueue(AWKWARD)
    job.enqueue(Line(price=Decimal("3.10")))
    drain(app)
    assert calls == [PLAIN, {"price": "3.10"}]


@DICTS
@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), object(), "\ud83d"], ids=["nan", "infinite", "object", "half"]
)
def test_what_has_no_json_is_named_by_its_path(bare: Effects, annotation: Any, value: object) -> None:
    def plain(payload: Any) -> None: ...

    plain.__annotations__["payload"] = annotation
    with pytest.raises(PayloadInvalid, match=r" - at `\$\.payload\.order\.lines\[1\]\.price`$"):
        bare.job("pay.plain")(plain).enqueue({"order": {"lines": [{}, {"price": value}]}})


@pytest.mark.parametrize("delay", [0, timedelta(0)], ids=str)
def test_a_delay_of_zero_is_now(app: Effects, delay: Any) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    page_on_call.using(delay=delay).enqueue(Page("db"))
    drain(app)
    assert [job["status"] for job in rows(app, "job_history")] == ["succeeded"]


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)], ids=str)
def test_a_delay_counts_from_the_clock_of_the_database(app: Effects, delay: Any) -> None:
    @app.job("pager.page")
    def page_on_call(page: Page) -> None: ...

    page_on_call.using(delay=delay).enqueue(Page("db"))
    enqueue("pager.page", {"page": {"team": "db"}}, delay=delay, effects=app)
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
        page_on_call.using(**options).enqueue(Page("db"))
    assert rows(app, "jobs") == []


def test_values_arrive_as_the_types_of_the_parameters(app: Effects) -> None:
    calls: list[Any] = []

    @app.job("pay.typed")
    def typed(at: datetime, price: Decimal, order: UUID, size: Size, line: Line, pages: list[Page]) -> None:
        calls.append((at, price, order, size, line, pages))

    values = (datetime(2026, 11, 29, 12, tzinfo=UTC), Decimal("1.10"), UUID(int=7), Size.LARGE, Line(price=Decimal(2)))
    typed.enqueue(*values, pages=[Page("db")])
    drain(app)
    assert calls == [(*values, [Page("db")])]


def test_a_default_is_that_of_the_code_that_runs(app: Effects) -> None:
    """Whatever it is: only what a call gives is in its row."""
    calls: list[Any] = []
    nothing = object()

    @app.job("pay.defaults")
    def defaults(order: int, lines: list[int] = [1], paper: Any = nothing) -> None:  # noqa: B006
        calls.append((order, lines, paper is nothing))

    defaults.enqueue(1)
    defaults.enqueue(2, [], paper=None)
    drain(app)
    assert calls == [(1, [1], True), (2, [], False)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda job: job.enqueue(), r"missing a required argument: 'order'; it takes order, copies"),
        (lambda job: job.enqueue(1, 2, 3), "too many positional arguments; it takes order, copies"),
        (lambda job: job.enqueue(1, copys=2), "got an unexpected keyword argument 'copys'; it takes order, copies"),
        (lambda job: job.enqueue("1"), r"the arguments are not valid: Expected `int`, got `str` - at `\$\.order`"),
        (lambda job: job.enqueue(1, key="k", session=1), r"write \.using\(key=…, session=…\)\.enqueue\(…\)"),
        (lambda job: job.using(copies=1), r"copies is an argument; write \.using\(…\)\.enqueue\(copies=…\)"),
        (lambda job: job.using(dealy=1), r"there is no option 'dealy'; is it 'delay'\? \(known: session, key, queue"),
        (lambda job: job.using(session=1).job(1), "a session writes; give it to enqueue_many, not to job"),
        (lambda job: enqueue("pay.label", {"order": 1, "kopies": 1}), "it has no argument kopies; it takes order, cop"),
        (lambda job: enqueue("pay.label", {}), "there is no argument `order`"),
        (lambda job: enqueue("pay.label", {"order": 1, "a@b.example": 1}), "it has no argument of such a name"),
    ],
)
def test_wrong_arguments_and_options_are_named(bare: Effects, call: Any, words: str) -> None:
    @bare.job("pay.label")
    def label(order: int, copies: int = 1) -> None: ...

    with pytest.raises(EnqueueError, match=words) as caught:
        call(label)
    assert str(caught.value).startswith("pay.label")


def test_an_argument_may_have_the_name_of_an_option(app: Effects) -> None:
    calls: list[Any] = []

    @app.job("pay.key")
    def note(key: str, session: int, delay: int = 0) -> None:
        calls.append((key, session, delay))

    note.using(key="k").enqueue(key="a", session=1, delay=2)
    drain(app)
    assert calls == [("a", 1, 2)]


def test_a_sensitive_argument_is_sealed_and_hidden(app_factory: AppFactory) -> None:
    app, calls = app_factory(job_types=[], keys=f"k1={generate_key()}"), []

    @app.job("pay.login")
    def login(user: str, code: Annotated[str, Sensitive], note: Annotated[str, Sensitive] = "") -> None:
        calls.append((user, code, note))
        raise Refused(f"the code {code} is wrong")

    login.enqueue("ann", "rosebud")
    assert "rosebud" not in str(rows(app, "jobs"))
    stored = app.job_types.get("pay.login")
    assert (
        repr(stored.decode('{"user": "ann", "code": "rosebud"}')) == "login(user='ann', code=[hidden], note=[hidden])"
    )
    drain(app)
    assert calls == [("ann", "rosebud", "")]
    assert "rosebud" not in str(rows(app, "job_history")) + str(rows(app, "job_attempts"))


class Pager:
    def page(self, page: Page) -> None: ...

    @staticmethod
    def static(page: Page) -> None: ...


async def asynchronous(page: Page) -> Any:
    yield page


def generator(page: Page) -> Any:
    yield page


def not_annotated(page) -> None: ...  # type: ignore[no-untyped-def]


def attempt_last(page: Page, attempt: Attempt) -> None: ...


def attempt_or_none(attempt: Attempt | None) -> None: ...


def unnamed(page: Page, *more: int) -> None: ...


def unknown(page: Page, **more: int) -> None: ...


def positional(page: Page, /) -> None: ...


def foreign(page: Page, session: Session | None = None) -> None: ...


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
        (not_annotated, {}, "its parameter page has no annotation: write its type"),
        (attempt_last, {}, "its parameter attempt is the attempt: put it first, annotated Attempt and nothing else"),
        (attempt_or_none, {}, "put it first, annotated Attempt and nothing else"),
        (unnamed, {}, "its parameter more is variadic positional: .* give each a name of its own"),
        (unknown, {}, "its parameter more is variadic keyword"),
        (positional, {}, "its parameter page is positional-only"),
        (foreign, {}, "its parameter session is a Session, which cannot be made of JSON: give an id"),
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
        (
            {"release": "manual"},
            "release='manual' needs a first parameter, attempt: Attempt, to call attempt.release()",
        ),
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
    of_packages = {"clear_when_scheduled"}  # a function's arguments have no names of a package's fields
    assert (
        JobPolicies.__annotations__.keys()
        == JobType.__annotations__.keys() - {"name", "payload", "result"} - of_packages
    )


def test_a_new_job_takes_a_delay() -> None:
    assert NewJob(job_type="pager.page", payload={}, delay=timedelta(minutes=1)).delay == timedelta(minutes=1)
