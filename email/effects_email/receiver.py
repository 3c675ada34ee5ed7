"""The endpoint that providers send their events to: bounces, complaints, deliveries.

    app = asgi_app("resend", secrets=["whsec_…"])          # Resend signs, by Standard Webhooks
    app = asgi_app("postmark", secrets=["a long password"])  # https://effects:PASSWORD@shop.example/postmark

Postmark signs nothing. What it offers is a user and a password in the URL, which it sends as `Authorization: Basic`;
whoever has them can make up events, so the URL is a secret, and https is a must.

Each event is taken once, however often it is sent. What follows from it: `effects_email.events`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from effects import ConfigurationError, Effects, StoreUnavailable
from effects.extend import app_of, web_apps
from effects_email import events
from effects_email.event_parsers import NotAnEvent, Reading, read_postmark, read_resend
from effects_email.signature import knows_password, passwords, signed_id, signing_keys

ProviderName: TypeAlias = Literal["resend", "postmark"]
_METHODS = ("POST",)
_RETRY_SECONDS = 60
_log = logging.getLogger("effects.email.receiver")

# The id of a request that is the provider's, else None.
_Check: TypeAlias = Callable[[Mapping[str, str], bytes], str | None]


class EventReceiver:
    """Takes the requests of one provider.

    Args:
        secrets: of `resend`: `whsec_…`; of `postmark`: passwords of 16 characters or more. Several while one is
            replaced.
        effects: default the process's, when the first request comes.

    Raises:
        ConfigurationError: no such provider, or a secret that cannot be.
    """

    def __init__(self, provider: ProviderName, *, secrets: Iterable[str] | str, effects: Effects | None = None) -> None:
        secret_texts = [secrets] if isinstance(secrets, str) else list(secrets)
        self._read: Reading
        self._check: _Check
        if provider == "resend":
            keys = signing_keys(secret_texts)
            self._read, self._check = read_resend, lambda headers, body: signed_id(keys, headers, body)
        elif provider == "postmark":
            hashes = passwords(secret_texts)
            self._read = read_postmark
            self._check = lambda headers, body: "" if knows_password(hashes, headers) else None
        else:
            raise ConfigurationError(f"events of {provider!r} cannot be read; give resend or postmark")
        self._provider = provider
        self._effects = effects

    def take(self, headers: Mapping[str, str], body: bytes) -> int:
        """The status to answer: 204 taken, now or before, or of no interest; 401 not verified; 400 not in the
        provider's form; 503 the database is unavailable; 500 unexpected. The last two make the provider repeat.

        Args:
            headers: the request's, names in lower case.
            body: the received bytes.
        """
        provider_event_id = self._check(headers, body)
        if provider_event_id is None:
            _log.warning("email.event_refused", extra={"provider": self._provider})
            return 401
        try:
            event = self._read(provider_event_id, _document(body))
            if event is not None:
                events.take(app_of(self._effects), event)
        except NotAnEvent:
            return 400
        except StoreUnavailable:
            return 503
        except Exception as error:
            _log.error("email.event_failed", extra={"provider": self._provider, "error": type(error).__name__})
            return 500
        return 204

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


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise NotAnEvent from None
    if not isinstance(document, dict):
        raise NotAnEvent
    return document
