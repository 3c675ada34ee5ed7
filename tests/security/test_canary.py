"""Canaries: values planted in every field, and then looked for wherever people and machines read.

The log is taken at DEBUG from every logger there is, the libraries' too. A sealed field must not be in the
database's files either, write-ahead log included.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from sqlalchemy import text

from effects import (
    Attempt,
    Done,
    Effects,
    EffectsError,
    EnqueueError,
    JobType,
    Outcome,
    Refused,
    Retry,
    Sensitive,
    Unknown,
    enqueue,
)
from effects.kit.logs import JsonFormatter, TextFormatter
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.cli.conftest import effects as command
from tests.conftest import AppFactory
from tests.peers.http import Receiver
from tests.security.vault import BOTH_KEYS, NEW, OLD_KEYS

SEALED = "canary-sealed"
PLAIN = "canary-plain"
URL = "canary-url"
SECRET = "whsec_Y2FuYXJ5LXNlY3JldC1jYW5hcnktc2VjcmV0LWNhbmFyeQ=="
SECRET_INSIDE = "canary-secret"


class Nested(msgspec.Struct, frozen=True):
    inner: Annotated[str, Sensitive]
    plain: str = f"{PLAIN}-nested"


class Letter(msgspec.Struct, frozen=True):
    """A field of every kind."""

    end: str
    name: Annotated[str, Sensitive] = f"{SEALED}-name"
    tags: tuple[Annotated[str, Sensitive], ...] = (f"{SEALED}-tag",)
    facts: Annotated[dict[str, str], Sensitive] = msgspec.field(
        default_factory=lambda: {f"{SEALED}-fact": f"{SEALED}-value"}
    )
    nested: Nested = Nested(f"{SEALED}-inner")
    text: str = f"{PLAIN}-text"
    more: dict[str, str] = msgspec.field(default_factory=lambda: {"key": f"{PLAIN}-more"})


class BirdError(Exception):
    """A foreign exception, which quotes whatever it was given."""


class SendLetter(JobType[Letter]):
    """Ends as it is told, and quotes what it must not."""

    name = "letter.send"
    payload = Letter
    result = True

    def perform(self, payload: Letter, attempt: Attempt) -> Outcome:
        sealed = f"{payload.name} {payload.tags} {payload.facts} {payload.nested.inner}"
        everything = f"{sealed} {payload.text} {payload.more} {payload.nested.plain}"
        match payload.end:
            case "raise":
                raise BirdError(everything)
            case "chain":
                try:
                    raise BirdError(everything)
                except BirdError as error:
                    raise ConnectionError(everything) from error
            case "permanent":
                raise Refused(sealed, code=f"code {payload.name}"[:64])
            case "retry":
                return Retry(sealed, detail={"said": sealed, payload.name: [sealed]})
            case "unknown":
                return Unknown(sealed)
        return Done(result=sealed)


ENDS = ("done", "raise", "chain", "permanent", "retry", "unknown")


class Ear(logging.Handler):
    """Everything that is logged, formatted as we would, and as Python would, tracebacks and all."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self._formatters = [TextFormatter(), JsonFormatter()]

    def emit(self, record: logging.LogRecord) -> None:
        self.lines += [formatter.format(record) for formatter in self._formatters]
        self.lines.append(f"{record.getMessage()} {record.args!r} {vars(record)!r}")


@pytest.fixture
def ear() -> Iterator[Ear]:
    """Every logger at DEBUG."""
    names = [None, "effects", "httpx", "httpcore", "sqlalchemy", "sqlalchemy.engine", "sqlalchemy.pool", "alembic"]
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    heard = Ear()
    logging.getLogger().addHandler(heard)
    for logger, _ in before:
        logger.setLevel(logging.DEBUG)
    yield heard
    logging.getLogger().removeHandler(heard)
    for logger, level in before:
        logger.setLevel(level)


def canaries(shown: str) -> list[str]:
    """Those that sing in this text, and where."""
    return [
        shown[max(0, at - 200) : at + 60]
        for bird in (SEALED, PLAIN, URL, SECRET, SECRET_INSIDE)
        if (at := shown.find(bird)) >= 0
    ]


@pytest.fixture
def cage(app_factory: AppFactory) -> Effects:
    """Texts of exceptions quote clear fields, and are shown to whoever has the keys: here they are not kept."""
    return app_factory(job_types=[SendLetter()], keys=OLD_KEYS, allow_private_addresses=True, error_texts="none")


def live_and_die(app: Effects, receiver: Receiver) -> None:
    """One job for each way to end, a webhook that is taken, and one that is refused."""
    for end in ENDS:
        enqueue("letter.send", Letter(end), key=f"letter:{end}", max_attempts=2, effects=app)
    enqueue("letter.send", Letter("done"), effects=app)
    for path in ("taken", "refused"):
        url = f"{receiver.url}/{path}?token={URL}"
        add_endpoint(url, [f"{path}.*"], secret=SECRET, effects=app)
        event = WebhookEvent(f"{path}.now", {"name": f"{PLAIN}-event"}, key=f"event:{path}")
        deliver_webhook(event, effects=app)
    Worker(app).drain()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(lambda request: 200 if request.path.startswith("/taken") else 410) as http_receiver:
        yield http_receiver


@pytest.mark.slow
def test_no_canary_is_in_the_log_or_on_a_screen(
    cage: Effects, receiver: Receiver, ear: Ear, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    live_and_die(cage, receiver)
    monkeypatch.setenv("EFFECTS_KEYS", BOTH_KEYS)
    shown = [repr(cage), repr(cage.settings), repr(cage.keys)]
    url = ["--database-url", cage.settings.database_url]
    ids = range(1, len(ENDS) + 4)
    commands = [
        *([*name.split(), *json] for name in ("status", "jobs list", "audit", "doctor", "dead list", "keys status")
          for json in ([], ["--json"])),
        *(["jobs", "show", str(job_id), *json] for job_id in ids for json in ([], ["--json"])),
        *(["why", f"letter:{end}", *json] for end in ENDS for json in ([], ["--json"])),
        ["why", "event:taken"], ["why", "event:refused", "--json"],
        ["metrics"], ["keys", "rotate", "--progress"], ["keys", "retire", "new"],
        ["retry", "4", "--reason", "again"], ["cancel", "999"], ["--log-level", "DEBUG", "status"],
    ]  # fmt: skip
    for arguments in commands:
        answer = command(*url, *arguments)
        shown.append(answer.out + answer.err)
    captured = capfd.readouterr()
    heard = "\n".join([*ear.lines, *shown, captured.out, captured.err])
    assert "job.succeeded" in heard
    assert "letter.send" in heard
    assert canaries(heard) == []


def test_no_canary_is_in_what_an_attempt_leaves(cage: Effects, receiver: Receiver) -> None:
    """Only the clear fields of payloads, endpoints and events may be found in the database, in their own columns."""
    live_and_die(cage, receiver)
    own = {"effects_jobs": {"payload"}, "effects_job_history": {"payload"}, "effects_webhook_events": {"body"},
           "effects_webhook_endpoints": {"url"}}  # fmt: skip
    with cage.store.read() as connection:
        for table in cage.store.tables.values():
            for row in connection.execute(text(f"SELECT * FROM {table.fullname}")):
                for name, value in row._mapping.items():
                    plain = bytes(value) if isinstance(value, memoryview) else value
                    sung = canaries(f"{plain!r} {json.dumps(plain, default=str)}")
                    if name in own.get(table.name, set()):
                        sung = [canary for canary in sung if SEALED in canary or SECRET_INSIDE in canary]
                    assert sung == [], (table.name, name)


def test_no_sealed_field_is_in_the_files(cage: Effects, receiver: Receiver, tmp_path: Path) -> None:
    if cage.store.is_postgresql:
        pytest.skip("the rows are looked through above; the server's files are its own")
    held = sqlite3.connect(tmp_path / "effects.db")  # keeps the write-ahead log from being folded in
    held.execute("SELECT count(*) FROM effects_jobs").fetchall()
    live_and_die(cage, receiver)
    files = sorted(tmp_path.glob("effects.db*"))
    assert any(file.name.endswith("-wal") and file.stat().st_size for file in files)
    for file in files:
        content = file.read_bytes()
        for bird in (SEALED, SECRET, SECRET_INSIDE):
            assert bird.encode() not in content, file
    assert PLAIN.encode() in b"".join(file.read_bytes() for file in files)  # the search finds what is there
    held.close()


@pytest.mark.parametrize(
    "payload",
    [
        {"end": 7, "name": SEALED, "text": PLAIN},
        {"end": "x", "name": [SEALED]},
        {"end": "x", "tags": {SEALED: PLAIN}},
        {"end": "x", "more": {PLAIN: 3}},
        {"end": "x", "text": PLAIN + "\x00"},
        {"end": "x", "text": PLAIN * 10_000},
        Letter("x", name=SEALED + "\ud800"),
        object(),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_a_payload_that_is_refused_is_not_quoted(cage: Effects, payload: Any) -> None:
    with pytest.raises(EnqueueError) as caught:
        enqueue("letter.send", payload, effects=cage)
    shown = "".join(traceback.format_exception(caught.value, limit=0)) + repr(caught.value)
    assert canaries(shown) == []


def test_a_stored_payload_that_no_longer_fits_is_not_quoted(cage: Effects, ear: Ear) -> None:
    bad = json.dumps({"end": [PLAIN], "name": f"{SEALED}-name"})
    with cage.store.begin() as connection:
        connection.execute(
            text("INSERT INTO effects_jobs (job_type, payload) VALUES ('letter.send', :bad)"), {"bad": bad}
        )
    Worker(cage).drain()
    answer = command("--database-url", cage.settings.database_url, "jobs", "show", "1", "--json")
    assert answer.json["facts"]["jobs"][0]["error_code"] == "payload_invalid"
    assert canaries("\n".join([answer.out, *ear.lines])) == []


@pytest.mark.slow
def test_a_database_error_does_not_quote_what_was_bound(cage: Effects, ear: Ear) -> None:
    with cage.store.begin() as connection:
        connection.execute(text("DROP TABLE effects_effect_ledger"))
    with pytest.raises(EffectsError) as caught:
        enqueue("letter.send", Letter("done"), key="letter:1", effects=cage)
    chain = "".join(traceback.format_exception(caught.value))
    assert canaries("\n".join([chain, *ear.lines])) == []


def test_the_reprs_of_everything_that_holds_a_payload(cage: Effects, receiver: Receiver) -> None:
    from effects.store.claim.claim import claim  # noqa: PLC0415
    from effects.store.claim.lease import ClaimRequest  # noqa: PLC0415

    letter = Letter("done")
    enqueue("letter.send", letter, effects=cage)
    endpoint = add_endpoint(f"{receiver.url}/taken", secret=SECRET, effects=cage)
    [job] = claim(cage.store, ClaimRequest("default", {"letter.send": 60.0}), "w", 1).jobs
    shown = f"{job!r} {endpoint!r} {cage.keys!r}"
    assert canaries(shown) == []
    assert NEW not in shown
    assert [bird for bird in canaries(repr(letter)) if SEALED in bird] == []
