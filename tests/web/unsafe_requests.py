"""A request for every route that takes POST, each of which would change something, and what it is turned into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias
from urllib.parse import urlencode

from sqlalchemy import text

from effects import enqueue
from effects.operate.bulk import BulkStarted, carry_out, preview
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.dead_letters import DeadFilters
from effects.store.queue.cancellation import cancel
from effects.web.exchange import FORM_TYPE
from effects_email import send_templated_email, suppress
from effects_reports import cancel_report, request_report
from effects_webhooks.admin.deliveries import list_events
from effects_webhooks.admin.rotation import list_secrets, rotate_secret
from effects_webhooks.tenants import ANY_TENANT
from tests.support.scripted import Script
from tests.web.browsing import Visitor
from tests.web.full_shop import FullShop

Fields: TypeAlias = Mapping[str, str]
LOOKS = {"why", "settings"}  # routes whose POST changes no row


@dataclass(frozen=True)
class UnsafeRequest:
    """A POST as its page makes it; `site`: what the browser says of where the form was."""

    route: str
    path: str
    fields: Fields = field(default_factory=dict)
    site: Fields = field(default_factory=lambda: {"sec-fetch-site": "same-origin"})
    form_type: str = FORM_TYPE
    method: str = "POST"

    def with_token(self, token: str) -> UnsafeRequest:
        return replace(self, fields={**self.fields, "form_token": token})

    def send(self, visitor: Visitor) -> int:
        """Its status."""
        headers = visitor.with_own_name(self.site)
        if self.method != "POST":
            return visitor.send(self.method, self.path, params=dict(self.fields), headers=headers).status_code
        headers["content-type"] = self.form_type
        body = urlencode(self.fields).encode()
        return visitor.send("POST", self.path, content=body, headers=headers).status_code


SITES: tuple[Fields, ...] = (
    {}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "cross-site"},
    {"origin": "null"}, {"origin": "http://evil.test"}, {"origin": "{base}:81"}, {"origin": "https://"},
    {"origin": "{base}.evil.test"}, {"origin": "http://evil.test/{host}"}, {"origin": "http://{host}@evil.test"},
    {"sec-fetch-site": "cross-site", "origin": "{base}"}, {"sec-fetch-site": "same-origin, cross-site"},
    {"sec-fetch-site": "", "origin": "{base}"}, {"referer": "{base}/jobs"}, {"x-forwarded-host": "{host}"},
)  # fmt: skip
OWN: tuple[Fields, ...] = ({"sec-fetch-site": "same-origin"}, {"origin": "{base}"})
FORM_TYPES = ("text/plain", "multipart/form-data; boundary=x", "application/json", "")
METHODS = ("PUT", "PATCH", "DELETE", "OPTIONS")


def refused(request: UnsafeRequest, tokens: Sequence[str]) -> Iterator[tuple[UnsafeRequest, int]]:
    """What may come of it from elsewhere, each with the status that it is refused with.

    Args:
        tokens: of forms, none of which is this person's.
    """
    yield from ((replace(request, site=site), 403) for site in SITES)
    for token, site in product(tokens, OWN):
        yield replace(request, fields={**request.fields, "form_token": token}, site=site), 403
    without = {name: value for name, value in request.fields.items() if name != "form_token"}
    yield from ((replace(request, fields=without, site=site), 403) for site in OWN)
    yield from ((replace(request, form_type=kind), 400) for kind in FORM_TYPES)
    yield from ((replace(request, method=method), 405) for method in METHODS)


def unsafe_requests(shop: FullShop, visitor: Visitor) -> list[UnsafeRequest]:
    """One for each route, in an order in which none is in the way of another; the visitor may do all of them."""
    token = {"form_token": visitor.token()}
    requests = []
    for route, (path, fields) in _pages(shop).items():
        form = visitor.form(path) if "?" in path or path.startswith("/jobs/") else token
        requests.append(UnsafeRequest(route, path.partition("?")[0], {**form, "reason": "because", **fields}))
    return [*requests, *(UnsafeRequest(route, path, {**token, **fields}) for route, (path, fields) in _looks(shop))]


def _pages(shop: FullShop) -> dict[str, tuple[str, Fields]]:
    """Route → the page that asks, with its query, and what a person adds to its form."""
    app, waiting = shop.app, [_waiting(shop, number) for number in (1, 2, 3)]
    dead = _ids(shop, "NOT unknown")
    unknown = _ids(shop, "unknown")
    run = request_report("numbers", {"of": "another"}, effects=app).run_id
    cancelled = request_report("numbers", {"of": "a third"}, effects=app).run_id
    cancel_report(cancelled, actor="cli:ann", reason="x", effects=app)
    bulk = carry_out(
        preview(BulkAction("requeue"), DeadFilters(error_code="gone"), effects=app), actor="cli:ann", effects=app
    )
    assert isinstance(bulk, BulkStarted)
    event = list_events(limit=1, tenant=ANY_TENANT, effects=app)[0].id
    assert event != shop.event
    secret = list_secrets(shop.good, tenant=ANY_TENANT, effects=app)[0].id
    rotate_secret(shop.good, tenant=ANY_TENANT, effects=app)  # the last one may not be ended
    return {
        "needs_bulk": ("/needs/bulk?do=ignore&effect=not_done&code=gone", {}),
        "needs_ticked": (f"/needs/ticked?do=requeue&job-{dead[2]}=y&job-{dead[3]}=y", {}),
        "jobs_ticked": (f"/jobs/ticked?do=cancel&job-{waiting[2]}=y", {}),
        "jobs_bulk": ("/jobs/bulk?do=cancel&status=queued&limit_key=smtp", {}),
        "job_run-now": (f"/jobs/{waiting[0]}/run-now", {}),
        "job_cancel": (f"/jobs/{waiting[1]}/cancel", {}),
        "job_requeue": (f"/jobs/{dead[0]}/requeue", {}),
        "job_ignore": (f"/jobs/{dead[1]}/ignore", {}),
        "job_requeue-done": (f"/jobs/{_done(shop)}/requeue-done", {}),
        "job_requeue-unknown": (f"/jobs/{unknown[0]}/requeue-unknown", {}),
        "job_mark-done": (f"/jobs/{unknown[1]}/mark-done", {}),
        "job_give-up": (f"/jobs/{unknown[2]}/give-up", {}),
        "queue_resume": ("/queues/resume?name=default", {}),
        "queue_pause": ("/queues/pause?name=default", {}),
        "limit_pause": ("/limits/pause?name=smtp", {}),
        "limit_resume": ("/limits/resume?name=smtp", {}),
        "schedule_pause": ("/schedules/pause?name=nightly", {}),
        "schedule_resume": ("/schedules/resume?name=nightly", {}),
        "schedule_run": ("/schedules/run?name=nightly", {}),
        "worker_drain": ("/workers/drain?name=w1", {}),
        "bulk_cancel": (f"/bulk/cancel?name={bulk.bulk_id}", {}),
        "webhooks_rotate": (f"/webhooks/endpoints/rotate?name={shop.good}", {"overlap": "1 hour"}),
        "webhooks_expire": (f"/webhooks/secrets/expire?name={shop.good}:{secret}", {}),
        "webhooks_test": (f"/webhooks/endpoints/test?name={shop.good}", {}),
        "webhooks_try": (f"/webhooks/endpoints/try?name={shop.gone}", {}),
        "webhooks_recover": (f"/webhooks/endpoints/recover?name={shop.gone}", {}),
        "webhooks_replay": (f"/webhooks/deliveries/replay?name={shop.event}:{shop.good}", {"even_if_done": "yes"}),
        "webhooks_replay_event": (f"/webhooks/events/replay?name={event}", {"even_if_done": "yes"}),
        "webhooks_disable": (f"/webhooks/endpoints/disable?name={shop.gone}", {}),
        "webhooks_enable": (f"/webhooks/endpoints/enable?name={shop.gone}", {}),
        "email_requeue": (f"/email/messages/requeue?name={_cancelled_mail(shop)}", {}),
        "reports_cancel": (f"/reports/cancel?name={run}", {}),
        "reports_resume": (f"/reports/resume?name={cancelled}", {}),
    }  # fmt: skip


def _looks(shop: FullShop) -> list[tuple[str, tuple[str, Fields]]]:
    """Routes whose form stands on another page: looks at what is personal, and what names an address."""
    suppress("eve@example.com", reason="manual", effects=shop.app)
    return [
        ("job_reveal", (f"/jobs/{shop.dead}/reveal", {})),
        ("webhooks_reveal", (f"/webhooks/events/{shop.event}/reveal", {})),
        ("email_address", ("/email/address", {"address": "ann@example.com"})),
        ("email_reveal", (f"/email/messages/{shop.mail}/reveal", {})),
        ("email_revealed", ("/email/messages/reveal", {})),
        ("email_suppressed", ("/email/suppressions/reveal", {})),
        ("email_suppress", ("/email/suppressions/add", {"address": "kim@example.com"})),
        ("email_lift", ("/email/suppressions/lift", {"address": "eve@example.com", "sure": "yes"})),
        ("reports_rows", (f"/reports/runs/{shop.run}/rows", {})),
        ("reports_file", (f"/reports/runs/{shop.run}/file", {})),
        ("why", ("/why", {"q": "charge:1"})),
        ("settings", ("/settings", {"theme": "dark"})),
    ]


def _waiting(shop: FullShop, number: int) -> int:
    receipt = enqueue("scripted", Script(), key=f"matrix:{number}", delay=3_600, effects=shop.app)
    assert receipt.job_id is not None
    return int(receipt.job_id)


def _cancelled_mail(shop: FullShop) -> int:
    app = shop.app
    receipt = send_templated_email("welcome", to="kim@example.com", context={"name": "Kim"}, effects=app)
    assert receipt.job_id is not None
    cancel(app.store, app.ledgers, int(receipt.job_id), actor="cli:ann", reason="x")
    return int(receipt.job_id)


def _ids(shop: FullShop, condition: str) -> list[int]:
    with shop.app.store.read() as connection:
        rows = connection.execute(
            text(f"SELECT job_id FROM {shop.app.store.sql.unresolved} WHERE {condition} ORDER BY job_id")
        )
        return [int(row[0]) for row in rows]


def _done(shop: FullShop) -> int:
    with shop.app.store.read() as connection:
        row = connection.execute(
            text(f"SELECT id FROM {shop.app.store.sql.job_history} WHERE idempotency_key = 'done:1'")
        )
        return int(row.scalar_one())
