"""The partner's page: each receiver on it takes what a worker sends, stores it once, and nothing else."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import httpx
import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy.engine import URL, make_url

from effects import Effects, FixedSchedule, RetryPolicy
from effects.cli.main import cli
from effects_webhooks import (
    WebhookDelivery,
    WebhookEvent,
    add_endpoint,
    change_endpoint,
    deliver_webhook,
    deliver_webhooks,
    generate_secret,
    rotate_secret,
    sign,
    verify,
)
from effects_webhooks.admin.deliveries import replay_event
from tests.peers.proxy import Proxy
from tests.support import needs
from tests.support.database_pool import DatabasePool
from tests.support.waiting import wait_until
from tests.webhooks.conftest import drain

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "partner.md").read_text()
LANGUAGES = ("javascript", "py", "go", "php", "ruby", "java", "csharp")
LINES_MAX = 15
SECRET = generate_secret()
BODY = '{"type":"order.paid","timestamp":"2026-11-21T17:06:50Z","data":{"name":"Zoë ☕ \U0001f600","n":1.50}}'
GOOD = (0, 240, -240)  # seconds that the clocks differ; the rest of 300 is for a slow machine
BAD_CLOCK = (330, -420, 10**9)
FAIL_ONCE = """
    CREATE SEQUENCE inserts;
    CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF nextval('inserts') = 1 THEN RAISE 'no room'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER fail_once BEFORE INSERT ON webhook_inbox FOR EACH ROW EXECUTE FUNCTION fail_once()"""


@dataclass(frozen=True)
class Program:
    """How to start a receiver, and what it needs in its environment."""

    command: list[str]
    environment: Mapping[str, str]


Build: TypeAlias = Callable[[Path, int, URL], Program]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def written(folder: Path, language: str, name: str) -> str:
    """The page's program in this language, as it stands."""
    (folder / name).write_text("\n".join(blocks(language)))
    return str(folder / name)


def javascript(folder: Path, port: int, url: URL) -> Program:
    script = written(folder, "javascript", "receiver.js")
    environment = {"DATABASE_URL": url.render_as_string(False), "NODE_PATH": needs.npm("pg")}
    return Program([needs.program("node"), script], environment)


def py(folder: Path, port: int, url: URL) -> Program:
    script = written(folder, "py", "receiver.py")
    return Program([sys.executable, script], {"DATABASE_URL": url.render_as_string(False)})


def go(folder: Path, port: int, url: URL) -> Program:
    needs.file("/usr/share/gocode/src/github.com/lib/pq")
    environment = {"GOCACHE": str(folder / "cache"), "GO111MODULE": "off", "GOPATH": "/usr/share/gocode"}
    build = [needs.program("go"), "build", "-o", str(folder / "receiver"), written(folder, "go", "receiver.go")]
    subprocess.run(build, check=True, timeout=240, env={**os.environ, **environment})
    return Program([str(folder / "receiver")], {"DATABASE_URL": url.render_as_string(False)})


def php(folder: Path, port: int, url: URL) -> Program:
    needs.file("/usr/share/php8.2-pgsql")
    server = [needs.program("php"), "-S", f"127.0.0.1:{port}", written(folder, "php", "receiver.php")]
    password = f";password={url.password}" if url.password else ""
    name = f"pgsql:host={url.host};port={url.port};dbname={url.database};user={url.username}{password}"
    name += ";sslmode=disable;gssencmode=disable"
    return Program(server, {"DATABASE_DSN": name})


def ruby(folder: Path, port: int, url: URL) -> Program:
    script = written(folder, "ruby", "receiver.rb")
    return Program([needs.program("ruby"), script], {"DATABASE_URL": url.render_as_string(False)})


def java(folder: Path, port: int, url: URL) -> Program:
    driver = needs.file("/usr/share/java/postgresql.jar")
    subprocess.run(
        [needs.program("javac"), "-d", str(folder), written(folder, "java", "Receiver.java")], check=True, timeout=240
    )
    password = f"&password={url.password}" if url.password else ""
    address = f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?user={url.username}{password}"
    address += "&sslmode=disable&gssEncMode=disable"
    return Program([needs.program("java"), "-cp", f"{folder}:{driver}", "Receiver"], {"DATABASE_URL": address})


# -- requests, good and bad ----------------------------------------------------------------------------------------


def request(off_seconds: int = 0, secret: str = SECRET) -> dict[str, str]:
    now = int(time.time()) - off_seconds
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now)}
    return {**headers, "webhook-signature": sign(secret, "msg_1", now, BODY.encode())}


def good_requests() -> Iterator[dict[str, str]]:
    for off in GOOD:
        yield request(off)
    for beside in ("v1a,xyz", "v1,", "v2", sign(generate_secret(), "msg_1", 1, b"{}"), ","):
        headers = request()
        yield {**headers, "webhook-signature": f"{beside} {headers['webhook-signature']}"}


def bad_requests() -> Iterator[tuple[dict[str, str], str]]:
    for off in BAD_CLOCK:
        yield request(off), BODY
    headers = request()
    for token in ("v1a,xyz", "v1,", "v2", sign(generate_secret(), "msg_1", 1, b"{}"), ","):
        yield {**headers, "webhook-signature": token}, BODY
    yield headers, BODY + " "
    yield headers, BODY.replace("1.50", "1.5")
    yield request(secret=generate_secret()), BODY
    yield {**headers, "webhook-id": "msg_2"}, BODY
    for timestamp in ("", "now", "-1", "1e9", "99999999999999999999", str(int(headers["webhook-timestamp"]) + 1)):
        yield {**headers, "webhook-timestamp": timestamp}, BODY
    for name in headers:
        yield {key: value for key, value in headers.items() if key != name}, BODY
        yield {**headers, name: ""}, BODY


# -- the receivers -------------------------------------------------------------------------------------------------


@contextmanager
def running(program: Program, port: int, secret: str) -> Iterator[str]:
    """The receiver's URL, once it listens; it is ended with the block."""
    environment = {**os.environ, **program.environment, "WEBHOOK_SECRET": secret, "PORT": str(port)}
    process = subprocess.Popen(program.command, env=environment, stderr=subprocess.DEVNULL)

    def listens() -> bool:
        assert process.poll() is None
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    try:
        wait_until(listens)
        yield f"http://127.0.0.1:{port}/webhooks"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
@pytest.mark.timeout(300)  # Go and Java are compiled, on a machine that may be busy
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)  # of the sender; the partner's is PostgreSQL
@pytest.mark.parametrize("build", [javascript, py, go, php, ruby, java], ids=lambda build: build.__name__)
def test_a_receiver_stores_each_event_once_and_nothing_of_others(
    build: Build, shop: Effects, postgresql_pool: DatabasePool, tmp_path: Path
) -> None:
    port, moved_to = free_port(), free_port()
    retry = RetryPolicy(backoff=FixedSchedule((0,)), max_attempts=2)
    shop.job_types.replace(WebhookDelivery(shop, retry=retry))
    with postgresql_pool.database() as url, Proxy(url) as proxy, psycopg.connect(url, autocommit=True) as inbox:
        inbox.execute(blocks("sql")[0])
        partner = make_url(proxy.url).set(query={"sslmode": "disable"})  # by TCP, which Java needs
        program = build(tmp_path, port, partner)

        def stored() -> dict[str, str]:
            return dict(inbox.execute("SELECT id, body FROM webhook_inbox").fetchall())

        with running(program, port, SECRET) as address, httpx.Client(timeout=30) as client:
            wrong = [
                (headers, body)
                for headers, body in bad_requests()
                if client.post(address, headers=headers, content=body.encode()).status_code != 401
            ]
            assert wrong == []
            assert stored() == {}
            for headers in good_requests():  # of one id: each but the first is a duplicate
                assert client.post(address, headers=headers, content=BODY.encode()).status_code == 204, headers
            assert stored() == {"msg_1": BODY}

            endpoint = add_endpoint(address, secret=SECRET, effects=shop)
            events = [WebhookEvent("order.paid", {"name": "Zoë ☕", "n": n}) for n in range(3)]
            receipts = deliver_webhooks(events, effects=shop)
            assert drain(shop) == {"succeeded": 3}
            assert stored().keys() == {"msg_1", *(receipt.event_id for receipt in receipts)}
            replay_event(receipts[0].event_id, actor="test", confirm_done=True, effects=shop)
            assert drain(shop) == {"succeeded": 1}
            assert len(stored()) == 4

            inbox.execute(FAIL_ONCE)
            failing = deliver_webhook(WebhookEvent("order.paid", {"n": 4}), effects=shop)
            assert drain(shop) == {"failed": 1, "succeeded": 1}
            assert failing.event_id in stored()
            assert inbox.execute("SELECT last_value FROM inserts").fetchone() == (2,)

            secret = rotate_secret(endpoint.id, effects=shop).secret
            during = deliver_webhook(WebhookEvent("order.paid", {"n": 5}), effects=shop)
            assert drain(shop) == {"succeeded": 1}
        with running(build(tmp_path, moved_to, partner), moved_to, secret) as address:
            change_endpoint(endpoint.id, url=address, effects=shop)
            after = deliver_webhook(WebhookEvent("order.paid", {"n": 6}), effects=shop)
            assert drain(shop) == {"succeeded": 1}
        assert {during.event_id, after.event_id} < stored().keys()
        assert len(stored()) == 7


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_receiver_is_at_most_15_lines(language: str) -> None:
    receiver = [block for block in blocks(language) if "ON CONFLICT" in block][-1]
    assert "verify(" in receiver.lower()
    lines = receiver.partition("\n\n\n")[0].splitlines()  # without what starts a server
    assert len([line for line in lines if line.strip()]) <= LINES_MAX


def test_the_request_on_the_page_is_signed_by_the_secret_beside_it() -> None:
    [shown] = blocks("http")
    head, body = shown.rstrip("\n").split("\n\n")
    headers = dict(re.findall(r"^(webhook-[a-z]+): (.+)$", head, re.MULTILINE))
    [secret] = re.findall(r"whsec_\w{20,}", PAGE)
    assert verify(secret, headers, body.encode(), now=int(headers["webhook-timestamp"])) == headers["webhook-id"]


def test_the_page_stands_alone() -> None:
    """It is sent to people who have nothing else of ours: no link of it leads into this repository."""
    assert re.findall(r"\]\((?!https://)[^)]+\)", PAGE) == []


def test_the_command_for_webhooks_prints_what_its_page_shows() -> None:
    text = (ROOT / "docs" / "webhook-responses.md").read_text()
    [shown] = re.findall(r"^```console\n\$ effects (webhooks explain .*?)^```$", text, re.DOTALL | re.MULTILINE)
    command, _, output = shown.partition("\n")
    result = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    assert [line.rstrip() for line in result.output.splitlines()] == output.splitlines()
