"""The job type `webhook.deliver`: one event to one endpoint."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection

from effects import (
    Attempt,
    Cancelled,
    Job,
    JobType,
    KeyUnavailable,
    Outcome,
    Pause,
    Refused,
    RetryPolicy,
    Routing,
)
from effects.extend import VERSION, Explanation, Private, RateLimitedLogger, lazy, signing
from effects_webhooks import headers, health
from effects_webhooks.classify import RetryContext, classify, control_of
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.explanation import explanation_of
from effects_webhooks.loading import LoadedDelivery, load_deliveries
from effects_webhooks.retention import prune_events
from effects_webhooks.retry_rules import FULL, SHORT
from effects_webhooks.routing import endpoint_of, limit_key
from effects_webhooks.sealed import open_headers, open_secret
from effects_webhooks.state import state_of
from effects_webhooks.tables.endpoint_rows import endpoints
from effects_webhooks.tables.ledger import DeliveryLedger, DeliveryRecord
from effects_webhooks.transport.exchange import DEADLINE_SECONDS
from effects_webhooks.transport.guard import check_url
from effects_webhooks.transport.windows import Windows

if TYPE_CHECKING:
    import httpx

    from effects import Effects
    from effects_webhooks.transport import http
else:
    httpx = lazy.module("httpx")
    http = lazy.module("effects_webhooks.transport.http")

RECHECK_SECONDS = 60.0  # while our own configuration is at fault
_MARGIN_SECONDS = 1.0  # the transport ends before the attempt's time limit does
_CACHED_KEYS_MAX = 10_000
_CACHED_URLS_MAX = 10_000
_log = logging.getLogger("effects.webhooks")


class DeliverPayload(msgspec.Struct, frozen=True):
    """Ids only: URL, status and secrets are read when the request is sent."""

    event_id: str
    endpoint_id: str


class WebhookDelivery(JobType[DeliverPayload]):
    """Sends one event to one endpoint, signed by Standard Webhooks 1.0.0.

    Args:
        app: the Effects whose database, keys and settings it uses.
        retry: of failures of the full retry class. Default 10 tries, after 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and
            24 h, for at most 5 days. Which failure has which class is in `effects_webhooks.retry_rules`.
        short: of those with the short one. Default 5 tries, after 1 min, 10 min, 1 h and 6 h.
        deadline_seconds: limit of the whole exchange, from the name's resolution to the answer's last byte. Default 15.
        ssl_context: instead of the verifying one that all share; for a private certificate authority.

    A crash between request and record repeats the request with the same `webhook-id` and the same bytes.
    """

    name = "webhook.deliver"
    payload = DeliverPayload
    queue = "webhooks"
    reserved_share = 0.7  # of what is in flight, for partners that answer, however many do not
    failing_after_seconds = 1.0
    time_limit_seconds = 20.0
    on_unknown = "repeat"
    captured_in_tests = True

    def __init__(
        self,
        app: Effects,
        *,
        retry: RetryPolicy = FULL,
        short: RetryPolicy = SHORT,
        deadline_seconds: float = DEADLINE_SECONDS,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.retry = retry
        self._short = short
        self.ledger = DeliveryLedger(functools.partial(health.note, app))
        self._app = app
        self._deadline_seconds = deadline_seconds
        self._ssl_context = ssl_context
        self._allow_private = state_of(app).allow_private
        self._opened: WeakKeyDictionary[asyncio.AbstractEventLoop, http.WebhookTransports] = WeakKeyDictionary()
        self._vetted = functools.lru_cache(_CACHED_URLS_MAX)(
            functools.partial(_vetted, allow_private=self._allow_private)
        )
        self._keys: dict[str, bytes] = {}
        self._windows = Windows()
        self._waiting = RateLimitedLogger(_log, "webhook.waiting")  # a fault of our own configuration
        self._user_agent = f"effects/{VERSION}"

    def route(self, payload: DeliverPayload) -> Routing:
        return Routing(limit_key=limit_key(payload.endpoint_id))

    def max_in_flight(self, limit_key: str) -> int | None:
        endpoint_id = endpoint_of(limit_key)
        return None if endpoint_id is None else self._windows.size(endpoint_id)

    def limit_keys_of(self, connection: Connection, tenant: str) -> list[str]:
        return [limit_key(row.id) for row in endpoints(self._app.store, connection, tenant)]

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, DeliverPayload]]) -> Mapping[int, LoadedDelivery]:
        return load_deliveries(
            self._app, connection, [(job, payload.event_id, payload.endpoint_id) for job, payload in jobs]
        )

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        """By the table of the default profile; an endpoint may have its own."""
        return explanation_of(error_code, detail)

    async def perform(self, payload: DeliverPayload, attempt: Attempt) -> Outcome:
        loaded: LoadedDelivery | None = attempt.loaded
        if loaded is None:
            return Refused("the event or its endpoint is no longer stored", code="not_found")
        addressee = loaded.addressee
        if loaded.tenant != addressee.tenant:  # a row written by hand: our own calls pair within one tenant
            return Refused("the event and the endpoint belong to different tenants", code="tenant_mismatch")
        if not addressee.active:
            return Cancelled("the endpoint is disabled")
        if attempt.cancel_requested:
            return Cancelled("cancelled by request")
        try:
            keys = [self._key(payload.endpoint_id, *secret) for secret in addressee.secrets]
            own = self._own_headers(payload.endpoint_id, addressee.headers)
        except KeyUnavailable as error:
            return self.fate_of_sealed(error)
        if not keys:
            reason = f"endpoint {payload.endpoint_id} has no secret to sign with"
            self._waiting.error(reason)
            return Pause(RECHECK_SECONDS, reason, code="no_secret")
        try:
            host = self._vetted(addressee.url)  # again: the settings may be others than those it was added under
        except EndpointInvalid as error:
            attempt.private = DeliveryRecord(payload.event_id, payload.endpoint_id, was_failing=addressee.failing)
            return Refused(
                str(error), code="blocked_address", detail={"sent": "not_sent", "host": _host(addressee.url)}
            )
        seconds = min(self._deadline_seconds, attempt.remaining_seconds() - _MARGIN_SECONDS)
        sent = {**own, **self._headers(payload.event_id, loaded.body, keys)}
        with self._windows.use(payload.endpoint_id) as use:
            exchange = await self._transports.post(addressee.url, sent, loaded.body, seconds=seconds)
            use.ended(exchange)
        context = RetryContext(addressee.profile, addressee.overrides, loaded.earlier, self.retry, self._short)
        outcome = classify(exchange, host=host, context=context)
        attempt.private = DeliveryRecord(
            payload.event_id, payload.endpoint_id, exchange.status,
            disable_requested=control_of(exchange) == "disable", was_failing=addressee.failing,
        )  # fmt: skip
        if isinstance(outcome, Pause):
            self._waiting.error(outcome.reason)
        return outcome

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """Events older than that all of whose deliveries are gone; from then on an event's key may be used again."""
        return prune_events(self._app.store, keep_seconds=keep_seconds, dry_run=dry_run, go_on=go_on)

    @property
    def _transports(self) -> http.WebhookTransports:
        """Of this event loop; made for its first request."""
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            from effects.extend import GuardedNetwork  # noqa: PLC0415 - its client takes a while to load

            guarded = GuardedNetwork(allow_private=self._allow_private)
            opened = self._opened[loop] = http.WebhookTransports(guarded, ssl_context=self._ssl_context)
        return opened

    def _own_headers(self, endpoint_id: str, sealed: bytes | None) -> dict[str, str]:
        """The partner's headers."""
        return headers.unpack(open_headers(self._app, endpoint_id, sealed)) if sealed is not None else {}

    def _headers(self, event_id: str, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
        """Signed again at each try: verifiers refuse signatures older than 5 minutes."""
        timestamp = int(time.time())
        return {
            "content-type": "application/json",
            "user-agent": self._user_agent,
            "accept-encoding": "identity",  # a compressed answer could be a bomb
            signing.ID_HEADER: event_id,
            signing.TIMESTAMP_HEADER: str(timestamp),
            signing.SIGNATURE_HEADER: " ".join(signing.sign_with(key, event_id, timestamp, body) for key in keys),
        }

    def _key(self, endpoint_id: str, secret_id: str, sealed: bytes) -> bytes:
        """The opened secret; a secret's row never changes its value, so it is opened once a process."""
        key = self._keys.get(secret_id)
        if key is None:
            if len(self._keys) >= _CACHED_KEYS_MAX:
                self._keys.clear()
            key = open_secret(self._app, endpoint_id, secret_id, sealed)
            self._keys[secret_id] = key
        return key


def _vetted(url: str, *, allow_private: Private) -> str:
    """The host of a URL that may be requested.

    Raises:
        EndpointInvalid: it may not.
    """
    return httpx.URL(check_url(url, allow_private=allow_private)).host


def _host(url: str) -> str:
    try:
        return httpx.URL(url).host
    except (httpx.InvalidURL, ValueError):
        return ""
