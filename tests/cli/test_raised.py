"""What a handler raised can be seen: class, place and frames always, its text where the app asks for it."""

from __future__ import annotations

import asyncio
import io
import logging
import time
import traceback
from threading import Event
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from effects import Attempt, ConfigurationError, Effects, JobType, RetryPolicy, Sensitive, Settings, enqueue
from effects.keys.encryption import generate_key
from effects.kit.logs import TextFormatter
from effects.operate.tables import rotate as rotation
from effects.worker import Worker
from effects.worker.machine.runtime import Runtime
from tests.conftest import AppFactory
from tests.support.commands import command
from tests.support.manual_workers import rows
from tests.support.running import running
from tests.support.waiting import wait_until
from tests.support.worker_parts import HardEnd

DIGEST = f"digest={generate_key()}"
OLDER, NEWER = f"k1={generate_key()}", f"k2={generate_key()}"


class Card(msgspec.Struct):
    number: str
    code: Annotated[str, Sensitive] = ""


class Charge(JobType[Card]):
    name = "shop.charge"
    payload = Card
    retry = RetryPolicy(max_attempts=2)

    def perform(self, payload: Card, attempt: Attempt) -> None:
        self.fail(payload)

    def fail(self, payload: Card) -> None:
        try:
            raise KeyError(payload.number)
        except KeyError as error:
            url = "https://bob:hunter2@pay.example/"
            raise ConnectionError(f"card {payload.number}, code {payload.code}: {url} closed") from error


def failed_app(app_factory: AppFactory, *, fails: int = 1, **options: Any) -> Effects:
    """An app whose job `k` has failed."""
    app = app_factory(job_types=[Charge()], **{"keys": f"{OLDER},{DIGEST}", **options})
    enqueue("shop.charge", Card("4111", "rosebud"), key="k", effects=app)
    for _ in range(fails):
        Worker(app).drain()
        for job in rows(app, "jobs"):
            command(app, "retry", job["id"])
    return app


@pytest.mark.parametrize("question", [("why", "k"), ("jobs", "show", 1)], ids=lambda words: words[0])
def test_commands_show_the_class_the_place_and_the_frames(app_factory: AppFactory, question: tuple[Any, ...]) -> None:
    app = failed_app(app_factory, fails=2, error_texts="none")
    answer = command(app, *question)
    assert "ConnectionError at tests/cli/test_raised.py:" in answer.out
    assert " fail (gave up after 2 attempts)" in answer.out
    assert "\n  caused by KeyError\n" in answer.out
    for secret in ("4111", "rosebud", "hunter2"):
        assert secret not in answer.out
    document = command(app, *question, "--json").json
    facts = (document[0] if isinstance(document, list) else document)["facts"]
    last = facts["attempts"][-1]
    assert last["error_type"] == "ConnectionError"
    assert last["frames"][0].startswith("tests/cli/test_raised.py:")
    assert last["frames"][0].endswith(" fail")
    assert last["frames"][1].endswith(" perform")
    assert last["error_text"] is None


def test_the_log_has_the_frames_and_no_text(app_factory: AppFactory, caplog: pytest.LogCaptureFixture) -> None:
    failed_app(app_factory, fails=2)
    records = [record for record in caplog.records if record.exc_info]
    assert [(record.message, record.levelno) for record in records] == [
        ("job.unknown", logging.WARNING), ("job.dead", logging.ERROR),
    ]  # fmt: skip
    for record in records:
        assert record.exc_info is not None
        out = io.StringIO()
        traceback.print_exception(record.exc_info[1], file=out)
        assert "in fail" in out.getvalue()
        assert "ConnectionError: [its text may be personal" in out.getvalue()
        assert "KeyError: [its text may be personal" in out.getvalue()
        for secret in ("4111", "rosebud", "hunter2"):
            assert secret not in out.getvalue().replace('f"card', "")


def test_with_keys_its_text_is_kept_and_sealed(app_factory: AppFactory, caplog: pytest.LogCaptureFixture) -> None:
    """Without the payload's secrets and the passwords of URLs. What is sealed is in no log either."""
    app = failed_app(app_factory)
    kept = "card 4111, code [hidden]: https://[hidden]@pay.example/ closed"
    assert f"ConnectionError: {kept}\n" in command(app, "why", "k").out
    assert command(app, "jobs", "show", 1, "--json").json["facts"]["attempts"][0]["error_text"] == kept
    [attempt] = rows(app, "job_attempts")
    assert "card 4111" not in str(attempt)  # the digits alone may stand in a time
    assert "card 4111" not in str([record.exc_info for record in caplog.records])


class Clear(JobType[dict[str, str]]):
    name = "shop.clear"

    def perform(self, payload: dict[str, str], attempt: Attempt) -> None:
        raise ValueError(f"card {payload['number']}")


class Kept(Clear):
    keep_error_text = True


KEYED = {"keys": f"{OLDER},{DIGEST}"}


@pytest.mark.parametrize(
    ("job_type", "options", "kept", "logged"),
    [
        (Clear(), KEYED, True, False),
        (Clear(), {**KEYED, "error_texts": "sealed"}, True, False),
        (Clear(), {**KEYED, "error_texts": "plain"}, True, True),
        (Clear(), {**KEYED, "error_texts": "none"}, False, False),
        (Kept(), {**KEYED, "error_texts": "none"}, True, False),
        (Clear(), {}, False, False),
        (Clear(), {"error_texts": "plain"}, True, True),
        (Kept(), {}, True, True),
    ],
)
def test_where_its_text_is_kept_and_logged(
    app_factory: AppFactory,
    caplog: pytest.LogCaptureFixture,
    job_type: Clear,
    options: dict[str, str],
    kept: bool,
    logged: bool,
) -> None:
    app = app_factory(job_types=[job_type], **options)
    enqueue("shop.clear", {"number": "4111"}, key="k", effects=app)
    Worker(app).drain()
    assert ("ValueError: card 4111\n" in command(app, "why", "k").out) is kept
    assert ("card 4111" in str(rows(app, "job_attempts"))) is logged  # where it is not sealed
    [record] = [record for record in caplog.records if record.exc_info]
    assert (str(record.exc_info and record.exc_info[1]) == "card 4111") is logged
    assert ('reason="card 4111"' in TextFormatter().format(record)) is logged


@pytest.mark.parametrize("options", [{}, KEYED], ids=["no keys", "keys"])
def test_on_a_terminal_its_text_is_logged_whatever_is_kept(
    app_factory: AppFactory, caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    app = app_factory(job_types=[Clear()], error_texts="none", **options)
    enqueue("shop.clear", {"number": "4111"}, key="k", effects=app)
    Worker(app, process=HardEnd([], is_on_terminal=True)).drain()
    [record] = [record for record in caplog.records if record.exc_info]
    assert 'reason="card 4111"' in TextFormatter().format(record)
    assert rows(app, "job_attempts")[0]["error_text"] is None


def test_a_policy_that_cannot_be_kept_is_refused() -> None:
    for policy, cure in (("sealed", "needs EFFECTS_KEYS"), ("yes", "give sealed, plain or none")):
        with pytest.raises(ConfigurationError, match=rf"EFFECTS_ERROR_TEXTS is '?{policy}.*{cure}"):
            Settings.from_environment({"EFFECTS_ERROR_TEXTS": policy, "EFFECTS_DATABASE_URL": "sqlite:///x.db"})


def test_a_job_type_may_refuse_what_the_setting_allows(app_factory: AppFactory) -> None:
    class Quiet(Charge):
        keep_error_text = False

    app = app_factory(job_types=[Quiet()], keys=f"{OLDER},{DIGEST}")
    enqueue("shop.charge", Card("4111"), key="k", effects=app)
    Worker(app).drain()
    assert rows(app, "job_attempts")[0]["error_text"] is None


def test_kept_texts_follow_a_rotation_of_the_keys(app_factory: AppFactory) -> None:
    app = failed_app(app_factory, fails=2)
    newer = app_factory(job_types=[Charge()], keys=f"{NEWER},{OLDER},{DIGEST}")
    result = rotation.rotate(newer.store, newer.keys, actor="bob")
    assert (result.left, result.unreadable) == ([], [])
    only = app_factory(job_types=[Charge()], keys=f"{NEWER},{DIGEST}")
    attempts = command(only, "why", "k", "--json").json[0]["facts"]["attempts"]
    assert [attempt["error_text"][:9] for attempt in attempts] == ["card 4111", "card 4111"]
    assert "EFFECTS_KEYS does not hold the key 'k2'" in command(app, "why", "k").out  # which it was sealed with since


class Hanging(JobType[dict[str, str]]):
    """Waits until the test is over, for a thread of its own. Once it waits, its time is up."""

    name, on_unknown, time_limit_seconds = "shop.hanging", "hold", 60.0

    def __init__(self) -> None:
        self.over, self.runtime = Event(), Runtime()
        self.runtime.monotonic = lambda: time.monotonic() + self.seconds
        self.seconds = 0.0

    def perform(self, payload: dict[str, str], attempt: Attempt) -> None:
        attempt.release()
        self.ask_the_bank(payload["number"])

    def ask_the_bank(self, number: str) -> None:
        self.seconds = 60.0
        assert self.over.wait(60)


class HangingTask(Hanging):
    async def perform(self, payload: dict[str, str], attempt: Attempt) -> None:
        await attempt.release_async()
        await self.ask_the_partner(payload["number"])

    async def ask_the_partner(self, number: str) -> None:
        self.seconds = 60.0
        while not self.over.is_set():
            await asyncio.sleep(0.01)


class BlockingTask(Hanging):
    async def perform(self, payload: dict[str, str], attempt: Attempt) -> None:
        await attempt.release_async()
        self.ask_the_bank(payload["number"])


@pytest.mark.parametrize(
    ("kind", "innermost"),
    [(Hanging, " ask_the_bank"), (HangingTask, " ask_the_partner"), (BlockingTask, " ask_the_bank")],
)
def test_where_a_handler_hung_is_seen(
    app_factory: AppFactory, caplog: pytest.LogCaptureFixture, kind: type[Hanging], innermost: str
) -> None:
    hanging = kind()
    app = app_factory(job_types=[hanging], poll_seconds=0.1)
    enqueue("shop.hanging", {"number": "4111"}, key="k", effects=app)
    with running(Worker(app, runtime=hanging.runtime)):
        wait_until(lambda: rows(app, "job_attempts"))
        hanging.over.set()
    answer = command(app, "why", "k")
    assert "the most recent call first: where it was at its time limit\n  at tests/cli/test_raised.py:" in answer.out
    [attempt] = command(app, "jobs", "show", 1, "--json").json["facts"]["attempts"]
    assert attempt["outcome"] == "timed_out"
    assert [place.startswith("tests/cli/test_raised.py:") for place in attempt["frames"][:2]] == [True, True]
    assert [attempt["frames"][0].endswith(innermost), attempt["frames"][1].endswith(" perform")] == [True, True]
    assert not [place for place in attempt["frames"] if place.startswith("effects/")]
    [record] = [record for record in caplog.records if "at" in vars(record)]
    assert vars(record)["at"] == " < ".join(attempt["frames"])
    assert "4111" not in str(attempt)


def test_of_libraries_the_last_frames_are_shown(app_factory: AppFactory) -> None:
    class Deep(JobType[dict[str, str]]):
        name = "shop.deep"

        def perform(self, payload: dict[str, str], attempt: Attempt) -> None:
            with Session(create_engine("sqlite://")) as session:
                session.execute(text("SELECT * FROM missing"))

    app = app_factory(job_types=[Deep()])
    enqueue("shop.deep", {}, key="k", effects=app)
    Worker(app).drain()
    lines = command(app, "why", "k").out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("attempt 1 of job 1, "))
    at_cause = lines.index("  caused by OperationalError")
    assert lines[start + 1].startswith("  at tests/cli/test_raised.py:")
    assert at_cause - start == 7  # the app's one, and five of SQLAlchemy
    assert all("sqlalchemy/" in line for line in lines[start + 2 : at_cause])
