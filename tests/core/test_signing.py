"""Standard Webhooks: the official vectors, another implementation, and what third parties may send."""

from __future__ import annotations

import base64
import time

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

import effects_webhooks
from effects.errors import SecretInvalid, SignatureInvalid
from effects.keys.signing import decode_secret, generate_secret, parse_secret, sign, verify, verify_with

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, TIMESTAMP, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
TOKEN = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(TIMESTAMP), "webhook-signature": TOKEN}
VECTORS = [
    (SECRET, ID, TIMESTAMP, BODY, TOKEN),
    (
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
        1649367553,
        b'{"email":"test@example.com","username":"test_user"}',
        "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
    ),
]


@pytest.mark.parametrize(("secret", "message_id", "timestamp", "body", "token"), VECTORS)
def test_the_official_vectors(secret: str, message_id: str, timestamp: int, body: bytes, token: str) -> None:
    assert sign(secret, message_id, timestamp, body) == token
    headers = {"Webhook-Id": message_id, "WEBHOOK-TIMESTAMP": str(timestamp), "webhook-signature": token}
    assert verify(secret, headers, body, now=timestamp) == message_id


@pytest.mark.slow
@given(message_id=st.from_regex(r"msg_[A-Za-z0-9_-]{1,40}", fullmatch=True), text=st.text(min_size=1))
def test_another_implementation_accepts_what_we_sign(message_id: str, text: str) -> None:
    secret, now, body = generate_secret(), int(time.time()), text.encode(errors="replace")
    headers = {"webhook-id": message_id, "webhook-timestamp": str(now)}
    headers["webhook-signature"] = sign(secret, message_id, now, body)
    standardwebhooks.Webhook(secret).verify(body, headers, json_parse=False)
    headers["webhook-signature"] = f"{sign(generate_secret(), message_id, now, body)} {headers['webhook-signature']}"
    standardwebhooks.Webhook(secret).verify(body, headers, json_parse=False)
    assert verify(secret, headers, body) == message_id


def test_a_signature_is_one_token_without_decoration() -> None:
    token = sign(generate_secret(), "msg_1", 1, b"{}")
    version, _, encoded = token.partition(",")
    assert version == "v1"
    assert len(encoded) == 44
    assert len(base64.b64decode(encoded, validate=True)) == 32


@pytest.mark.parametrize(
    "signatures",
    [
        TOKEN,
        f"v1,AAAA {TOKEN}",
        f"v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg== {TOKEN}",
        f"garbage {TOKEN}",
        f"  {TOKEN}  ",
        f"v1,ä {TOKEN}",
    ],
)
def test_one_matching_token_among_others_is_enough(signatures: str) -> None:
    headers = {**HEADERS, "webhook-signature": signatures}
    assert verify(SECRET, headers, BODY, now=TIMESTAMP) == ID


def test_either_secret_fits_while_one_is_replaced() -> None:
    assert verify([generate_secret(), SECRET], HEADERS, BODY, now=TIMESTAMP) == ID
    assert verify((secret for secret in (SECRET, generate_secret())), HEADERS, BODY, now=TIMESTAMP) == ID


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_other"},
        {"webhook-id": ""},
        {"webhook-id": "msg.1"},
        {"webhook-id": "msg\n1"},
        {"webhook-id": None},
        {"webhook-timestamp": str(TIMESTAMP + 1)},
        {"webhook-timestamp": f"{TIMESTAMP}.0"},
        {"webhook-timestamp": f"-{TIMESTAMP}"},
        {"webhook-timestamp": f" {TIMESTAMP}"},
        {"webhook-timestamp": "١٦١٤٢٦٥٣٣٠"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-timestamp": "now"},
        {"webhook-signature": ""},
        {"webhook-signature": TOKEN[:-1]},
        {"webhook-signature": TOKEN.removeprefix("v1,")},
        {"webhook-signature": TOKEN.replace("v1,", "v2,")},
        {"webhook-signature": TOKEN.replace("v1,", "v1,,")},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1"},
        {"webhook-signature": 7},
    ],
)
def test_whatever_is_altered_or_malformed_is_refused_with_one_error(change: dict[str, object]) -> None:
    with pytest.raises(SignatureInvalid):
        verify(SECRET, {**HEADERS, **change}, BODY, now=TIMESTAMP)  # type: ignore[dict-item]


def test_a_text_for_the_body_and_the_environ_for_the_headers_are_answered_by_their_cure() -> None:
    with pytest.raises(TypeError, match="give the bytes as they were received"):
        verify(SECRET, HEADERS, BODY.decode())  # type: ignore[arg-type]
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in HEADERS.items()}
    with pytest.raises(SignatureInvalid, match=r"give the headers, not WSGI's environ with HTTP_WEBHOOK_ID$"):
        verify(SECRET, environ, BODY)


@pytest.mark.parametrize("name", list(HEADERS))
def test_a_missing_header_is_named(name: str) -> None:
    with pytest.raises(SignatureInvalid, match=name):
        verify(SECRET, {key: value for key, value in HEADERS.items() if key != name}, BODY, now=TIMESTAMP)


@pytest.mark.parametrize("body", [b"", BODY + b" ", BODY[:-1], b"\xff\xfe"])
def test_another_body_is_refused(body: bytes) -> None:
    with pytest.raises(SignatureInvalid):
        verify(SECRET, HEADERS, body, now=TIMESTAMP)


@pytest.mark.parametrize(("offset", "fits"), [(-301, False), (-300, True), (0, True), (300, True), (301, False)])
def test_the_window_is_five_minutes_both_ways(offset: int, fits: bool) -> None:
    if fits:
        assert verify(SECRET, HEADERS, BODY, now=TIMESTAMP + offset) == ID
    else:
        with pytest.raises(SignatureInvalid, match="webhook-timestamp"):
            verify(SECRET, HEADERS, BODY, now=TIMESTAMP + offset)
    assert verify(SECRET, HEADERS, BODY, now=TIMESTAMP + offset, tolerance_seconds=400) == ID


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        SECRET.removeprefix("whsec_"),
        SECRET.replace("whsec_", "whsk_"),
        SECRET + "\n",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
        "whsec_" + base64.b64encode(b"k" * 32).decode().rstrip("="),
        "whsec_" + base64.urlsafe_b64encode(b"\xfb\xff" * 12).decode(),
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSé",
    ],
)
def test_a_malformed_secret_is_refused_and_not_quoted(secret: str) -> None:
    for attempt in (
        lambda: sign(secret, ID, TIMESTAMP, BODY),
        lambda: verify(secret, HEADERS, BODY, now=TIMESTAMP),
    ):
        with pytest.raises(SecretInvalid) as caught:
            attempt()
        assert len(secret) < 10 or secret not in str(caught.value)


def test_no_secret_verifies_nothing() -> None:
    with pytest.raises(SecretInvalid):
        verify([], HEADERS, BODY, now=TIMESTAMP)


def test_generated_secrets_have_32_fresh_bytes() -> None:
    first, second = generate_secret(), generate_secret()
    assert len(parse_secret(first)) == 32
    assert first != second


def test_a_dot_in_the_id_cannot_be_signed() -> None:
    with pytest.raises(SignatureInvalid, match="dot"):
        sign(SECRET, "msg.1", TIMESTAMP, BODY)


_VALUES = st.one_of(st.text(), st.none(), st.integers(), st.sampled_from([*HEADERS.values(), f"{TOKEN} {TOKEN}"]))


@given(
    headers=st.dictionaries(st.one_of(st.sampled_from(list(HEADERS)), st.text()), _VALUES),
    body=st.binary(),
)
def test_third_parties_can_raise_nothing_but_signature_invalid(headers: dict[str, object], body: bytes) -> None:
    possible = (None, ID) if body == BODY else (None,)  # what was not signed is never taken
    assert accepted({**HEADERS, **headers}, body) in possible
    assert accepted(headers, body) in possible


def accepted(headers: dict[str, object], body: bytes) -> str | None:
    try:
        return verify(SECRET, headers, body, now=TIMESTAMP)  # type: ignore[arg-type]
    except SignatureInvalid:
        return None


def test_headers_may_begin_with_another_word() -> None:
    key = parse_secret(SECRET)
    svix_headers = {name.replace("webhook", "svix"): value for name, value in HEADERS.items()}
    assert verify_with([key], svix_headers, BODY, prefix="svix", now=TIMESTAMP) == ID
    for headers, prefix in ((svix_headers, "webhook"), (HEADERS, "svix")):
        with pytest.raises(SignatureInvalid, match=f"the header {prefix}-id is missing"):
            verify_with([key], headers, BODY, prefix=prefix, now=TIMESTAMP)
    with pytest.raises(SignatureInvalid, match="svix-timestamp is 301 s old"):
        verify_with([key], svix_headers, BODY, prefix="svix", now=TIMESTAMP + 301)


def test_a_third_partys_secret_may_have_any_length() -> None:
    for length in (0, 16, 75):
        assert decode_secret("whsec_" + base64.b64encode(b"k" * length).decode()) == b"k" * length
    for secret in ("a2tr", "whsec_a2t", "whsec_a_2t"):
        with pytest.raises(SecretInvalid):
            decode_secret(secret)


def test_the_webhooks_package_gives_the_same_functions() -> None:
    assert (effects_webhooks.sign, effects_webhooks.verify) == (sign, verify)
    assert effects_webhooks.generate_secret is generate_secret
    assert effects_webhooks.SignatureInvalid is SignatureInvalid
    assert effects_webhooks.SecretInvalid is SecretInvalid
