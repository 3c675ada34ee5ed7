"""Requests to a token service, through the guarded network and under a deadline, and what its answer means.

200 with an access token                             Tokens
200 with a token of another type than Bearer         config: no mail server takes it
400 invalid_grant                                    login_needed: a person must log in again
400 others, 401, 403                                 config: the registration or the URL is wrong
429, 5xx, no answer, an unreadable answer          unavailable: tried again

What is sent are form fields, by the grant (RFC 6749, 7523, 8628).
"""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import time
import uuid
import zlib
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.padding import AsymmetricPadding
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from effects import ConfigurationError
from effects.extend.http import AddressRefused, Exchange, GuardedNetwork, LoopHttpClient
from effects.extend.text import whole_number
from effects_email.oauth.registration import FailureKind, OAuthClient, TokenFailure, Tokens, is_token, read_small

ASSERTION_SECONDS = 600
CLOCK_SECONDS = 60  # that this machine's may be ahead of the service's
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_DEVICE_CODE = "urn:ietf:params:oauth:grant-type:device_code"
SECONDS = 10.0  # for a whole request
BODY_BYTES_MAX = 64 * 1024
LIFETIME_SECONDS = 3600.0  # where the service does not say (RFC 6749, section 5.1), or says nonsense
LIFETIME_SECONDS_MAX = 30 * 86_400.0
CLOCK_SECONDS_MAX = 300.0  # that services let a signed assertion be off
_UNVERIFIED = "certificate_unverified"
_UNREADABLE = {
    "whole": " without an access token", "cut": f" with more than {BODY_BYTES_MAX} bytes",
    "broken": " with a response that breaks off",
}  # fmt: skip
_PSS = padding.PSS(mgf=padding.MGF1(SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)  # RFC 7518, section 3.5
_TOKEN_TYPE = re.compile(r"[A-Za-z_]{1,12}")  # no token is as short
_PENDING = ("authorization_pending", "slow_down")
# RFC 6749, section 5.2, and RFC 8628, section 3.5: other codes are the service's own and may hold anything.
_CODES = frozenset({
    "invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type",
    "invalid_scope", "access_denied", "expired_token", "interaction_required", "consent_required", *_PENDING,
    "authorization_declined", "bad_verification_code",  # Microsoft's
})  # fmt: skip


class ServiceAccount(msgspec.Struct, frozen=True):
    """What counts of the JSON file of a Google service account."""

    client_email: str
    private_key: str
    private_key_id: str = ""


def renewal(client: OAuthClient, refresh_token: str | None) -> dict[str, str]:
    """Ask for an access token.

    Raises:
        ConfigurationError: a key file cannot be read or used; names the file.
    """
    if client.grant == "service_account":
        return {"grant_type": _JWT_BEARER, "assertion": _account_assertion(client)}
    if client.grant == "client":
        return {"grant_type": "client_credentials", "scope": client.scope, **_authentication(client)}
    return {"grant_type": "refresh_token", "refresh_token": refresh_token or "", **_authentication(client)}


def device_request(client: OAuthClient) -> dict[str, str]:
    """Ask for a code that a person types at the service (RFC 8628, section 3.1).

    Raises:
        ConfigurationError: as `renewal`.
    """
    return {"scope": client.scope, **_authentication(client)}


def device_token(client: OAuthClient, device_code: str) -> dict[str, str]:
    """Ask whether the person has."""
    return {"grant_type": _DEVICE_CODE, "device_code": device_code, **_authentication(client)}


def check_files(client: OAuthClient) -> None:
    """Read the client's key files once, so that a wrong one is found when a worker starts.

    Raises:
        ConfigurationError: as `renewal`.
    """
    renewal(client, "")


def _authentication(client: OAuthClient) -> dict[str, str]:
    if client.assertion_key is not None and client.assertion_certificate is not None:
        assertion = _client_assertion(client, client.assertion_key, client.assertion_certificate)
        return {
            "client_id": client.client_id, "client_assertion_type": _CLIENT_ASSERTION, "client_assertion": assertion,
        }  # fmt: skip
    secret = {} if client.secret is None else {"client_secret": client.secret}
    return {"client_id": client.client_id, **secret}


def _client_assertion(client: OAuthClient, key_file: str, certificate_file: str) -> str:
    """RFC 7523, section 2.2, as Microsoft asks: by PS256, the certificate named by its SHA-256 thumbprint."""
    try:
        certificate = x509.load_pem_x509_certificate(_bytes_of(key_file=certificate_file))
    except ValueError:
        raise ConfigurationError(f"{certificate_file} holds no certificate in PEM form") from None
    claims = {"iss": client.client_id, "sub": client.client_id, "aud": client.token_url, "jti": uuid.uuid4().hex}
    thumbprint = _encoded(certificate.fingerprint(SHA256()))
    key = _key_of(_bytes_of(key_file=key_file), key_file)
    return _signed(key, {"alg": "PS256", "x5t#S256": thumbprint}, claims, _PSS)


def _account_assertion(client: OAuthClient) -> str:
    """RFC 7523, section 2.1, by RS256, as Google's service accounts that act for a user of their domain."""
    file = client.account_file or ""
    try:
        account = msgspec.json.decode(_bytes_of(key_file=file), type=ServiceAccount)
    except msgspec.MsgspecError:
        raise ConfigurationError(f"{file} is not the JSON file of a service account") from None
    claims = {"iss": account.client_email, "sub": client.user, "scope": client.scope, "aud": client.token_url}
    named = {"kid": account.private_key_id} if account.private_key_id else {}
    key = _key_of(account.private_key.encode(), file)
    return _signed(key, {"alg": "RS256", **named}, claims, padding.PKCS1v15())


def _signed(key: rsa.RSAPrivateKey, header: dict[str, str], claims: dict[str, Any], how: AsymmetricPadding) -> str:
    """A JSON Web Token (RFC 7515), good for nine minutes."""
    issued_at = int(time.time()) - CLOCK_SECONDS
    claims = {**claims, "iat": issued_at, "exp": issued_at + ASSERTION_SECONDS}
    parts = ({"typ": "JWT", **header}, claims)
    text = ".".join(_encoded(msgspec.json.encode(part)) for part in parts)
    return f"{text}.{_encoded(key.sign(text.encode(), how, SHA256()))}"


def _key_of(pem: bytes, file: str) -> rsa.RSAPrivateKey:
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(f"{file} holds no private key in PEM form without a password") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise ConfigurationError(f"{file} holds a private key that is not RSA, which token services ask for")
    return key


def _bytes_of(*, key_file: str) -> bytes:
    try:
        return read_small(key_file)
    except OSError as error:
        raise ConfigurationError(f"{key_file} cannot be read: {error.strerror}") from None


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class DeviceCode(msgspec.Struct, frozen=True):
    """What a person is to type, and where (RFC 8628, section 3.2)."""

    device_code: str
    user_code: str
    address: str
    seconds: float
    interval: float

    def __repr__(self) -> str:
        return f"DeviceCode({self.address!r})"


class _TokenAnswer(msgspec.Struct, frozen=True):
    access_token: str
    refresh_token: str | None = None  # any text: it goes back as it came
    expires_in: Any = None
    token_type: Any = None  # where the service leaves it out, although it must not, Bearer


class _DeviceAnswer(msgspec.Struct, frozen=True):
    device_code: str
    user_code: str
    verification_uri: str = ""
    verification_url: str = ""  # as Google's says
    expires_in: float = 900.0
    interval: float = 5.0


class _ErrorAnswer(msgspec.Struct, frozen=True):
    error: str


def request_tokens(client: OAuthClient, form: dict[str, str], *, seconds: float = SECONDS) -> Tokens | TokenFailure:
    """Ask for tokens. Blocks; never raises for what the service does."""
    exchange = _post(client, client.token_url, form, seconds)
    if isinstance(exchange, TokenFailure):
        return exchange
    answer = _decoded(exchange, _TokenAnswer)
    if exchange.status != 200 or answer is None or not is_token(answer.access_token):
        return _failure(client, exchange)
    if answer.token_type is not None and str(answer.token_type).lower() != "bearer":
        return _other_type(answer.token_type)
    return Tokens(answer.access_token, answer.refresh_token or None, _lifetime(answer.expires_in))


def request_device_code(client: OAuthClient, form: dict[str, str]) -> DeviceCode | TokenFailure:
    """Ask for a code for a person. Blocks, and does not raise, as `request_tokens`."""
    exchange = _post(client, client.device_url, form, SECONDS)
    if isinstance(exchange, TokenFailure):
        return exchange
    answer = _decoded(exchange, _DeviceAnswer)
    address = "" if answer is None else answer.verification_uri or answer.verification_url
    if exchange.status != 200 or answer is None or not (address and answer.user_code):
        return _failure(client, exchange)
    interval = min(max(answer.interval, 1.0), 60.0)
    return DeviceCode(answer.device_code, answer.user_code, address, min(answer.expires_in, 3600.0), interval)


def _post(client: OAuthClient, url: str, form: dict[str, str], seconds: float) -> Exchange | TokenFailure:
    with asyncio.Runner() as runner:
        return runner.run(_request(client, url, form, seconds))


class _TokenExchange(Exchange):
    def handshake_failed(self, refused: ssl.SSLCertVerificationError | None) -> None:
        if refused is not None:
            self.fail(_UNVERIFIED, "its certificate cannot be verified")


async def _request(client: OAuthClient, url: str, form: dict[str, str], seconds: float) -> Exchange | TokenFailure:
    parts = urlsplit(url)
    network = GuardedNetwork(allow_private=client.private_network)
    origin = httpx.URL(f"https://{parts.netloc}")
    http = LoopHttpClient(origin, network.connect, ssl_context=client.tls, idle_max=0)
    exchange = _TokenExchange(seconds, "resolve")
    headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json",
               "accept-encoding": "identity", "user-agent": "effects"}  # fmt: skip
    target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    try:
        await http.send(exchange, "POST", target.encode("ascii"), headers, urlencode(form).encode(),
                        body_bytes_max=BODY_BYTES_MAX)  # fmt: skip
    except AddressRefused:
        reason = "the token service has a private address; ?token_network=private lets it be asked"
        return TokenFailure("config", "oauth_address_refused", reason)
    finally:
        exchange.end()
        http.close()
    return exchange


def _failure(client: OAuthClient, exchange: Exchange) -> TokenFailure:
    status = exchange.status
    if status is None:
        kind: FailureKind = "config" if exchange.failure == _UNVERIFIED else "unavailable"
        reason = (exchange.reason or "no answer").replace("the endpoint", "the token service")
        return TokenFailure(kind, f"oauth_{exchange.failure or 'no_answer'}", f"no token: {reason}")
    answer = _decoded(exchange, _ErrorAnswer)
    word = answer.error if answer is not None and answer.error in _CODES else None
    said = f"HTTP {status}" + (f" {word}" if word else _UNREADABLE[exchange.body_end] if status == 200 else "")
    if status == 429 or status >= 500 or word in _PENDING or (status < 400):
        after = whole_number(exchange.header("retry-after") or "", 5)
        return TokenFailure("unavailable", word or f"oauth_http_{status}", f"the token service answers {said}", after)
    code = f"oauth_{word}" if word else f"oauth_http_{status}"
    if client.signs:
        said += _clock_difference(exchange)
    if word in ("invalid_grant", "interaction_required", "consent_required"):
        return TokenFailure("login_needed", code, f"the token service no longer accepts the login ({said})")
    return TokenFailure("config", code, f"the token service refuses this client ({said})")


def _other_type(token_type: Any) -> TokenFailure:
    """RFC 6749, section 7.1: a token of a type that is not understood must not be used."""
    named = f"{token_type!r} tokens" if _TOKEN_TYPE.fullmatch(str(token_type)) else "tokens of another type"
    reason = f"the token service gives {named}; mail servers take Bearer tokens: mend this client's registration there"
    return TokenFailure("config", "oauth_token_type", reason)


def _clock_difference(exchange: Exchange) -> str:
    """For whoever signs with the time of this machine."""
    try:
        seconds = parsedate_to_datetime(exchange.header("date") or "").timestamp() - time.time()
    except (ValueError, OverflowError):
        return ""
    if abs(seconds) <= CLOCK_SECONDS_MAX:
        return ""
    return f"; this machine's clock is {abs(seconds):.0f} s {'behind' if seconds > 0 else 'ahead of'} the service's"


def _decoded(exchange: Exchange, kind: Any) -> Any:
    try:
        return msgspec.json.decode(_content(exchange.body), type=kind, strict=False)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, zlib.error):
        return None


def _content(body: bytes) -> bytes:
    """Without a byte order mark; and decompressed, as some services send it to those who ask for `identity` too."""
    if body.startswith(b"\x1f\x8b"):
        body = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, BODY_BYTES_MAX)
    return body.removeprefix(b"\xef\xbb\xbf")


def _lifetime(expires_in: Any) -> float:
    """In seconds; of what says nothing, such as 0, the usual one: a server that refuses the token has it renewed."""
    try:
        seconds = float(expires_in)
    except (TypeError, ValueError, OverflowError):
        seconds = 0.0
    return min(seconds, LIFETIME_SECONDS_MAX) if seconds > 0 else LIFETIME_SECONDS
