"""A request of FastAPI, its commit, the worker and the partner's answers are one trace, as the document shows it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Link
from sqlalchemy.orm import Session

from effects import Effects
from effects.contrib.opentelemetry import instrument
from effects.keys.encryption import generate_key
from effects.worker import Worker
from effects_webhooks import WebhookEvent, add_endpoint, deliver_webhook
from tests.house.source import ROOT
from tests.peers.http import Receiver
from tests.support.manual_workers import run_sql


def tree(spans: list[ReadableSpan], parent: int | None = None, depth: int = 0) -> Iterator[str]:
    """The spans as lines below their parents. Ids and times are left out; the id of the job is replaced."""
    inside = [span for span in spans if (span.parent.span_id if span.parent else None) == parent]
    for span in sorted(inside, key=lambda span: span.start_time or 0):
        yield "  " * depth + "  ".join([span.name, span.kind.name, *details(span, spans)])
        yield from tree(spans, span.context.span_id, depth + 1)


def details(span: ReadableSpan, spans: list[ReadableSpan]) -> Iterator[str]:
    facts = dict(span.attributes or {})
    status = facts.get("http.response.status_code", facts.get("http.status_code"))  # by the release of its conventions
    yield from [f"answer {status}"] if status else []
    yield from ["job JOB"] if "messaging.message.id" in facts else []
    yield from (f"link={linked.name}" for link in span.links for linked in spans if ids_of(linked) == ids_of(link))
    yield from [f"attempt {facts['effects.attempt']}"] if "effects.attempt" in facts else []
    yield from (f"{name}={facts[name]}" for name in ("effects.outcome", "error.type") if name in facts)


def ids_of(node: ReadableSpan | Link) -> tuple[int, int]:
    return node.context.trace_id, node.context.span_id


async def post(web: FastAPI, path: str) -> int:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://shop.test") as client:
        return (await client.post(path)).status_code


def test_the_documents_trace_is_that_of_a_real_run(database_url: str) -> None:
    app = Effects(database_url, keys=f"k1={generate_key()}", allow_private_addresses=True)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrument(app, tracer_provider=provider, meter_provider=MeterProvider())
    web = FastAPI()

    @web.post("/orders")
    def order() -> dict[str, str]:
        with Session(app.engine) as session:
            event = WebhookEvent("order.placed", {"order": 7})
            deliver_webhook(event, session=session, effects=app)
            session.commit()
        return {}

    FastAPIInstrumentor.instrument_app(
        web, tracer_provider=provider, meter_provider=MeterProvider(), exclude_spans=["send", "receive"]
    )
    with Receiver([503, 200]) as receiver:
        add_endpoint(receiver.url, effects=app)
        assert asyncio.run(post(web, "/orders")) == 200
        for _ in range(2):
            Worker(app).drain()
            run_sql(app, f"UPDATE {app.store.sql.jobs} SET run_at = created_at")
            run_sql(app, f"UPDATE {app.store.sql.limits} SET paused_until = NULL")
        assert len(receiver.requests) == 2
    app.dispose()
    lines = list(tree(list(exporter.get_finished_spans())))
    [shown] = re.findall(r"```text\n(POST.*?)```", (ROOT / "docs" / "telemetry.md").read_text(), re.DOTALL)
    assert lines == shown.splitlines()
    assert len({span.context.trace_id for span in exporter.get_finished_spans()}) == 1
    jobs = [(span.attributes or {}).get("messaging.message.id") for span in exporter.get_finished_spans()]
    assert len({job for job in jobs if job}) == 1  # JOB is the same in all lines
