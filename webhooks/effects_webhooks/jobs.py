"""The job types: `webhook.deliver`, `webhook.fan_out` and `webhook.compose`.

A delivery is one event to one endpoint. The fan-out makes the deliveries of an event that more than 100 unordered
endpoints want. Who can only name a job type and a payload (a finished report, an alert, a schedule, a plain INSERT)
enqueues `webhook.compose`, which requests the event.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec
from sqlalchemy import Connection, Row

from effects import (
    Attempt,
    Cancelled,
    Done,
    EffectsError,
    EnqueueError,
    Job,
    JobStateError,
    JobType,
    KeyUnavailable,
    Outcome,
    Pause,
    Refused,
    RetryPolicy,
    Routing,
    enqueue,
)
from effects.extend.actions import DoctorFinding, Explanation
from effects.extend.http import Private
from effects.extend.jobs import record_existing, record_followers
from effects.extend.process import VERSION, RateLimitedLogger, lazy, own_logger
from effects.extend.rows import walk
from effects.extend.secrets import signing
from effects.extend.sql import Store
from effects.extend.text import moment
from effects_webhooks import health
from effects_webhooks.api import deliver_webhook
from effects_webhooks.classify import RetryContext, classify, control_of, explanation_of
from effects_webhooks.echoes import shortened, striking
from effects_webhooks.endpoint_values import check_url, open_headers, open_secret, unpack_headers
from effects_webhooks.errors import EndpointInvalid
from effects_webhooks.request import WebhookEvent
from effects_webhooks.retry_rules import FULL, SHORT, Overrides, overrides_of, rule_of_code
from effects_webhooks.settings import state_of
from effects_webhooks.tables import events as table
from effects_webhooks.tables.endpoint_rows import endpoint as endpoint_row
from effects_webhooks.tables.endpoint_rows import endpoints, failing_endpoints
from effects_webhooks.tables.ledger import DeliveryLedger, DeliveryRecord
from effects_webhooks.transport.exchange import DEADLINE_SECONDS, WebhookExchange, Windows
from effects_webhooks.writing import BATCH, FAN_OUT_TYPE, Target, endpoint_of, limit_key, write_deliveries

if TYPE_CHECKING:
    from effects import Effects

with lazy.modules(__name__):
    import httpx

    from effects_webhooks.transport import http


_FAILING_SHOWN_MAX = 5


class _Addressee(msgspec.Struct, frozen=True):
    """An endpoint as it is now. Its secrets, newest first, and its headers are still sealed."""

    tenant: str
    url: str
    active: bool
    secrets: Sequence[tuple[str, bytes]]
    profile: str
    overrides: Overrides
    headers: bytes | None
    failing: bool


class LoadedDelivery(msgspec.Struct, frozen=True):
    """What one delivery needs."""

    tenant: str  # the event's
    body: bytes
    addressee: _Addressee
    earlier: Sequence[str]  # the codes of the tries before this one

    @property
    def url(self) -> str:
        """Where it goes; what tests of apps look at (`effects.testing`)."""
        return self.addressee.url


def _load_deliveries(
    app: Effects, connection: Connection, jobs: Sequence[tuple[Job, str, str]]
) -> Mapping[int, LoadedDelivery]:
    """Load bodies, endpoints and secrets of the whole batch in three statements, and the codes of earlier attempts of
    those that had any in a fourth. A job whose rows are gone is left out.

    Args:
        jobs: each with the ids of its event and its endpoint.
    """
    store = app.store
    events = {row.id: row for row in table.bodies(store, connection, {event_id for _, event_id, _ in jobs})}
    addressees = _addressees(store, connection, {endpoint_id for _, _, endpoint_id in jobs})
    earlier = table.earlier_codes(store, connection, [job.id for job, _, _ in jobs if job.attempts > 1])
    loaded = {}
    for job, event_id, endpoint_id in jobs:
        event, addressee = events.get(event_id), addressees.get(endpoint_id)
        if event is not None and addressee is not None:
            loaded[job.id] = LoadedDelivery(event.tenant, bytes(event.body), addressee, earlier.get(job.id, ()))
    return loaded


def _addressees(store: Store, connection: Connection, endpoint_ids: set[str]) -> dict[str, _Addressee]:
    secrets: dict[str, list[tuple[str, bytes]]] = defaultdict(list)
    for row in table.secrets(store, connection, endpoint_ids):
        secrets[row.endpoint_id].append((row.id, bytes(row.sealed)))
    return {
        row.id: _Addressee(
            row.tenant, row.url, row.status == "active", secrets[row.id], row.profile,
            overrides_of(row.overrides), row.headers, bool(row.failing),
        )
        for row in table.addresses(store, connection, endpoint_ids)
    }  # fmt: skip


def _prune_events(store: Store, *, keep_seconds: float, dry_run: bool, go_on: Callable[[], bool]) -> int:
    """Delete events older than `keep_seconds` all of whose deliveries are gone, page after page.

    Returns:
        How many were deleted, or would be.
    """
    step = partial(table.prune_old_events, store, keep_seconds=keep_seconds, dry_run=dry_run)
    return walk(step, go_on=go_on, dry_run=dry_run)


class FanOutPayload(msgspec.Struct, frozen=True):
    """The event, and the endpoint behind which this job continues."""

    event_id: str
    after: str = ""


class WebhookFanOut(JobType[FanOutPayload]):
    """Makes the deliveries of one event to at most 500 unordered endpoints, and a job for those behind them.

    Deliveries and the next job are written in the transaction that records this job as done: a crash leaves all of
    it or nothing, and no endpoint gets two deliveries. Endpoints that were added after the event get none; ordered
    ones had theirs from the transaction of the event.
    """

    name = FAN_OUT_TYPE
    internal = True
    payload = FanOutPayload
    queue = "webhooks"

    def __init__(self, app: Effects) -> None:
        self._app = app

    async def perform(self, payload: FanOutPayload, attempt: Attempt) -> Outcome:
        return Done(apply=lambda connection: self._write(connection, payload))

    def _write(self, connection: Connection, payload: FanOutPayload) -> None:
        app = self._app
        event = table.event(app.store, connection, payload.event_id)
        if event is None:  # pruned meanwhile
            return
        page = table.endpoints_after(app.store, connection, event, payload.after, BATCH)
        routes = [Target(row).route for row in page if _is_left(row, event)]
        write_deliveries(app, connection, [(event, route) for route in routes])
        if len(page) == BATCH:
            enqueue(FAN_OUT_TYPE, FanOutPayload(payload.event_id, page[-1].id), session=connection, effects=app)


def _is_left(endpoint: Row[Any], event: Row[Any]) -> bool:
    """Whether an endpoint without a delivery wants the event and was left to this job.

    An ordered one was not, unless it was changed since: it may have been unordered then. If it never was changed, the
    transaction that added it had not committed when the event was written.
    """
    target = Target(endpoint)
    is_ordered = target.route.group_key(event.ordering_key) is not None
    return target.wants(event.type) and (endpoint.changed or not is_ordered)


COMPOSE_TYPE = "webhook.compose"


class WebhookComposePayload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As the fields of `WebhookEvent`."""

    type: str
    data: dict[str, Any] = {}
    key: str | None = None
    tenant: str | None = None
    ordering_key: str | None = None


class WebhookCompose(JobType[WebhookComposePayload]):
    """Writes the event and its deliveries, in the transaction that records this job as done."""

    name = COMPOSE_TYPE
    payload = WebhookComposePayload
    queue = "webhooks"

    def __init__(self, app: Effects) -> None:
        self._app = app

    def check_declared(self, payload: WebhookComposePayload) -> None:
        state_of(self._app).event_types.check(payload.type)
        WebhookEvent(**msgspec.structs.asdict(payload))

    async def perform(self, payload: WebhookComposePayload, attempt: Attempt) -> Outcome:
        try:
            event = WebhookEvent(**msgspec.structs.asdict(payload))
        except EnqueueError as error:  # neither quotes the data
            return _refused(error)
        return Done(apply=lambda connection: self._write(connection, event, attempt.job))

    def _write(self, connection: Connection, event: WebhookEvent, job: Job) -> None:
        try:
            receipt = deliver_webhook(event, session=connection, effects=self._app)
        except EnqueueError as error:  # the key has other content
            raise _refused(error) from None
        if receipt.existing:
            record_existing(self._app.store, connection, job, f"the event {receipt.event_id} of the key {event.key!r}")
        fan_out = () if receipt.fan_out_job_id is None else (receipt.fan_out_job_id,)
        record_followers(self._app.store, connection, job.id, (*fan_out, *receipt.job_ids))


def _refused(error: EffectsError) -> Refused:
    return Refused(str(error), code=type(error).__name__)


RECHECK_SECONDS = 60.0  # while our own configuration is at fault
_MARGIN_SECONDS = 1.0  # the transport ends before the attempt's time limit does
_CACHED_KEYS_MAX = 10_000
_CACHED_URLS_MAX = 10_000
_log = own_logger("effects.webhooks")


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
    internal = True
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
        self.short = short
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

    def declared_jobs(self) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
        """The notice of an endpoint that fails."""
        name = state_of(self._app).settings.webhook_notice_job_type
        sample = health.notice_of("ep_1", "failing", "no success for 24 h", 86_400, 1)
        return {"EFFECTS_WEBHOOK_NOTICE_JOB_TYPE": (name, sample)} if name else {}

    def examine_rows(self, connection: Connection) -> Iterator[DoctorFinding]:
        """Endpoints that fail, by name."""
        for row in failing_endpoints(self._app.store, connection, _FAILING_SHOWN_MAX):
            since = f"{moment(row.failing_since):%Y-%m-%dT%H:%M:%SZ}"
            retry = f"effects retry {row.id} --yes"
            yield DoctorFinding(
                "endpoints", "warning",
                f"{row.id} ({shortened(row.url)}) fails since {since}: {row.failed_messages:,} messages",
                f"see `effects webhooks deliveries --endpoint {row.id}`; once it answers again, `{retry}` "
                "retries what ended and what waits", about=row.id,
            )  # fmt: skip

    def load(self, connection: Connection, jobs: Sequence[tuple[Job, DeliverPayload]]) -> Mapping[int, LoadedDelivery]:
        return _load_deliveries(
            self._app, connection, [(job, payload.event_id, payload.endpoint_id) for job, payload in jobs]
        )

    def explain(self, key: str | None, error_code: str | None, detail: Mapping[str, Any]) -> Explanation | None:
        """By the table of the default profile; an endpoint may have its own."""
        return explanation_of(error_code, detail)

    def why_retry_fails(self, error_code: str | None) -> str | None:
        """What the endpoint or its owner must change first."""
        rule = rule_of_code(error_code)
        return f"{rule.why}; fix the receiver first" if error_code and rule.retry_class == "none" else None

    def before_retry(self, connection: Connection, job_id: int, key: str | None, *, done: bool) -> None:
        """To a disabled endpoint, or one that is gone, the new job would end cancelled."""
        endpoint_id = (key or "").partition(":")[2]
        if not endpoint_id:
            return
        row = endpoint_row(self._app.store, connection, endpoint_id, None)
        if row is None:
            raise JobStateError(f"job {job_id}: its endpoint {endpoint_id} is deleted", code="endpoint_gone")
        if row.status != "active":
            enable = f"`effects webhooks endpoints enable {endpoint_id}`"
            text = f"job {job_id}: its endpoint {endpoint_id} is disabled, and it would end cancelled; first {enable}"
            raise JobStateError(text, code="endpoint_disabled")

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
            exchange = await self.send(payload, loaded, sent, keys, seconds)
            use.ended(exchange)
        context = RetryContext(addressee.profile, addressee.overrides, loaded.earlier, self.retry, self.short)
        strike = striking(addressee.url, own, keys, sent[signing.SIGNATURE_HEADER])
        outcome = classify(exchange, host=host, context=context, strike=strike)
        attempt.private = DeliveryRecord(
            payload.event_id, payload.endpoint_id, exchange.status,
            disable_requested=control_of(exchange) == "disable", was_failing=addressee.failing,
        )  # fmt: skip
        if isinstance(outcome, Pause):
            self._waiting.error(outcome.reason)
        return outcome

    async def send(
        self, payload: DeliverPayload, loaded: LoadedDelivery, headers: Mapping[str, str], keys: Sequence[bytes],
        seconds: float,
    ) -> WebhookExchange:  # fmt: skip
        """Make the request, which one of the keys has signed, within so many seconds; `effects dev` keeps it here."""
        return await self._transports.post(loaded.url, headers, loaded.body, seconds=seconds)

    def request_of(self, event_id: str, endpoint_id: str, body: bytes) -> tuple[str, dict[str, str]]:
        """URL and headers of a delivery to the endpoint as it is, signed now: what tests of apps look at."""
        with self._app.store.read() as connection:
            addressee = _addressees(self._app.store, connection, {endpoint_id})[endpoint_id]
        keys = [self._key(endpoint_id, *secret) for secret in addressee.secrets]
        return addressee.url, {
            **self._own_headers(endpoint_id, addressee.headers), **self._headers(event_id, body, keys),
        }  # fmt: skip

    def prune(self, keep_seconds: float, *, dry_run: bool, go_on: Callable[[], bool]) -> int:
        """Events older than that all of whose deliveries are gone; from then on an event's key may be used again."""
        return _prune_events(self._app.store, keep_seconds=keep_seconds, dry_run=dry_run, go_on=go_on)

    @property
    def _transports(self) -> http.WebhookTransports:
        """Of this event loop; made for its first request."""
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None:
            from effects.extend.http import GuardedNetwork  # noqa: PLC0415 - its client takes a while to load

            guarded = GuardedNetwork(allow_private=self._allow_private)
            opened = self._opened[loop] = http.WebhookTransports(guarded, ssl_context=self._ssl_context)
        return opened

    def _own_headers(self, endpoint_id: str, sealed: bytes | None) -> dict[str, str]:
        """The partner's headers."""
        return unpack_headers(open_headers(self._app, endpoint_id, sealed)) if sealed is not None else {}

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
