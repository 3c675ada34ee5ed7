"""`effects dev`: where it starts, that nothing leaves the machine, the inboxes, fresh code, and the moved clock."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from effects import Attempt, Effects
from effects.keys.encryption import generate_key
from effects.kit.network import NetworkRefused
from effects.store.db.urls import database_url as parse_url
from effects.web import dev
from effects.worker import Worker
from effects_email import File, send_email
from effects_reports import BucketCredentials, add_bucket, bucket_notice, request_report
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook, get_endpoint
from tests.cli.dev_app import numbers
from tests.conftest import AppFactory
from tests.peers.dns import NameServer
from tests.peers.http import Receiver
from tests.peers.smtp import SmtpPeer
from tests.support.manual_workers import rows
from tests.support.running import running
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.web.browsing import SAME_ORIGIN

KEYS = f"dev={generate_key()},digest={generate_key()}"
DEV_APP = "tests.cli.dev_app:app"
COMMAND = "from effects_toolkit.command import main; main()"
ROOT = Path(__file__).parents[2]
HERE = ("127.0.0.1", "127.9.0.1", "::1", "localhost", "/var/run/postgresql", "")


class DevServer:
    """The process, and a browser at its dashboard."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log
        self.client = httpx.Client(timeout=PATIENCE_SECONDS)

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def wait_logged(self, text: str, times: int = 1) -> None:
        wait_until(lambda: self.output.count(text) >= times or self.process.poll() is not None)
        assert self.output.count(text) >= times, self.output

    def started(self, times: int = 1) -> None:
        """Return once it serves; learns the address."""
        self.wait_logged("dashboard: http", times)
        [*_, address] = re.findall(r"dashboard: (http://127\.0\.0\.1:[0-9]+)/dev", self.output)
        self.client.base_url = httpx.URL(address)

    def page(self, path: str) -> str:
        answer = self.client.get(path)
        while answer.status_code == 202:  # it is still counting, and a browser asks again
            answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.text

    def post(self, page: str, path: str, **fields: str) -> None:
        """Submit a form that a page has."""
        [token, *_] = re.findall(r'name="form_token" value="([0-9a-f]{64})"', self.page(page))
        answer = self.client.post(path, data={"form_token": token, **fields}, headers=SAME_ORIGIN)
        assert answer.status_code == 303, answer.text

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE_SECONDS)


Develop = Callable[..., DevServer]


@pytest.fixture
def develop(tmp_path: Path) -> Iterator[Develop]:
    """Starts `effects dev` in the test's folder: `develop(url, "--take-over", app=…, EFFECTS_…=…)`."""
    servers: list[DevServer] = []

    def start(url: str, *options: str, app: str = DEV_APP, **env: str) -> DevServer:
        log = tmp_path / f"dev-{len(servers)}.log"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTS_")}
        command = [
            sys.executable,
            "-c",
            "from effects_toolkit.command import main; main()",
            "--app",
            app,
            "dev",
            "--port",
            "0",
            *options,
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT,
                env={**clean, "PYTHONPATH": str(ROOT), "EFFECTS_DATABASE_URL": url, "EFFECTS_KEYS": KEYS,
                     "EFFECTS_POLL_SECONDS": "0.2", "EFFECTS_HEARTBEAT_SECONDS": "1", "EFFECTS_LEASE_SECONDS": "10",
                     **env},
            )  # fmt: skip
        servers.append(DevServer(process, log))
        return servers[-1]

    yield start
    for server in servers:
        server.client.close()
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


# -- where it starts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", HERE)
def test_a_database_of_this_machine_is_taken(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGHOST", raising=False)
    dev.check_database(parse_url(f"postgresql:///shop?host={host}" if host else "postgresql:///shop"))
    dev.check_database(parse_url("sqlite:///shop.db"))


@pytest.mark.parametrize(
    ("url", "environment"),
    [
        ("postgresql://db.shop.example/shop", {}),
        ("postgresql://10.0.0.7/shop", {}),
        ("postgresql://localhost,db2.shop.example/shop", {}),
        ("postgresql:///shop?host=localhost&hostaddr=10.0.0.7", {}),
        ("postgresql:///shop?service=production", {}),
        ("postgresql://localhost.shop.example/shop", {}),
        ("postgresql://0.0.0.0/shop", {}),
        ("postgresql:///shop", {"PGHOST": "db.shop.example"}),
        ("postgresql://localhost/shop", {"PGHOSTADDR": "10.0.0.7"}),
    ],
)
def test_a_database_elsewhere_is_refused_before_it_is_looked_up(
    url: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGHOST", "PGHOSTADDR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(dev.ConfigurationError, match="this machine's databases alone"):
        dev.check_database(parse_url(url))


def test_no_transport_of_effects_may_connect() -> None:
    with pytest.raises(NetworkRefused, match=r"nothing leave this machine.*smtp\.shop\.example"):
        dev.refuse("smtp.shop.example")


def test_it_refuses_a_database_with_a_worker_and_ends_when_one_comes(
    app_factory: AppFactory, database_url: str, develop: Develop
) -> None:
    with running(Worker(app_factory())):
        wait_until(lambda: rows(app_factory(), "workers"))
        refused = develop(database_url)
        assert refused.process.wait(PATIENCE_SECONDS) == 2
        assert "a worker runs on" in refused.output
        assert "would send what effects dev holds back" in refused.output
    server = develop(database_url)
    server.started()
    with running(Worker(app_factory())):
        assert server.process.wait(PATIENCE_SECONDS) == 2
    assert "a worker runs on" in server.output


def test_jobs_that_waited_before_are_not_swallowed(
    app_factory: AppFactory, database_url: str, develop: Develop
) -> None:
    """A database of production, whose worker is started by cron, has none just now."""
    app = app_factory(keys=KEYS, email_from="hello@shop.example")
    send_email(to="ann@example.com", subject="Hello", text="Hello", key="m1", effects=app)
    refused = develop(database_url)
    assert refused.process.wait(PATIENCE_SECONDS) == 2
    assert "jobs wait in" in refused.output
    assert "email.send" in refused.output
    assert "--take-over" in refused.output
    server = develop(database_url, "--take-over")
    server.started()
    wait_until(lambda: "Hello" in server.page("/dev/mail"))
    assert server.stop() in (0, 130)


# -- nothing leaves ----------------------------------------------------------------------------------------------


@contextmanager
def _peers() -> Iterator[tuple[SmtpPeer, Receiver, NameServer]]:
    with SmtpPeer() as smtp, Receiver() as receiver, NameServer({}) as names:
        yield smtp, receiver, names


def test_nothing_leaves_whatever_the_settings_say(
    app_factory: AppFactory, database_url: str, develop: Develop, tmp_path: Path
) -> None:
    with _peers() as (smtp, receiver, names):
        smtp_url = f"smtp://127.0.0.1:{smtp.port}"
        settings = {
            "EFFECTS_SMTP_URL": smtp_url, "EFFECTS_EMAIL_TRANSPORT_BULK": "smtps://ann:secret@mail.shop.example",
            "EFFECTS_EMAIL_FAILOVER": "default,bulk", "EFFECTS_EMAIL_REDIRECT": "staging@shop.example",
            "EFFECTS_EMAIL_HOLD": "yes", "EFFECTS_EMAIL_BOUNCE_DOMAIN": "bounces.shop.example",
            "EFFECTS_DKIM_KEYS": "s1._domainkey.shop.example=/nowhere/s1.pem",
            "EFFECTS_EMAIL_NAMESERVER": names.address, "EFFECTS_ALLOW_PRIVATE_ADDRESSES": "yes",
            "EFFECTS_BUCKET_PRIVATE_NETWORKS": "127.0.0.0/8",
            "EFFECTS_STORAGE_URL": f"s3://files?endpoint=http://127.0.0.1:{receiver.port}",
        }  # fmt: skip
        server = develop(database_url, DEV_APP_NOTES=str(tmp_path / "notes"), **settings)
        server.started()
        app = _sender(app_factory, smtp_url)
        _make_effects(app, receiver)
        wait_until(lambda: len(_done(app)) >= 6)
        for page in ("/health", "/email/messages", "/webhooks", "/reports/buckets", "/", "/dev"):
            server.page(page)
        _look_at_inboxes(server, receiver)
        assert server.stop() in (0, 130)
        assert (smtp.commands, smtp.messages, receiver.requests, receiver.connections, names.asked) == (
            [],
            [],
            [],
            [],
            [],
        )
    notes = tmp_path / "notes"
    assert not notes.exists(), notes.read_text()


def _sender(app_factory: AppFactory, smtp_url: str) -> Effects:
    return app_factory(
        keys=KEYS, email_from="The Shop <hello@shop.example>", smtp_url=smtp_url, reports=[numbers],
        email_transports={"bulk": "smtp://127.0.0.1:1"}, allow_private_addresses=True,
        bucket_private_networks="127.0.0.0/8",
    )  # fmt: skip


def _make_effects(app: Effects, receiver: Receiver) -> None:
    send_email(
        to="ann@example.com", cc=["bob@example.com"], subject="Hello Ann", text="the text", html="<p><b>HTML</b></p>",
        attachments=[File(b"attached", filename="note.txt")], key="m1", group=True, effects=app,
    )  # fmt: skip
    send_email(to="ann@example.com", subject="By bulk", text="bulk", key="m2", transport="bulk", effects=app)
    add_endpoint(receiver.url, effects=app)
    add_endpoint("https://partner.example/hooks", effects=app)
    deliver_webhook(WebhookEvent("order.paid", {"order": 7}, key="e1"), effects=app)
    bucket = f"s3://acme-files/in?endpoint=http://127.0.0.1:{receiver.port}"
    add_bucket("acme", bucket, BucketCredentials("id", "secret"), effects=app)
    request_report("numbers", notify=bucket_notice("acme"), effects=app)


def _done(app: Effects) -> list[str]:
    """The effects of ours that are done: two messages, two deliveries, a file that is ready and delivered."""
    types = ("email.send", "webhook.deliver", "report.deliver", "report.assemble")
    history = [row for row in rows(app, "job_history") if row["job_type"] in types]
    assert all(row["status"] == "succeeded" for row in history), history
    return [str(row["job_type"]) for row in history]


def _look_at_inboxes(server: DevServer, receiver: Receiver) -> None:
    mail = server.page("/dev/mail")
    assert "Hello Ann" in mail
    assert "By bulk" in mail
    assert "ann@example.com, bob@example.com" in mail
    assert "staging@shop.example" not in mail
    [address] = re.findall(r'href="(/dev/mail/[0-9a-f]{24})">Hello Ann', mail)
    assert "the text" in server.page(f"{address}?view=text")
    assert "<b>HTML</b>" in server.page(f"{address}/html")
    source = server.page(f"{address}?view=source")
    assert "Message-ID" in source
    assert "DKIM-Signature" not in source
    assert "Return-Path: &lt;hello@shop" in source
    attached = server.client.get(f"{address}/files/1")
    assert (attached.content, attached.headers["content-disposition"]) == (
        b"attached",
        'attachment; filename="note.txt"',
    )
    hooks = server.page("/dev/webhooks")
    assert receiver.url in hooks
    assert "https://partner.example/hooks" in hooks
    [request, *_] = re.findall(r'href="(/dev/webhooks/[^"]+)"', hooks)
    page = server.page(request)
    assert "Its signature fits" in page
    assert "webhook-signature: v1," in page
    assert "order.paid" in page
    [file] = re.findall(r'href="(/dev/files/[0-9a-f]{24})">acme-files/in/', server.page("/dev/files"))
    assert server.client.get(file).content.split()[1:] == [b"1", b"2", b"3"]


# -- fresh code and the clock ------------------------------------------------------------------------------------


MODULE = """
from effects import Attempt, Effects
app = Effects()

@app.job("tell")
def tell(attempt: Attempt, word: str) -> None:
    print("told", word, {version!r})
"""


def test_changed_code_is_loaded_and_a_broken_module_waits_for_its_mend(
    app_factory: AppFactory, database_url: str, develop: Develop, tmp_path: Path
) -> None:
    module = tmp_path / "told_app.py"
    module.write_text(MODULE.format(version="first"))
    server = develop(database_url, app="told_app:app")
    server.started()
    app = app_factory(job_types=[])

    @app.job("tell")
    def tell(attempt: Attempt, word: str) -> None:
        """As the module has it."""

    tell.using().enqueue(word="one")
    server.wait_logged("told one first")
    module.write_text("app = 1 +\n")
    server.wait_logged("waiting for a change")
    module.write_text(MODULE.format(version="second, longer"))
    server.started(2)
    tell.using().enqueue(word="two")
    server.wait_logged("told two second")
    assert server.stop() in (0, 130)


INTERRUPTED = """
import os, signal, sys
from effects import Effects

def interrupt(event, arguments):
    if event == "import" and arguments[0] == "uvicorn.config":
        os.kill(os.getpid(), signal.{name})

app = Effects()
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_before_it_serves_ends_it_in_order(
    name: str, app_factory: AppFactory, database_url: str, develop: Develop, tmp_path: Path
) -> None:
    """Ctrl-C too that is ignored at first, as for what a shell starts in the background."""
    (tmp_path / "interrupted_app.py").write_text(INTERRUPTED.format(name=name))
    server = develop(database_url, app="interrupted_app:app")
    server.wait_logged("dashboard: http")
    assert server.process.wait(PATIENCE_SECONDS) == 0, server.output
    assert [row["state"] for row in rows(app_factory(), "workers")] in ([], ["stopped"])


def test_retries_pauses_and_schedules_follow_the_clock_which_never_goes_back(
    app_factory: AppFactory, database_url: str, develop: Develop
) -> None:
    app = app_factory(keys=KEYS)
    server = develop(database_url)
    server.started()
    gone, down = (add_endpoint(f"https://{name}.example/hooks", effects=app).id for name in ("gone", "down"))
    deliver_webhook(WebhookEvent("order.paid", {"order": 1}), effects=app)
    wait_until(lambda: _came(server, "gone") + _came(server, "down") == 2)
    for endpoint, answer in ((gone, "410"), (down, "503")):
        server.post("/dev", f"/dev/webhooks/answers/{endpoint}", answer=answer)
    deliver_webhook(WebhookEvent("order.paid", {"order": 2}), effects=app)
    wait_until(lambda: (_came(server, "gone"), _came(server, "down")) == (2, 2))

    server.post("/dev", "/dev/clock", by="6 hours")
    server.started(2)
    wait_until(lambda: _came(server, "down") >= 3)  # its first retry but one is due after 5 minutes
    deliver_webhook(WebhookEvent("order.paid", {"order": 3}), effects=app)
    wait_until(lambda: get_endpoint(gone, effects=app).status == "disabled")
    server.post("/dev", "/dev/clock", hours="24")
    server.started(3)
    wait_until(lambda: "dev.tick" in {row["job_type"] for row in rows(app, "job_history")})
    assert server.stop() in (0, 130)

    again = develop(database_url)
    again.started()
    assert "clock 1 d 6 h ahead" in again.output
    token = re.search(r'name="form_token" value="([0-9a-f]{64})"', again.page("/dev"))
    assert token is not None
    for hours in ("0", "-3", "999999"):
        refused = again.client.post("/dev/clock", data={"form_token": token[1], "hours": hours}, headers=SAME_ORIGIN)
        assert (refused.status_code, "forward only" in refused.text) == (422, True)


def _came(server: DevServer, name: str) -> int:
    return server.page("/dev/webhooks").count(f"https://{name}.example/hooks")


def test_make_dev_shows_a_first_message_and_a_first_webhook(tmp_path: Path) -> None:
    """The recipe as it stands, in a copy of the examples, on a port that is free."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    [recipe] = re.findall(r"^dev: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("dev.db*", ".effects-dev"))
    script = recipe.replace("$(CURDIR)/$(BIN)", str(Path(sys.executable).parent)).replace("$$", "$").rstrip()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EFFECTS_")}
    log = tmp_path / "make.log"
    with log.open("wb") as file:
        command = ["bash", "-c", f"{script} --port 0"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT, env=clean)
    server = DevServer(process, log)
    try:
        server.started()
        wait_until(lambda: "Welcome, Ann" in server.page("/dev/mail"))
        wait_until(lambda: "https://crm.example/hooks" in server.page("/dev/webhooks"))
        assert server.stop() in (0, 130)
    finally:
        server.client.close()
        process.kill()
        process.wait()
