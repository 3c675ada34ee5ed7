"""Public calls with arguments with which they succeed, in a shop that has one of each thing that they name."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import literal, select

import effects as core
import effects_email as mail
import effects_reports as reports
import effects_webhooks as webhooks
from effects import Effects
from effects.store.migrations import migrate
from effects.worker import Worker
from tests.mistakes.shop import KEYS
from tests.support.scripted import Scripted

ANN = "ann@example.com"
JULY = datetime(2026, 7, 1, tzinfo=UTC)
ACTING = {"actor": "ann", "reason": "a trial"}
URL = "https://partner.example/hooks"
BASE = "https://shop.example/reports"
SECRET = "whsec_" + "c2VjcmV0" * 4


class Call(NamedTuple):
    """A public function, and arguments with which it succeeds."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.function.__module__.partition('.')[0]}.{self.function.__name__}"


class Params(msgspec.Struct):
    day: str


def build_app(folder: Path, database_url: str) -> Effects:
    template = folder / "emails" / "hello"
    template.mkdir(parents=True)
    (template / "subject.txt").write_text("Hello")
    (template / "body.txt").write_text("Hello {{ name }}\n")
    ready = folder / "emails" / "ready"
    ready.mkdir()
    (ready / "subject.txt").write_text("Ready")
    (ready / "body.txt").write_text("{{ link }}\n")

    @reports.report("signups", params=Params, columns=("day",), consistency="single")
    def signups(params: Params) -> Any:
        return select(literal(params.day).label("day"))

    app = Effects(
        database_url, job_types=[Scripted()], keys=KEYS, templates=folder / "emails", email_from="hello@shop.example",
        unsubscribe_url="https://shop.example/u/", storage_url=f"file://{folder}/storage", reports=(signups,),
        webhook_event_types=[webhooks.EventType("order.paid", example={"order": 1})],
    )  # fmt: skip
    migrate.init(app.store)
    return app


def calls(app: Effects) -> list[Call]:
    """All of them, and what they name is there."""
    ready = reports.request_report("signups", Params("2026-06-01"), effects=app).run_id
    stopped = reports.request_report("signups", Params("2026-06-02"), effects=app).run_id
    reports.cancel_report(stopped, effects=app)
    Worker(app).drain()
    run = reports.request_report("signups", Params("2026-07-01"), key="july", effects=app).run_id
    core.enqueue("scripted", {}, key="k", run_at=JULY.replace(year=2050), effects=app)
    core.enqueue("scripted", {}, key="ended", effects=app)
    core.cancel(key="ended", actor="ann", effects=app)
    endpoint = webhooks.add_endpoint(URL, effects=app)
    webhooks.rotate_secret(endpoint.id, effects=app)
    secret = webhooks.list_secrets(endpoint.id, effects=app)[-1]
    event = webhooks.deliver_webhook(webhooks.WebhookEvent("order.paid", {}, key="paid"), effects=app)
    withdrawn = webhooks.deliver_webhook(webhooks.WebhookEvent("order.paid", {}, key="withdrawn"), effects=app)
    webhooks.cancel_delivery(withdrawn.event_id, endpoint.id, actor="ann", effects=app)
    cycle = {"template": "ready", "cron": "0 2 * * *", "link_to": BASE}
    subscription = reports.subscribe("signups", {"day": "{slot_date}"}, to=ANN, effects=app, **cycle)
    credentials = reports.BucketCredentials("id", "secret")
    reports.add_bucket("customer", "s3://customer?region=eu-west-1", credentials, effects=app)
    of_event = {"event_id": event.event_id, "endpoint_id": endpoint.id, "tenant": None}
    of_endpoint = {"endpoint_id": endpoint.id, "tenant": None, **ACTING}
    endpoint_options = {
        "url": URL, "patterns": ["order.*"], "secret": SECRET, "description": "a partner", "tenant": None,
        "profile": "default", "overrides": {"404": "full"}, "ordering": "none", "headers": {"X-A": "b"}, **ACTING,
    }  # fmt: skip
    message = {
        "to": ANN, "event_id": "e", "key": None, "category": "news", "transport": None, "attachments": (),
        "invite": None, "headers": {"X-A": "b"}, "run_at": JULY, "expires_at": JULY.replace(year=2050),
        "on_unknown": None, "sender": "shop@shop.example", "group": False, "cc": (), "bcc": (), "reply_to": (ANN,),
        "despite_suppression": None, "return_path": None, "tags": ("a",), "metadata": {"a": "b"},
    }  # fmt: skip
    job = {
        "key": "new", "queue": None, "priority": 1, "run_at": None, "delay": 1, "expires_at": None, "group_key": "g",
        "limit_key": None, "max_attempts": 2, "trace_context": None, "on_unknown": None, "on_conflict": "replace",
    }  # fmt: skip
    request = {"name": "signups", "params": Params("2026-07-02")}
    return [
        Call(core.enqueue, {"job_type": "scripted", "payload": {}, **job}),
        Call(core.enqueue_many, {"jobs": [core.NewJob(job_type="scripted", payload={})]}),
        Call(core.cancel, {"key": "k", "job_type": "scripted", **ACTING}),
        Call(core.reschedule, {"key": "k", "job_type": "scripted", "run_at": JULY, **ACTING}),
        Call(core.status, {"key": "k", "job_type": "scripted"}),
        Call(core.wait, {"key": "ended", "job_type": "scripted", "timeout_seconds": 0.01}),
        Call(mail.email_key, {"template": "hello", "to": ANN, "event_id": "e"}),
        Call(mail.events_of, {"message_id": "m@shop.example", "limit": 3}),
        Call(mail.export_address, {"address": ANN, "file": io.BytesIO(), **ACTING}),
        Call(mail.find_suppressions, {"address": ANN}),
        Call(mail.forget_address, {"address": ANN, **ACTING}),
        Call(mail.list_suppressions, {"category": "news", "reason": "manual", "limit": 3}),
        Call(mail.parse_address, {"spec": ANN, "name": "Ann"}),
        Call(mail.preview_email, {"template": "hello", "context": {"name": "Ann"}, "locale": None, "to": ANN,
                                  "sender": ANN, "attachments": ()}),
        Call(mail.send_email, {"subject": "s", "text": "t", "html": "<p>t</p>", "markdown": None, **message}),
        Call(mail.send_templated_email, {"template": "hello", "context": {"name": "Ann"}, "locale": None, **message}),
        Call(mail.send_templated_emails, {"emails": [mail.NewEmail("hello", to=ANN, context={"name": "Ann"})]}),
        Call(mail.suppress, {"address": ANN, "category": "news", "reason": "manual", "until": None, "source": "app",
                             "actor": "ann", "why": "a trial"}),
        Call(mail.suppression_log, {"address": ANN, "limit": 3}),
        Call(mail.unsubscribe_link, {"address": ANN, "category": "news"}),
        Call(mail.unsuppress, {"address": ANN, "category": "news", "reason": "manual", "actor": "ann", "why": "y"}),
        Call(webhooks.add_endpoint, endpoint_options),
        Call(webhooks.cancel_delivery, {**of_event, **ACTING}),
        Call(webhooks.change_endpoint, {**of_endpoint, "url": URL, "patterns": ["*"], "profile": "default",
                                        "overrides": None, "ordering": "none", "headers": None}),
        Call(webhooks.deliver_webhook, {"event": webhooks.WebhookEvent("order.paid", {})}),
        Call(webhooks.deliver_webhooks, {"events": [webhooks.WebhookEvent("order.paid", {})]}),
        Call(webhooks.disable_endpoint, of_endpoint),
        Call(webhooks.enable_endpoint, of_endpoint),
        Call(webhooks.ensure_endpoint, {"key": "partner", **endpoint_options, "secret": None}),
        Call(webhooks.expire_secret, {"secret_id": secret.id, "tenant": None, **ACTING}),
        Call(webhooks.explain, {"what": "404", "hint": None, "attempt": 1, "profile": "default", "overrides": None}),
        Call(webhooks.get_delivery, of_event),
        Call(webhooks.get_endpoint, {"endpoint_id": endpoint.id, "tenant": None}),
        Call(webhooks.get_event, {"event_id": event.event_id, "tenant": None}),
        Call(webhooks.list_deliveries, {**of_event, "state": "released", "standing": "failing", "before": None,
                                        "limit": 3}),
        Call(webhooks.list_endpoints, {"tenant": None}),
        Call(webhooks.list_events, {"before": None, "limit": 3, "tenant": None}),
        Call(webhooks.list_secrets, {"endpoint_id": endpoint.id, "tenant": None}),
        Call(webhooks.replay_delivery, {**of_event, "event_id": withdrawn.event_id, **ACTING, "confirm_done": True}),
        Call(webhooks.recover, {**of_endpoint, "since": JULY, "until": None, "limit": 1}),
        Call(webhooks.replay_event, {"event_id": event.event_id, "tenant": None, **ACTING, "confirm_done": True}),
        Call(webhooks.rotate_secret, {**of_endpoint, "secret": None, "overlap_seconds": 60}),
        Call(webhooks.send_test, {**of_endpoint, "event_type": "order.paid"}),
        Call(reports.add_bucket, {"name": "new", "url": "s3://new?region=eu-west-1", "credentials": credentials,
                                  **ACTING}),
        Call(reports.bucket_notice, {"bucket": "customer", "object_name": "{run_id}.csv"}),
        Call(reports.cancel_report, {"run_id": run, **ACTING}),
        Call(reports.download_url, {"run_id": ready, "base_url": BASE, "seconds": 60, "uses": 1,
                                    "principal": "ann"}),
        Call(reports.explain_report, {"sheet": None, **request, "format": "csv"}),
        Call(reports.find_report, {"name": "signups", "key": "july"}),
        Call(reports.list_buckets, {}),
        Call(reports.list_reports, {"report": "signups", "state": "requested", "before": None, "limit": 3}),
        Call(reports.list_subscriptions, {"report": "signups", "to": ANN, "bucket": None}),
        Call(reports.mail_notice, {"template": "hello", "to": ANN, "link_to": BASE, "attach_bytes_max": 1,
                                   "link_seconds": 60, "link_uses": 1, "link_principal": "ann", "context": {},
                                   "on": ("ready",)}),
        Call(reports.pause_subscription, {"subscription_id": subscription, **ACTING}),
        Call(reports.preview_report, {"sheet": None, **request, "rows": 1}),
        Call(reports.remove_bucket, {"name": "customer", **ACTING}),
        Call(reports.report_status, {"run_id": run}),
        Call(reports.request_report, {**request, "format": "csv", "key": "new", "notify": ()}),
        Call(reports.resume_report, {"run_id": stopped, **ACTING}),
        Call(reports.resume_subscription, {"subscription_id": subscription, **ACTING}),
        Call(reports.rotate_bucket, {"name": "customer", "credentials": credentials, **ACTING}),
        Call(reports.subscribe, {"report": "signups", "params": {"day": "{slot_date}"}, "to": "bob@example.com",
                                 **cycle, "zone": "UTC", "format": "csv", "attach_bytes_max": 1, "link_seconds": 60,
                                 "link_uses": 1, "locale": None, "bucket": None, "object_name": None, **ACTING}),
        Call(reports.unsubscribe, {"subscription_id": subscription, **ACTING}),
    ]  # fmt: skip
