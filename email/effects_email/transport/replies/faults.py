"""From an exception on the wire to the code of a fault. The stage, which our own driver knows, decides the rest.

    SMTPServerDisconnected, ConnectionError, other OSError   closed
    TimeoutError                                             timeout
    socket.gaierror, socket.herror                           dns_failed
    ssl.SSLCertVerificationError                             tls_unverified
    other ssl.SSLError                                       tls_failed
    SMTPNotSupportedError                                    not_offered
    Garbage, other SMTPException, ValueError                 garbage
    anything else                                            other

smtplib's SMTPResponseException and its kin carry a reply; it is classified as one.
"""

from __future__ import annotations

import os
import smtplib
import socket
import ssl
from typing import Literal, TypeAlias, get_args

FaultCode: TypeAlias = Literal[
    "closed", "timeout", "dns_failed", "tls_unverified", "tls_failed", "not_offered", "garbage", "other"
]
FAULT_CODES: tuple[FaultCode, ...] = get_args(FaultCode)


class Garbage(smtplib.SMTPException):
    """What came is no SMTP reply, or more than one may be."""


_BRANCHES: tuple[tuple[type[BaseException], FaultCode], ...] = (  # the first that fits
    (ssl.SSLCertVerificationError, "tls_unverified"),
    (ssl.SSLEOFError, "closed"),
    (ssl.SSLZeroReturnError, "closed"),
    (TimeoutError, "timeout"),
    (ssl.SSLError, "tls_failed"),
    (socket.gaierror, "dns_failed"),
    (socket.herror, "dns_failed"),
    (smtplib.SMTPServerDisconnected, "closed"),
    (smtplib.SMTPNotSupportedError, "not_offered"),
    (smtplib.SMTPException, "garbage"),
    (OSError, "closed"),
    (ValueError, "garbage"),
)


def system_reason(error: BaseException) -> str | None:
    """What the operating system, the resolver or the TLS library says of it; None if it says nothing that may be shown.

    Never the text of a reply: only words that no peer and no message can put there.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message or None
    if isinstance(error, ssl.SSLError):
        return (error.reason or "").replace("_", " ").lower() or None
    if isinstance(error, smtplib.SMTPException):
        return None
    if isinstance(error, socket.gaierror | socket.herror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return "timed out" if isinstance(error, TimeoutError) else None


def fault_of(error: BaseException) -> FaultCode:
    """The one branch that an exception lands on."""
    return next((code for kind, code in _BRANCHES if isinstance(error, kind)), "other")
