"""The job type `webhook.deliver`: one event to one endpoint."""

from __future__ import annotations

import functools
import logging
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
from sqlalchemy import Connection

from effects import signing
from effects.errors import KeyUnavailable
from effects.job import Job
from effects.job_type import Attempt, JobType, Placement
from effects.logs import Seldom
from effects.outcome import Cancelled, Done, Outcome, Pause, Refused, Snooze
from effects.retry import RetryPolicy
from effects_webhooks import headers, health
from effects_webhooks.budgets import FULL, SHORT, Overrides
from effects_webhooks.classify import Terms, classify
from effects_webhooks.compose import WebhookCompose
from effects_webhooks.endpoints import limit_key
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.fan_out import WebhookFanOut
from effects_webhooks.guard import Private, check_url, opened
from effects_webhooks.network import GuardedBackend
from effects_webhooks.sealed import open_headers, open_secret
from effects_webhooks.tables import events as table
from effects_webhooks.tables.ledger import DeliveryLedger
from effects_webhooks.tables.retention import prune_events
from effects_webhooks.transport import DEADLINE_SECONDS, Transports

if TYPE_CHECKING:
    from effects.app import Effects

RECHECK_SECONDS = 60.0  # while our own configuration is at fault
_MARGIN_SECONDS = 1.0  # the transport ends before the attempt's time limit does
_CACHED_KEYS_MAX = 10_000
_CACHED_URLS_MAX = 10_000
_log = logging.getLogger("effects.webhooks")


class DeliverPayload(msgspec.Struct, frozen=True):
    """Ids only: URL, status and secrets are read when the request is sent."""

    event_id: str
    endpoint_id: str


class Addressee(msgspec.Struct, frozen=True):
    """An endpoint as it is now. Its secrets, newest first, and its headers are still sealed."""

    url: str
    active: bool
    secrets: Sequence[tuple[str, bytes]]
    profile: str
    overrides: Overrides
    headers: bytes | None
    failing: bool


class Loaded(msgspec.Struct, frozen=True):
    """What one delivery needs."""

    body: bytes
    addressee: Addressee
    earlier: Sequence[str]  # the codes of the tries before this one

    @property
    def url(self) -> str:
        """Where it goes; what tests of apps look at (`effects.testing`)."""
        return self.addressee.url


class WebhookDelivery(JobType[DeliverPayload]):
    """Sends one event to one endpoint, signed by Standard Webhooks 1.0.0.

    Args:
        app: the Effects whose database, keys and settings it uses.
        retry: of failures with the full budget. Default 10 tries, after 5 s, 5 min, 30 min, 2, 5, 10, 14, 20 and
            24 h, for at most 5 days. Which failure has which budget is in `effects_webhooks.budgets`.
        short: of those with the short one. Default 5 tries, after 1 min, 10 min, 1 h and 6 h.
        deadline_seconds: limit of the whole exchange, from the name's resolution to the answer's last byte. Default 15.
        ssl_context: instead of the verifying one that all share; for a private certificate authority.

    A crash between request and record repeats the request with the same `webhook-id` and the same bytes.
    """

    name = "webhook.deliver"
    payload = DeliverPayload
    queue = "webhooks"
    kept_share = 0.3  # of the threads, for partners that answer, however many do not
    time_limit_seconds = 20.0
    on_unknown = "repeat"

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
        self._transports = Transports(GuardedBackend(allow_private=opened(app)), ssl_context=ssl_context)
        self._vetted = functools.lru_cache(_CACHED_URLS_MAX)(functools.partial(_vetted, allow_private=opened(app)))
        self._keys: dict[str, bytes] = {}
        self._waiting = Seldom(_log, "webhook.waiting")  # a fault of our own configuration
        self._user_agent = f"effects/{version('effects')}"

    def place(self, payload: DeliverPayload) -> Placement:
        return Placement(limit_key=limit_key(payload.endpoint_id))

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, DeliverPayload]]) -> Mapping[int, Loaded]:
        """Bodies, endpoints and secrets of the whole batch in three queries, and the earlier tries of those that had
        any in a fourth. A job whose rows are gone is left out.
        """
        store = self._app.store
        bodies = table.bodies(store, connection, {payload.event_id for _, payload in jobs})
        addressees = self._addressees(connection, {payload.endpoint_id for _, payload in jobs})
        earlier = table.earlier_codes(store, connection, [job.id for job, _ in jobs if job.attempts > 1])
        loaded = {}
        for job, payload in jobs:
            body, addressee = bodies.get(payload.event_id), addressees.get(payload.endpoint_id)
            if body is not None and addressee is not None:
                loaded[job.id] = Loaded(body, addressee, earlier.get(job.id, ()))
        return loaded

    def _addressees(self, connection: Connection, endpoint_ids: set[str]) -> dict[str, Addressee]:
        secrets: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
        for row in table.secrets(self._app.store, connection, endpoint_ids):
            secrets[row.endpoint_id].append((row.id, bytes(row.sealed)))
        return {
            row.id: Addressee(
                row.url, row.status == "active", secrets[row.id], row.profile,
                msgspec.json.decode(row.overrides, type=dict[str, str]), row.headers, bool(row.failing),
            )
            for row in table.addresses(self._app.store, connection, endpoint_ids)
        }  # fmt: skip

    def perform(self, payload: DeliverPayload, attempt: Attempt) -> Outcome:
        loaded: Loaded | None = attempt.loaded
        if loaded is None:
            return Refused("the event or its endpoint is no longer stored", code="not_found")
        addressee = loaded.addressee
        if not addressee.active:
            return Cancelled("the endpoint is disabled")
        if attempt.cancel_requested:
            return Cancelled("cancelled by request")
        try:
            keys = [self._key(payload.endpoint_id, *secret) for secret in addressee.secrets]
            own = self._own_headers(payload.endpoint_id, addressee.headers)
        except KeyUnavailable as error:
            self._waiting.say(str(error))
            return Snooze(RECHECK_SECONDS, str(error), ages=False)  # this worker's fault: the others go on
        if not keys:
            reason = f"endpoint {payload.endpoint_id} has no secret to sign with"
            self._waiting.say(reason)
            return Pause(RECHECK_SECONDS, reason, code="no_secret")
        try:
            host = self._vetted(addressee.url)  # again: the settings may be others than those it was added under
        except EndpointInvalid as error:
            return Refused(
                str(error), code="blocked_address", detail={"sent": "not_sent", "host": _host(addressee.url)}
            )
        seconds = min(self._deadline_seconds, attempt.remaining_seconds() - _MARGIN_SECONDS)
        sent = {**own, **self._headers(payload.event_id, loaded.body, keys)}
        exchange = self._transports.post(addressee.url, sent, loaded.body, seconds=seconds)
        terms = Terms(addressee.profile, addressee.overrides, loaded.earlier, self.retry, self._short)
        outcome = classify(exchange, host=host, terms=terms)
        if addressee.failing and isinstance(outcome, Done):
            outcome = Done(detail={**(outcome.detail or {}), health.RECOVERED: True})
        if isinstance(outcome, Pause):
            self._waiting.say(outcome.reason)
        return outcome

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """Events older than that all of whose deliveries are gone; from then on an event's key may be used anew."""
        taken, cursor = 0, None
        while go_on():
            count, cursor = prune_events(self._app.store, cursor, keep_seconds=keep_seconds, dry_run=dry_run)
            taken += count
            if cursor is None:
                break
        return taken

    def _own_headers(self, endpoint_id: str, sealed: bytes | None) -> dict[str, str]:
        """The partner's headers."""
        return headers.unpack(open_headers(self._app, endpoint_id, sealed)) if sealed is not None else {}

    def _headers(self, event_id: str, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
        """Signed anew at each try: verifiers refuse what is older than 5 minutes."""
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


def job_types(app: Effects) -> list[JobType[Any]]:
    """The entry point `effects.job_types`."""
    return [WebhookDelivery(app), WebhookFanOut(app), WebhookCompose(app)]
