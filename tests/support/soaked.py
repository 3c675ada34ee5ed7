"""A worker that carries out thousands of attempts of one kind, in a process of its own that counts what it keeps."""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import itertools
import json
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from effects import (
    Attempt,
    Cancelled,
    Done,
    Effects,
    JobType,
    NewJob,
    Refused,
    Retry,
    RetryPolicy,
    Unknown,
    enqueue_many,
)
from effects.keys.encryption import generate_key
from effects.kit.http import on_loop
from effects.model.limits import Rate
from effects.store.limits.key_limits import ensure_limit
from effects.store.migrations import migrate
from effects.worker import Worker
from effects.worker.queues import queue_threads
from effects.worker.recording import failover_evidence, observers
from effects_email import NewEmail, send_templated_emails
from effects_email.transport.http_api import client
from effects_reports import report, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks
from effects_webhooks.transport import http as requests
from tests.support.leftovers import Holdings, descriptors, holdings
from tests.support.manual_workers import run_sql
from tests.support.waiting import wait_until

BATCH = 500
PEOPLE = 400  # each of whom always has the same word: the first batch has every address
ENDPOINTS = 50
STEPS_OF_A_REPORT = 3  # plan, chunk, assemble
TIMERS_MAX = 100
IDLE_SECONDS = 0.5  # so long threads and connections are kept that nothing uses
LIMIT_SECONDS = 3.0
MAIL_THREADS = 32  # whose releases are committed together: a commit for each costs more than all else
STANDING_SECONDS = 120.0  # without an attempt, after which the stacks are printed
ROUND = 2_000  # attempts enqueued before the next wait
WORDS = ("ok", "ok", "refused", *["ok"] * 5, "later", *["ok"] * 5, "cut", "ok")  # in turn; see tests/peers/worded
ENDINGS = (
    "none",
    "retry",
    "done",
    "refuse",
    "none",
    "cancel",
    "done",
    "unknown",
    "none",
    "raise",
    "done",
    "release",
    "none",
    "lost",
    "done",
    "snooze",
)
SLOW_EVERY = 500  # so seldom it takes longer than it may

Make: TypeAlias = Callable[[str, Path, int, int], Effects]  # by the URL, a folder, the ports of the peers
Fill: TypeAlias = Callable[[Effects, range], None]


class Own(JobType[dict[str, Any]]):
    """Ends in every way, in turn."""

    name, payload = "own", dict
    on_unknown = "hold"
    time_limit_seconds = LIMIT_SECONDS
    retry = RetryPolicy(max_attempts=3)
    app: Effects
    slow = threading.BoundedSemaphore(2)  # at a time: four that hang would end the worker

    def perform(self, payload: dict[str, Any], attempt: Attempt) -> Any:
        if payload["n"] % SLOW_EVERY == 0 and self.slow.acquire(blocking=False):
            threading.Event().wait(LIMIT_SECONDS + 1)
            self.slow.release()
            return None
        return self._end(payload["n"], attempt, attempt.release)

    def _end(self, number: int, attempt: Attempt, release: Callable[[], None]) -> Any:
        match ENDINGS[number % len(ENDINGS)]:
            case "raise":
                raise ValueError(str(number))
            case "release":
                release()
            case "lost":
                self._lose(attempt)
            case ending:
                return ANSWERS.get(ending)
        return Done({"n": number})

    def _lose(self, attempt: Attempt) -> None:
        """The job is another's now: nothing of this attempt is recorded."""
        run_sql(self.app, "DELETE FROM effects_jobs WHERE id = :id", id=attempt.job.id)


ANSWERS = {
    "done": Done("it is done"), "retry": Retry("not now"), "refuse": Refused("no"), "cancel": Cancelled(),
    "unknown": Unknown("no reply"), "snooze": Retry("later", after_seconds=3600),
}  # fmt: skip


class AsyncOwn(Own):
    """The same, on the event loop; with a task and a thread besides."""

    queue = "async"

    async def perform(self, payload: dict[str, Any], attempt: Attempt) -> Any:  # type: ignore[override]
        number = payload["n"]
        if number % SLOW_EVERY == 0:
            await asyncio.sleep(10)
        if number % 7 == 0:
            await asyncio.create_task(asyncio.sleep(0))
        if number % 50 == 0:
            await asyncio.to_thread(len, ())
        if ENDINGS[number % len(ENDINGS)] == "release":
            await attempt.release_async()
            return None
        return self._end(number, attempt, attempt.release)


@report("numbers", iterable=True, columns=("number",))
def numbers_report(params: dict[str, Any]) -> Iterator[tuple[int]]:
    yield from ((number,) for number in range(5))


@report("failing", iterable=True, columns=("number",))
def failing_report(params: dict[str, Any]) -> Iterator[tuple[int]]:
    yield (1,)
    raise ValueError


# -- the kinds: the app of each, and how so many of its jobs are enqueued ----------------------------------------


def _own(kind: type[Own]) -> Make:
    def make(url: str, folder: Path, http: int, smtp: int) -> Effects:
        own = kind()
        own.app = Effects(url, job_types=[own], threads=4)
        return own.app

    return make


def _enqueue_own(app: Effects, numbers: range) -> None:
    enqueue_many([NewJob(job_type="own", payload={"n": number}, key=f"{number}") for number in numbers], effects=app)


def _mail(transport: str) -> Make:
    def make(url: str, folder: Path, http: int, smtp: int) -> Effects:
        template = folder / "emails" / "hello"
        template.mkdir(parents=True)
        for part in ("subject.txt", "body.txt"):
            (template / part).write_text("{{ word }}")
        app = Effects(
            url, threads=MAIL_THREADS, smtp_url=transport.format(folder=folder, http=http, smtp=smtp),
            email_from="shop@example.com", templates=str(folder / "emails"),
        )  # fmt: skip
        migrate.init(app.store)
        if transport.startswith("resend:"):  # which lets a new account send two a second
            with app.store.begin() as connection:
                ensure_limit(app.store, connection, "email:default", rate=Rate(1_000_000, 1.0))
        return app

    return make


def _enqueue_mail(app: Effects, numbers: range) -> None:
    word_of = {number: WORDS[number % len(WORDS)] for number in numbers}
    emails = [
        NewEmail("hello", to=f"{word}-{number % PEOPLE}@example.com", context={"word": word}, event_id=f"{number}")
        for number, word in word_of.items()
    ]
    send_templated_emails(emails, effects=app)


def _webhooks(url: str, folder: Path, http: int, smtp: int) -> Effects:
    app = Effects(url, threads=4, allow_private_addresses=True, keys=f"a={generate_key()}")
    migrate.init(app.store)
    for number in range(ENDPOINTS):
        add_endpoint(f"http://127.0.0.1:{http}/{number}", (f"event.e{number}",), effects=app)
    return app


def _enqueue_webhooks(app: Effects, numbers: range) -> None:
    events = [
        WebhookEvent(f"event.e{number % ENDPOINTS}", {"n": number, "word": WORDS[number % len(WORDS)]})
        for number in numbers
    ]
    deliver_webhooks(events, effects=app)


def _reports(url: str, folder: Path, http: int, smtp: int) -> Effects:
    return Effects(url, threads=4, reports=[numbers_report, failing_report], storage_url=str(folder / "files"))


def _request_reports(app: Effects, numbers: range) -> None:
    for number in numbers[::STEPS_OF_A_REPORT]:
        name = "failing" if number % 8 == 0 else "numbers"
        request_report(name, {"n": number}, effects=app)


KINDS: dict[str, tuple[Make, Fill]] = {
    "own": (_own(Own), _enqueue_own),
    "async": (_own(AsyncOwn), _enqueue_own),
    "smtp": (_mail("smtp://127.0.0.1:{smtp}"), _enqueue_mail),
    "provider": (_mail("resend://token@?origin=http://127.0.0.1:{http}"), _enqueue_mail),
    "maildir": (_mail("maildir:{folder}/mail"), _enqueue_mail),
    "webhooks": (_webhooks, _enqueue_webhooks),
    "reports": (_reports, _request_reports),
}


# -- the process -------------------------------------------------------------------------------------------------


def soak(kind: str, folder: Path, http: int, smtp: int, warm: int, attempts: int, seconds: float) -> None:
    """Carry out so many attempts, or for so long, after some for warming up; print what has grown as JSON."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger().handlers[0].addFilter(lambda record: record.getMessage().startswith("worker."))
    # What has a bound has tests of its own; here it must be full at once, or at rest.
    observers.TIMERS_MAX, failover_evidence.KEPT_MAX = TIMERS_MAX, 1
    on_loop.KEEPALIVE_SECONDS = client.SWEEP_SECONDS = requests.SWEEP_SECONDS = queue_threads.REST_SECONDS = (
        IDLE_SECONDS
    )
    tempfile.tempdir = str(folder / "tmp")
    (folder / "tmp").mkdir()
    make, fill = KINDS[kind]
    app = make(f"sqlite:///{folder / 'soak.db'}", folder, http, smtp)
    migrate.init(app.store)
    gc.freeze()  # the worker would, and what is frozen is not counted
    worker = Worker(app)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    numbers = itertools.count(0, BATCH)
    carry_out(app, fill, numbers, warm, thread)
    before = rest(None, warm)
    began, cpu, done = time.monotonic(), time.process_time(), 0
    while done < attempts or time.monotonic() - began < seconds:
        done += carry_out(app, fill, numbers, min(ROUND, max(attempts - done, BATCH)), thread)
    took = time.process_time() - cpu
    grown = rest(before, done).growth(before, attempts=done)
    worker.stop()
    thread.join(30)
    print(json.dumps({"grown": grown, "attempts": done, "cpu_seconds": round(took, 2), "outcomes": worker.counts}))


def carry_out(app: Effects, fill: Fill, numbers: Iterator[int], count: int, worker: threading.Thread) -> int:
    """Enqueue at least so many jobs, and wait until each had an attempt; how many they are.

    However long that takes: of a busy machine no one knows, and the test's own limit ends one that stands. Where it
    stands is then in its output.

    Raises:
        AssertionError: the worker has ended.
    """
    batches = -(-count // BATCH)
    for first in itertools.islice(numbers, batches):
        fill(app, range(first, first + BATCH))
    unfinished = -1
    while left := _unfinished(app):
        assert worker.is_alive(), f"the worker has ended; {left} jobs are left"
        if left != unfinished:
            unfinished = left
            faulthandler.dump_traceback_later(STANDING_SECONDS)
    faulthandler.cancel_dump_traceback_later()
    return batches * BATCH


def _unfinished(app: Effects) -> int:
    threading.Event().wait(0.2)  # a look at thousands of jobs costs more than an attempt
    with app.store.read() as connection:
        waiting = "SELECT count(*) FROM effects_jobs WHERE attempts = 0 OR status = 'running'"
        return int(connection.exec_driver_sql(waiting).scalar_one())


def rest(before: Holdings | None, attempts: int) -> Holdings:
    """What is held once nothing more is let go of: what is idle first is what its threads and connections hold."""
    for _ in range(20):
        wait_until_still(4 * IDLE_SECONDS)
        held = holdings()
        if before is None or not held.growth(before, attempts=attempts):
            break
    return held


def wait_until_still(seconds: float) -> None:
    """Return once no thread has ended, and no descriptor was closed, for so long: few are, and they may come again."""
    fewest, since = (threading.active_count(), descriptors()), time.monotonic()

    def is_still() -> bool:
        nonlocal fewest, since
        fewer = min(fewest[0], threading.active_count()), min(fewest[1], descriptors())
        if fewer != fewest:
            fewest, since = fewer, time.monotonic()
        return time.monotonic() - since >= seconds

    wait_until(is_still)
