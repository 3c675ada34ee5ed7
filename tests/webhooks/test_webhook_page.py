"""The page for partners: what it shows in Node, Go, Ruby and PHP takes what we send, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from effects import Effects
from effects.cli.main import cli
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhooks, generate_secret, sign, verify
from tests.support import needs
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
README = (ROOT / "webhooks" / "README.md").read_text()
SECRET = generate_secret()
BODY = '{"type":"order.paid","timestamp":"2026-11-21T17:06:50Z","data":{"name":"Zoë ☕ \U0001f600","n":1.50}}'
GO_IMPORTS = (
    "crypto/hmac", "crypto/sha256", "encoding/base64", "encoding/json", "fmt", "net/http", "os", "strconv", "strings",
    "time",
)  # fmt: skip
GOOD = (0, 240, -240)  # seconds that the clocks differ; the rest of 300 is for a slow machine
BAD_CLOCK = (330, -420, 10**9)


def snippet(language: str, holding: str) -> str:
    """The block of this language that holds this text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    return str(next(block for block in blocks if holding in block))


def request(off_seconds: int = 0, secret: str = SECRET) -> dict[str, str]:
    now = int(time.time()) - off_seconds
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now)}
    return {**headers, "webhook-signature": sign(secret, "msg_1", now, BODY.encode())}


def cases() -> Iterator[tuple[dict[str, str], str, bool]]:
    """Headers, body, and whether they are good."""
    for off in GOOD:
        yield request(off), BODY, True
    for off in BAD_CLOCK:
        yield request(off), BODY, False
    good = request()
    token = good["webhook-signature"]
    for beside in ("v1a,xyz", "v1,", "v2", sign(generate_secret(), "msg_1", 1, b"{}"), ","):
        yield {**good, "webhook-signature": f"{beside} {token}"}, BODY, True
        yield {**good, "webhook-signature": beside}, BODY, False
    yield good, BODY + " ", False
    yield good, BODY.replace("1.50", "1.5"), False
    yield request(secret=generate_secret()), BODY, False
    yield {**good, "webhook-id": "msg_2"}, BODY, False
    for timestamp in ("", "now", "-1", "1e9", "99999999999999999999", str(int(good["webhook-timestamp"]) + 1)):
        yield {**good, "webhook-timestamp": timestamp}, BODY, False
    for name in good:
        yield {key: value for key, value in good.items() if key != name}, BODY, False
        yield {**good, name: ""}, BODY, False


def node(folder: Path) -> list[str]:
    script = (
        snippet("javascript", "function verify")
        + """
    const requests = JSON.parse(require("node:fs").readFileSync(0));
    const answer = ({ secret, headers, body }) => verify(secret, headers, Buffer.from(body));
    console.log(JSON.stringify(requests.map(answer)));"""
    )
    (folder / "page.js").write_text(script)
    return [needs.program("node"), str(folder / "page.js")]


def go(folder: Path) -> list[str]:
    quoted = "\n".join(f'"{name}"' for name in GO_IMPORTS)
    script = (
        f"package main\n\nimport (\n{quoted}\n)\n\n{snippet('go', 'func verify')}"
        + """
    func main() {
        var requests []struct { Secret, Body string; Headers map[string]string }
        if err := json.NewDecoder(os.Stdin).Decode(&requests); err != nil { panic(err) }
        answers := []bool{}
        for _, request := range requests {
            header := http.Header{}
            for name, value := range request.Headers { header.Set(name, value) }
            answers = append(answers, verify(request.Secret, header, []byte(request.Body)))
        }
        json.NewEncoder(os.Stdout).Encode(answers)
    }"""
    )
    (folder / "page.go").write_text(script)
    environment = {**os.environ, "GOCACHE": str(folder / "go"), "GO111MODULE": "off"}
    build = [needs.program("go"), "build", "-o", str(folder / "page"), str(folder / "page.go")]
    subprocess.run(build, check=True, timeout=240, env=environment)
    return [str(folder / "page")]


def ruby(folder: Path) -> list[str]:
    script = (
        snippet("ruby", "def verify")
        + """
    require "json"
    requests = JSON.parse($stdin.read)
    puts JSON.generate(requests.map { |request| verify(request["secret"], request["headers"], request["body"]) })"""
    )
    (folder / "page.rb").write_text(script)
    return [needs.program("ruby"), str(folder / "page.rb")]


def php(folder: Path) -> list[str]:
    script = (
        "<?php\n"
        + snippet("php", "function verify")
        + """
    $requests = json_decode(file_get_contents('php://stdin'), true);
    $answer = fn ($request) => verify($request['secret'], $request['headers'], $request['body']);
    echo json_encode(array_map($answer, $requests));"""
    )
    (folder / "page.php").write_text(script)
    return [needs.program("php"), str(folder / "page.php")]


@pytest.mark.slow
@pytest.mark.parametrize("language", [node, go, ruby, php], ids=lambda language: language.__name__)
def test_the_function_on_the_page_distinguishes_good_from_bad(
    language: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    command = language(tmp_path)
    expected = list(cases())
    inputs = [{"secret": SECRET, "headers": headers, "body": body} for headers, body, _ in expected]
    done = subprocess.run(command, input=json.dumps(inputs), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    wrong = [(case, good) for case, good, (_, _, right) in zip(inputs, answers, expected, strict=True) if good != right]
    assert wrong == []


def test_the_request_on_the_page_is_signed_by_the_secret_beside_it() -> None:
    shown = README[README.index("    POST /webhooks") : README.index("1. **Verify**")]
    headers = dict(re.findall(r"^ +(webhook-[a-z]+): (.+)$", shown, re.MULTILINE))
    body = re.findall(r"^ +(\{.*\})$", shown, re.MULTILINE)[0].encode()
    [secret] = re.findall(r"whsec_\w+", shown)
    assert verify(secret, headers, body, now=int(headers["webhook-timestamp"])) == headers["webhook-id"]


def test_the_command_on_the_page_prints_what_it_shows() -> None:
    command, _, shown = snippet("console", "explain").removeprefix("$ effects ").partition("\n")
    done = CliRunner().invoke(cli, shlex.split(command), catch_exceptions=False)
    assert [line.rstrip() for line in done.output.splitlines()] == shown.splitlines()


# -- the receiver in Node, with the library of npm -----------------------------------------------------------------


@contextmanager
def running(command: list[str], port: int, env: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The program, once it listens; ended with the block."""
    process = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True)

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    try:
        wait_until(listens, seconds=20)
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.mark.slow
def test_the_receiver_on_the_page_takes_what_a_worker_sends(shop: Effects, tmp_path: Path) -> None:
    script, port, secret = tmp_path / "receiver.js", free_port(), generate_secret()
    script.write_text(snippet("javascript", "createServer"))
    environment = {"NODE_PATH": needs.npm("standardwebhooks"), "PORT": str(port), "WEBHOOK_SECRET": secret}
    events = [WebhookEvent("order.paid", {"name": "Zoë ☕", "n": n}) for n in range(5)]
    with running([needs.program("node"), str(script)], port, environment) as process:
        add_endpoint(f"http://127.0.0.1:{port}/", secret=secret, effects=shop)
        deliver_webhooks(events, effects=shop)
        assert Worker(shop).drain(max_seconds=50).counts == {"succeeded": 5}
        third_party = add_endpoint(f"http://127.0.0.1:{port}/", ["other"], effects=shop)  # has another secret
        deliver_webhooks([WebhookEvent("other", {})], effects=shop)
        assert Worker(shop).drain(max_seconds=50).counts["succeeded"] == 1  # the first endpoint takes all types
        process.kill()
        said = process.stdout.read() if process.stdout else ""
    assert said.count("order.paid") == 5
    assert codes(shop, third_party.id) == [401]


def codes(shop: Effects, endpoint_id: str) -> list[Any]:
    """The newest status of each delivery to an endpoint."""
    table = shop.store.tables["delivered_webhooks"]
    with shop.store.read() as connection:
        deliveries = connection.execute(table.select().where(table.c.endpoint_id == endpoint_id))
        return [row.status_code for row in deliveries]
