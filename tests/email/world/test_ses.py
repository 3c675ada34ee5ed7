"""Amazon SES: published vectors of its signature, requests that a stand-in verifies for itself, and its answers."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import botocore.auth
import pytest

from effects import ConfigurationError
from effects_email.message.source import Address
from effects_email.transport.base import SendResult
from effects_email.transport.http_api.fields import reference
from effects_email.transport.http_api.ses_signing import CredentialsSource, sign
from effects_email.transport.url import open_transport
from tests.email.wire.conftest import Released
from tests.email.world.stand_ins import (
    ACCESS,
    ANN,
    BEN,
    CAT,
    REGION,
    SECRET,
    SesBox,
    answer,
    outgoing_message,
    receiver,
    ses_url,
)

# Of AWS's test suite for Signature Version 4: method, headers, body → the signature.
VECTORS: dict[str, tuple[str, dict[str, str], bytes, str]] = {
    "get-vanilla": ("GET", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
    "post-vanilla": ("POST", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
    "post-x-www-form-urlencoded": (
        "POST", {"content-type": "application/x-www-form-urlencoded"}, b"Param1=value1",
        "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VECTORS)
def test_the_published_vectors_are_met(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, headers, body, expected = VECTORS[name]
    moment = datetime(2015, 8, 30, 12, 36, tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: moment)
    credentials = CredentialsSource(ACCESS, SECRET).read()
    signed = sign(credentials, "us-east-1", "service", method, "https://example.amazonaws.com/", headers, body)
    assert signed["authorization"].endswith(f"Signature={expected}")


def send(url: str, *recipients: str, **parts: Any) -> SendResult:
    transport = open_transport("test", url)
    try:
        return transport.send(outgoing_message(*recipients, **parts), release=Released(), seconds=20)
    finally:
        transport.close()


def test_it_gets_our_bytes_signed() -> None:
    box = SesBox()
    people = {
        "to": (Address("ann", "example.org"),), "cc": (Address("ben", "example.org"),),
        "bcc": (Address("cat", "example.org"),),
    }  # fmt: skip
    with receiver(box.serve) as peer:
        sent = send(ses_url(peer.port, more="&configuration_set=mine"), ANN, BEN, CAT, **people)
        assert send(ses_url(peer.port, secret="wrong")).verdict.code == "ses_403_InvalidSignatureException"
    assert (sent.verdict.kind, (sent.provider_id or "")[:4]) == ("accepted", "0102")
    [message] = box.messages
    expected = outgoing_message(ANN, BEN, CAT, **people).data
    assert base64.b64decode(message.pop("Content")["Raw"]["Data"]) == expected
    assert message == {
        "FromEmailAddress": "shop@example.com", "ConfigurationSetName": "mine",
        "Destination": {"ToAddresses": [ANN], "CcAddresses": [BEN], "BccAddresses": [CAT]},
        "EmailTags": [
            {"Name": "effects_message", "Value": reference("1@example.com")},
            {"Name": "effects_recipients", "Value": "3"},
        ],
    }  # fmt: skip


def error(kind: str, message: str = "no") -> tuple[dict[str, str], dict[str, str]]:
    return {"x-amzn-errortype": f"{kind}:http://internal.amazon.com/"}, {"message": message}


# status, error, message → kind, seconds
STATUSES: list[tuple[int, str, str, str, float | None]] = [
    (
        400,
        "MessageRejected",
        "Email address is not verified. These identities failed",
        "config",
        None,
    ),
    (400, "MessageRejected", "Illegal content", "refused_message", None),
    (400, "MailFromDomainNotVerifiedException", "", "config", None),
    (400, "AccountSuspendedException", "", "config", None),
    (400, "SendingPausedException", "", "config", None),
    (400, "LimitExceededException", "", "throttle", 1),
    (429, "TooManyRequestsException", "Maximum sending rate exceeded.", "throttle", 1),
    (429, "TooManyRequestsException", "Daily message quota exceeded.", "throttle", 3600),
    (400, "ExpiredTokenException", "", "config", None),
    (403, "AccessDeniedException", "", "config", None),
    (404, "NotFoundException", "Configuration set does not exist", "config", None),
    (400, "BadRequestException", "Local address contains control or whitespace", "refused_recipient", None),
    (400, "BadRequestException", "Tag value is too long", "refused_message", None),
    (413, "", "", "refused_message", None),
    (500, "InternalFailure", "", "unknown", None),
    (503, "ServiceUnavailable", "", "unknown", None),
]


@pytest.mark.parametrize(("status", "kind_of_error", "message", "kind", "seconds"), STATUSES)
def test_each_answer_has_its_verdict(
    status: int, kind_of_error: str, message: str, kind: str, seconds: float | None
) -> None:
    headers, document = error(kind_of_error, message)
    with receiver([answer(status, headers, **document)]) as peer:
        sent = send(ses_url(peer.port))
    assert (sent.verdict.kind, sent.verdict.after_seconds, sent.verdict.suppress) == (kind, seconds, None)
    assert sent.verdict.code == f"ses_{status}" + (f"_{kind_of_error}" if kind_of_error else "")


def test_an_answer_that_is_lost_is_unknown() -> None:
    box = SesBox()
    box.lose = 1
    with receiver(box.serve) as peer:
        transport = open_transport("test", ses_url(peer.port))
        sent = transport.send(outgoing_message(), release=Released(), seconds=20)
        assert (sent.verdict.kind, transport.traceable, transport.key_lifetime_seconds) == ("unknown", False, None)
        assert transport.ask(outgoing_message()) is None
        transport.close()
    assert len(box.messages) == 1


def test_without_credentials_nothing_is_released(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with receiver([200]) as peer:
        sent = send(f"ses:?region={REGION}&origin=http://127.0.0.1:{peer.port}")
        assert (sent.verdict.kind, sent.verdict.code, peer.requests) == ("config", "no_credentials", [])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    box = SesBox()
    with receiver(box.serve) as peer:
        assert send(f"ses:?region={REGION}&origin=http://127.0.0.1:{peer.port}").verdict.kind == "accepted"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ses:", "region"),
        ("ses:?region=evil.example/", "region"),
        ("ses://key@?region=eu-west-1", "ACCESS_KEY:SECRET"),
        ("ses://email.example?region=eu-west-1", "ACCESS_KEY:SECRET"),
        ("ses:?region=eu-west-1&configuration_set=a%20b", "configuration_set"),
        ("ses:?region=eu-west-1&x=1", "unknown option"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        open_transport("test", url)
