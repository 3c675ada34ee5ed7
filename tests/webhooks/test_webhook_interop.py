"""What we send is taken by the verifiers that partners use: standardwebhooks and svix, from PyPI and from npm."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import svix

from effects import Effects
from effects.keys.signing import parse_secret
from effects.worker import Worker
from effects_webhooks import (
    SecretInvalid,
    WebhookEvent,
    add_endpoint,
    deliver_webhooks,
    generate_secret,
    rotate_secret,
    sign,
    verify,
)
from tests.peers.http import Receiver, Request
from tests.support import needs

EVENTS = [
    WebhookEvent("order.paid", {"n": 1}),
    WebhookEvent("order.paid", {"name": "Zoë ☕ 漢字 \u2028 \U0001f600", "nested": {"z": [1, 2.5, None, True]}}),
    WebhookEvent("empty", {}),
    WebhookEvent("large", {"text": "x" * 100_000}),
    WebhookEvent("escapes", {"text": '"\\\n\t\b\x7f</script>'}),
]

NODE = """
const { Webhook } = require("standardwebhooks");
let given = "";
process.stdin.on("data", (chunk) => (given += chunk));
process.stdin.on("end", () => {
  for (const { secret, headers, body } of JSON.parse(given)) {
    console.log(JSON.stringify(new Webhook(secret).verify(body, headers)));
  }
});
"""


@pytest.fixture
def sent(shop: Effects) -> tuple[list[str], list[Request]]:
    """Both secrets of an endpoint in rotation, and requests as a partner got them."""
    with Receiver() as receiver:
        endpoint = add_endpoint(receiver.url, effects=shop)
        new = rotate_secret(endpoint.id, effects=shop)
        deliver_webhooks(EVENTS, effects=shop)
        assert Worker(shop).drain(max_seconds=50).counts == {"succeeded": len(EVENTS)}
    return [new.secret, endpoint.secret], receiver.requests


def test_the_python_libraries_take_every_request_with_either_secret(sent: tuple[list[str], list[Request]]) -> None:
    secrets, requests = sent
    assert len(requests) == len(EVENTS)
    for secret in secrets:
        for request in requests:
            document = json.loads(request.body)
            assert standardwebhooks.Webhook(secret).verify(request.body, request.headers) == document
            svix.Webhook(secret).verify(request.body, request.headers)  # raises, or gives nothing back


def test_the_libraries_refuse_what_was_altered(sent: tuple[list[str], list[Request]]) -> None:
    secrets, requests = sent
    request = requests[0]
    wrong = [(request.body + b" ", request.headers), (request.body, {**request.headers, "webhook-id": "msg_other"})]
    for body, headers in wrong:
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(secrets[0]).verify(body, headers)
        with pytest.raises(svix.WebhookVerificationError):
            svix.Webhook(secrets[0]).verify(body, headers)


def test_the_library_of_npm_takes_every_request(sent: tuple[list[str], list[Request]]) -> None:
    environment = {**os.environ, "NODE_PATH": needs.npm("standardwebhooks")}
    secrets, requests = sent
    cases: list[dict[str, Any]] = [
        {"secret": secret, "headers": request.headers, "body": request.body.decode()}
        for secret in secrets
        for request in requests
    ]
    done = subprocess.run(
        [needs.program("node"), "-e", NODE], input=json.dumps(cases), capture_output=True, text=True, timeout=60,
        check=True, env=environment,
    )  # fmt: skip
    assert [json.loads(line) for line in done.stdout.rstrip("\n").split("\n")] == [
        json.loads(case["body"]) for case in cases
    ]


def test_requests_signed_by_the_libraries_are_accepted() -> None:
    secret, body, now = generate_secret(), '{"a":1}', datetime.now(UTC)
    for library in (standardwebhooks, svix):
        signature = library.Webhook(secret).sign("msg_1", now, body)
        assert signature == sign(secret, "msg_1", int(now.timestamp()), body.encode())


# -- the traps that verifiers fall into ----------------------------------------------------------------------------


def test_the_header_has_one_comma_a_token_and_one_space_between(sent: tuple[list[str], list[Request]]) -> None:
    for request in sent[1]:
        assert re.fullmatch(r"v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)?", request.headers["webhook-signature"])


def test_the_timestamp_is_a_whole_number_and_the_id_has_no_dot(sent: tuple[list[str], list[Request]]) -> None:
    for request in sent[1]:
        assert request.headers["webhook-timestamp"].isdecimal()
        assert re.fullmatch(r"msg_[A-Za-z0-9_-]+", request.message_id)


def test_the_body_is_utf8_json_and_never_empty(sent: tuple[list[str], list[Request]]) -> None:
    for request in sent[1]:
        assert request.body.decode("utf-8").encode() == request.body
        assert set(json.loads(request.body)) == {"type", "timestamp", "data"}


def test_a_token_of_another_version_before_ours_is_skipped() -> None:
    secret, now = generate_secret(), int(time.time())
    token = sign(secret, "msg_1", now, b"{}")
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": f"v1a,{'A' * 86}== {token}"}
    assert verify(secret, headers, b"{}") == "msg_1"
    standardwebhooks.Webhook(secret).verify(b"{}", headers)
    svix.Webhook(secret).verify(b"{}", headers)


def test_a_url_safe_secret_that_python_would_mangle_is_refused() -> None:
    for secret in ("whsec_" + "_-" * 16, "whsec_" + "____" * 8):
        with pytest.raises(SecretInvalid):
            parse_secret(secret)


def test_the_newest_secret_signs_first(sent: tuple[list[str], list[Request]]) -> None:
    secrets, requests = sent
    for request in requests:
        tokens = request.headers["webhook-signature"].split(" ")
        timestamp = int(request.headers["webhook-timestamp"])
        assert tokens == [sign(secret, request.message_id, timestamp, request.body) for secret in secrets]
