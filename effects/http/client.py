"""What requests have in common: the verifying context, their common headers, a code for each fault.

What follows from a response or a fault is for the caller to decide.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import httpcore

from effects.http.exchange import Exchange
from effects.http.messages import HttpRequest
from effects.http.stream import Unasked

if TYPE_CHECKING:
    import httpx

Fault: TypeAlias = Literal[
    "bad_url", "connect_failed", "connect_timeout", "tls_failed", "tls_timeout", "no_answer", "answer_timeout",
    "bad_answer",
]  # fmt: skip

KEEPALIVE_SECONDS = 4.0  # many servers close after 5: a request must not meet a connection that is going
WIRE_ERRORS = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError)

_REASONS: Mapping[Fault, str] = {
    "bad_url": "the URL cannot be requested",
    "connect_failed": "no connection to the endpoint",
    "connect_timeout": "no connection within the time limit",
    "tls_failed": "no connection to the endpoint",
    "tls_timeout": "no connection within the time limit",
    "no_answer": "the request left and the connection ended without an answer",
    "answer_timeout": "the request left and no answer came in time",
    "bad_answer": "the request left and its answer broke off or is not HTTP",
}


@functools.cache
def verifying_context(*, trust_env: bool) -> ssl.SSLContext:
    """The context that connections share: TLS 1.2 or later, verified. Building one costs tens of milliseconds.

    Args:
        trust_env: whether SSL_CERT_FILE and SSL_CERT_DIR of the environment replace the certificates that httpx trusts.
    """
    import httpx  # noqa: PLC0415 - takes a while, and many processes make no requests

    context = httpx.create_ssl_context(trust_env=trust_env)
    context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_2)  # overrides the system's default
    context.set_alpn_protocols(["http/1.1"])
    return context


def request_to(host: str, method: str, target: bytes, headers: Mapping[str, str], body: bytes) -> HttpRequest:
    """The request with the headers that each one has."""
    own = [("Host", host), ("Content-Length", str(len(body)))]
    return HttpRequest(method, target, [*own, *headers.items()], body)


def address_of(origin: httpx.URL) -> tuple[str, int]:
    """The host, as names are looked up, and the port."""
    return origin.raw_host.decode("ascii"), origin.port or (443 if origin.scheme == "https" else 80)


def record_fault(exchange: Exchange, error: Exception) -> None:
    """Give a fault its code, by its class and how far the request came."""
    if isinstance(error, Unasked) and not exchange.wrote:
        exchange.fail("connect_failed", "the endpoint sent data before the request; nothing was sent")
    else:
        fault = _fault(exchange, error)
        exchange.fail(fault, f"{_REASONS[fault]}{_system_reason(error) if fault == 'connect_failed' else ''}")


def _system_reason(error: Exception) -> str:
    """`: Connection refused`, in the words of the operating system, where it gave a number."""
    cause = error.__cause__
    return f": {os.strerror(cause.errno)}" if isinstance(cause, OSError) and cause.errno else ""


def _fault(exchange: Exchange, error: Exception) -> Fault:
    timed_out = isinstance(error, httpcore.TimeoutException)
    if not exchange.wrote:
        if isinstance(error, httpcore.LocalProtocolError):
            return "bad_url"
        if exchange.phase == "tls":
            return "tls_timeout" if timed_out else "tls_failed"
        return "connect_timeout" if timed_out else "connect_failed"
    if timed_out:
        return "answer_timeout"
    # A connection that ends silently is a protocol error, too.
    return "bad_answer" if isinstance(error, httpcore.ProtocolError) and exchange.bytes_read else "no_answer"
