"""WorkerQueues: a thousand chunks of a report wait, and a password reset does not wait for one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects_email import send_templated_email
from effects_reports import request_report
from tests.peers.smtp import SmtpPeer
from tests.peers.stub_server import StubServer
from tests.support.backlog_app import PORT, backlog_app, flights, metadata
from tests.support.manual_workers import rows
from tests.support.processes import Child, Fleet
from tests.support.waiting import wait_until

CHUNKS = 1_200
REPORT_THREADS = 2
WORKERS = 2
MAILS = 20


@pytest.fixture
def smtp() -> Iterator[SmtpPeer]:
    with SmtpPeer() as peer:
        yield peer


@pytest.fixture
def options(smtp: SmtpPeer, tmp_path: Path) -> dict[str, str]:
    template = tmp_path / "emails" / "reset"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Your new password")
    (template / "body.txt").write_text("Choose it here: {{ link }}\n")
    return {
        "keys": f"k={generate_key()},digest={generate_key()}",
        "smtp_url": smtp.url,
        "email_from": "Shop <hello@shop.example>",
        "templates": str(tmp_path / "emails"),
        "storage_url": str(tmp_path / "files"),
    }


@pytest.fixture
def shop(database_url: str, options: dict[str, str]) -> Iterator[Effects]:
    app = backlog_app(database_url, **options)
    metadata.create_all(app.engine)
    with app.engine.begin() as connection:
        connection.execute(flights.insert(), [{"id": number} for number in range(1, CHUNKS + 1)])
    yield app
    app.dispose()


def test_a_backlog_of_chunks_does_not_delay_a_password_reset(
    shop: Effects, options: dict[str, str], stub_server: StubServer, smtp: SmtpPeer, processes: Fleet
) -> None:
    stub_server.hold("row")
    run = request_report("flights", effects=shop)
    workers = [_worker(processes, options, stub_server) for _ in range(WORKERS)]
    stub_server.wait_asked("row", WORKERS * REPORT_THREADS)  # every thread of the queue stands there
    assert _chunks(shop, "status <> 'running'") >= 1_000

    _send(shop, "first")
    wait_until(lambda: len(smtp.messages) == MAILS)
    wait_until(lambda: _ended(shop, "email.send") == MAILS)
    assert _ended(shop, "report.chunk") == 0  # all of them went by while nothing moved in the other queue
    assert _chunks(shop, "status = 'running'") >= WORKERS * REPORT_THREADS

    stub_server.open("row")
    _send(shop, "second")
    wait_until(lambda: _ended(shop, "email.send") == 2 * MAILS, seconds=60)
    wait_until(lambda: _state(shop, run.run_id) == "ready", seconds=60)
    mails, chunks = (_attempts(shop, name) for name in ("email.send", "report.chunk"))
    assert len(chunks) == CHUNKS
    assert max(attempt["started_at"] for attempt in mails) < max(attempt["started_at"] for attempt in chunks)
    assert audit(shop.store, shop.ledgers) == []
    assert [worker.exit_code for worker in workers] == [None] * WORKERS


def _worker(processes: Fleet, options: dict[str, str], stub_server: StubServer) -> Child:
    variables = {
        "keys": "EFFECTS_KEYS", "smtp_url": "EFFECTS_SMTP_URL", "email_from": "EFFECTS_EMAIL_FROM",
        "templates": "EFFECTS_EMAIL_TEMPLATES", "storage_url": "EFFECTS_STORAGE_URL",
    }  # fmt: skip
    env = {variables[name]: value for name, value in options.items()}
    queues = {
        "EFFECTS_QUEUES": f"reports={REPORT_THREADS},emails=2",
        PORT: str(stub_server.port),
        "EFFECTS_LEASE_SECONDS": "60",
    }
    return processes.worker(app="tests.support.backlog_app:app", **env, **queues)


def _send(shop: Effects, what: str) -> None:
    for number in range(MAILS):
        link = f"https://shop.example/{what}/{number}"
        send_templated_email("reset", to=f"ann{number}@example.com", context={"link": link}, effects=shop)


def _chunks(shop: Effects, where: str) -> int:
    return len(rows(shop, "jobs", f"job_type = 'report.chunk' AND {where}"))


def _ended(shop: Effects, job_type: str) -> int:
    return len(rows(shop, "job_history", "job_type = :name", name=job_type))


def _attempts(shop: Effects, job_type: str) -> list[dict[str, Any]]:
    ids = {job["id"] for job in rows(shop, "job_history", "job_type = :name", name=job_type)}
    return [attempt for attempt in rows(shop, "job_attempts") if attempt["job_id"] in ids]


def _state(shop: Effects, run_id: str) -> str:
    return str(rows(shop, "report_runs", "id = :id", id=run_id)[0]["state"])
