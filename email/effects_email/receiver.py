"""The endpoints for what comes in: events of providers, and reports that a mail server posts.

    app = asgi_app("resend", secrets=["whsec_…"])          # Resend signs, by Standard Webhooks
    app = asgi_app("postmark", secrets=["a long password"])  # https://effects:PASSWORD@shop.example/postmark
    app = asgi_app("sendgrid", secrets=["MFkwEwYHKoZI…"])  # the verification key of its signed event webhook
    app = asgi_app("mailgun", secrets=["key-…"])           # its HTTP webhook signing key
    app = asgi_app("ses", secrets=["arn:aws:sns:…"])       # the SNS topics of Amazon SES

Postmark signs nothing. What it offers is a user and a password in the URL, which it sends as `Authorization: Basic`;
whoever has them can make up events, so the URL is a secret, and https is a must.

Each event is taken once, however often it is sent. What follows from it: `effects_email.events`.

A mail server posts each report as it came, `message/rfc822` in the body:

    app = bounces_asgi_app(secrets=["a password of 16 characters or more"])
    # https://effects:PASSWORD@shop.example/bounces/

From Postfix, by a pipe in `aliases`, which has a shell:

    bounces: "|head -c 1000000 | curl -sf --data-binary @- https://effects:PASSWORD@shop.example/bounces/ || exit 75"

Exit code 75 has the mail server keep the report and try again; after any other it would give it up. Of a report that
returns large files the beginning is enough, and more than 1 MiB is refused. Nothing but the password shows who posts,
though a report needs its own proof; see `effects_email.returned.taking`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from effects import ConfigurationError, Effects, StoreUnavailable
from effects.extend.jobs import app_of
from effects.extend.process import own_logger
from effects.extend.receivers import web_apps
from effects_email import events
from effects_email.events import IncomingEvent
from effects_email.providers.event_parsers import NotAnEvent, read_mailgun, read_postmark, read_resend, read_sendgrid
from effects_email.providers.ses import (
    CertificateUnavailable,
    Fetch,
    SnsMessage,
    SnsVerifier,
    document_of,
    fetch_over_https,
    read_ses,
)
from effects_email.providers.signatures import (
    check_mailgun,
    check_sendgrid,
    hmac_keys,
    knows_password,
    passwords,
    public_keys,
    signed_id,
    signing_keys,
)
from effects_email.returned.taking import take_report

ProviderName: TypeAlias = Literal["resend", "postmark", "sendgrid", "mailgun", "ses"]
_TOKEN_SIGNED = ("mailgun",)  # whose signature is not of the event
_METHODS = ("POST",)
_RETRY_SECONDS = 60
_log = own_logger("effects.email.receiver")

# The id of a request that is the provider's, else None.
_Check: TypeAlias = Callable[[Mapping[str, str], bytes], str | None]
_Reading: TypeAlias = Callable[[str, object], Sequence[IncomingEvent]]
_Source: TypeAlias = Callable[[Sequence[str]], tuple[_Check, _Reading]]
_bounces_log = own_logger("effects.email.bounces")


class SubscriptionUnconfirmed(Exception):
    """SNS could not be told that its subscription is wanted; it asks again."""


class EventReceiver:
    """Takes the requests of one provider.

    Args:
        secrets: of `resend`: `whsec_…`; of `postmark`: passwords of 16 characters or more; of `sendgrid`: the
            verification key; of `mailgun`: the HTTP webhook signing key; of `ses`: the ARNs of
            the SNS topics. Several while one is replaced.
        effects: default the process's, when the first request comes.
        fetch: of `ses`: gets a certificate by its checked address, and confirms a subscription. Default a GET over
            https without redirects and proxies.

    Raises:
        ConfigurationError: no such provider, or a secret that cannot be.
    """

    def __init__(
        self,
        provider: ProviderName,
        *,
        secrets: Iterable[str] | str,
        effects: Effects | None = None,
        fetch: Fetch = fetch_over_https,
    ) -> None:
        sources: Mapping[str, _Source] = {**_SOURCES, "ses": partial(_ses, fetch=fetch)}
        source = sources.get(provider)
        if source is None:
            raise ConfigurationError(f"events of {provider!r} cannot be read; give one of {', '.join(sources)}")
        self._check, self._read = source([secrets] if isinstance(secrets, str) else list(secrets))
        self._provider = provider
        self._effects = effects

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """The status to answer: 204 taken, now or before, or of no interest; 401 not verified, or signed for another
        request; 400 not in the provider's form; 503 the database or a certificate is unavailable; 500 unexpected. The
        last two make the provider repeat. The events of a request are taken in one transaction.

        Args:
            headers: the request's, names in lower case.
            body: the received bytes.
        """
        try:
            provider_event_id = self._check(headers, body)
            if provider_event_id is None:
                return self._refused("not verified")
            request = _signed_request(provider_event_id, body) if self._provider in _TOKEN_SIGNED else None
            events.take(app_of(self._effects), self._read(provider_event_id, _document(body)), request=request)
        except events.RequestForged:
            return self._refused("the token of another request")
        except NotAnEvent:
            return 400
        except (CertificateUnavailable, StoreUnavailable):
            return 503
        except Exception as error:
            _log.error("email.event_failed", extra={"provider": self._provider, "error": type(error).__name__})
            return 500
        return 204

    def _refused(self, why: str) -> int:
        _log.warning("email.event_refused", extra={"provider": self._provider, "why": why})
        return 401

    def answer(self, request: web_apps.Request) -> web_apps.Answer:
        """For `web_apps.asgi_app` and `web_apps.wsgi_app`."""
        status = self.take(request.headers, request.body)
        further = {401: {"www-authenticate": 'Basic realm="events"'}, 503: {"retry-after": str(_RETRY_SECONDS)}}
        return web_apps.Answer(status, headers=further.get(status, {}))


def asgi_app(
    provider: ProviderName, *, secrets: Iterable[str] | str, effects: Effects | None = None
) -> web_apps.AsgiApp:
    """An ASGI app that takes one provider's events at every path: run it, or mount it.

    Args and Raises: as `EventReceiver`. At most 1 MiB of a body is read; more is answered 413, another method 405.
    """
    return web_apps.asgi_app(EventReceiver(provider, secrets=secrets, effects=effects).answer, methods=_METHODS)


def wsgi_app(
    provider: ProviderName, *, secrets: Iterable[str] | str, effects: Effects | None = None
) -> web_apps.WsgiApp:
    """The same as a WSGI app (PEP 3333)."""
    return web_apps.wsgi_app(EventReceiver(provider, secrets=secrets, effects=effects).answer, methods=_METHODS)


def _signed_request(signed: str, body: bytes) -> events.SignedRequest:
    return events.SignedRequest(hashlib.sha256(signed.encode()).hexdigest(), hashlib.sha256(body).hexdigest())


def _document(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAnEvent from None


# -- the providers -----------------------------------------------------------------------------------------------------


def _single(read: Callable[[str, Mapping[str, Any]], IncomingEvent | None]) -> _Reading:
    """Of a provider whose requests hold one event each, as an object."""

    def read_one(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
        if not isinstance(document, dict):
            raise NotAnEvent
        event = read(provider_event_id, document)
        return [] if event is None else [event]

    return read_one


def _resend(secrets: Sequence[str]) -> tuple[_Check, _Reading]:
    return partial(signed_id, signing_keys(secrets)), _single(read_resend)


def _postmark(secrets: Sequence[str]) -> tuple[_Check, _Reading]:
    hashes = passwords(secrets)
    return lambda headers, body: "" if knows_password(hashes, headers) else None, _single(read_postmark)


def _sendgrid(secrets: Sequence[str]) -> tuple[_Check, _Reading]:
    return partial(check_sendgrid, public_keys(secrets)), read_sendgrid


def _mailgun(secrets: Sequence[str]) -> tuple[_Check, _Reading]:
    return partial(check_mailgun, hmac_keys(secrets)), read_mailgun


def _ses(secrets: Sequence[str], *, fetch: Fetch) -> tuple[_Check, _Reading]:
    """SNS signs for a topic: a request is read where it is checked, and its id is that of SNS."""
    verifier = SnsVerifier(secrets, fetch=fetch)

    def check(headers: Mapping[str, str], body: bytes) -> str | None:
        message = verifier.check(body)
        return None if message is None else message.message_id

    def read(provider_event_id: str, document: object) -> Sequence[IncomingEvent]:
        message = msgspec.convert(document, SnsMessage)
        if message.type == "SubscriptionConfirmation" and not verifier.confirm(message):
            raise SubscriptionUnconfirmed
        return read_ses(provider_event_id, document_of(message.message)) if message.type == "Notification" else []

    return check, read


_SOURCES: Mapping[str, _Source] = {
    "resend": _resend, "postmark": _postmark, "sendgrid": _sendgrid, "mailgun": _mailgun,
}  # fmt: skip


class ReportReceiver:
    """Takes reports by HTTP.

    Args:
        secrets: passwords of 16 characters or more; several while one is replaced.
        effects: default the process's, when the first request comes.

    Raises:
        ConfigurationError: a password is missing or too short.
    """

    def __init__(self, *, secrets: Iterable[str] | str, effects: Effects | None = None) -> None:
        self._hashes = passwords([secrets] if isinstance(secrets, str) else secrets)
        self._effects = effects

    def answer(self, request: web_apps.Request) -> web_apps.Answer:
        """204 taken, now or before, or of no interest; 401 the password is missing or wrong; 503 the database is
        unavailable: post again.
        """
        if not knows_password(self._hashes, request.headers):
            _bounces_log.warning("email.report_refused")
            return web_apps.Answer(401, headers={"www-authenticate": 'Basic realm="reports"'})
        try:
            take_report(request.body, effects=app_of(self._effects))
        except StoreUnavailable:
            return web_apps.Answer(503, headers={"retry-after": str(_RETRY_SECONDS)})
        return web_apps.Answer(204)


def bounces_asgi_app(*, secrets: Iterable[str] | str, effects: Effects | None = None) -> web_apps.AsgiApp:
    """An ASGI app that takes reports at every path: run it, or mount it.

    Args and Raises: as `ReportReceiver`. At most 1 MiB of a body is read; more is answered 413, another method 405.
    """
    return web_apps.asgi_app(ReportReceiver(secrets=secrets, effects=effects).answer, methods=_METHODS)


def bounces_wsgi_app(*, secrets: Iterable[str] | str, effects: Effects | None = None) -> web_apps.WsgiApp:
    """The same as a WSGI app (PEP 3333)."""
    return web_apps.wsgi_app(ReportReceiver(secrets=secrets, effects=effects).answer, methods=_METHODS)
