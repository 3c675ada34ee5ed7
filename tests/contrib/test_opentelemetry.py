"""Traces and metrics of OpenTelemetry, by its SDK: in memory, and to a collector over a socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN_CONTEXT, NonRecordingSpan, SpanKind, StatusCode, Tracer
from sqlalchemy.orm import Session

from effects import Attempt, Effects, EnqueueError, NewJob, UnknownJobType, enqueue, enqueue_async, enqueue_many
from effects.contrib.opentelemetry import CHARS_MAX, context_of_text, instrument, text_of_context
from effects.kit.exit_codes import ExitCode
from effects.store.workers import end
from effects.worker import Worker
from tests.conftest import AppFactory
from tests.peers.otlp import Collector
from tests.support.manual_workers import ManualWorker, row, run_sql
from tests.support.scripted import AsyncScripted, Scripted


class Traces:
    """An instrumented app's spans and metrics, in memory."""

    def __init__(self, app: Effects) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])
        self.tracer = self.provider.get_tracer("tests")
        instrument(app, tracer_provider=self.provider, meter_provider=self.meters)

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        assert data is not None
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        return [
            point
            for scope in scopes
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def traces(app: Effects) -> Iterator[Traces]:
    instrumented = Traces(app)
    yield instrumented
    instrumented.provider.shutdown()
    instrumented.meters.shutdown()


def attempts(app: Effects, count: int) -> None:
    """Carry out so many attempts, without waiting for retries."""
    for _ in range(count):
        Worker(app).drain()
        run_sql(app, f"UPDATE {app.store.sql.jobs} SET run_at = created_at")


def test_one_trace_runs_from_the_request_through_the_commit_to_each_attempt(app: Effects, traces: Traces) -> None:
    with traces.tracer.start_as_current_span("POST /orders") as request, Session(app.engine) as session:
        receipt = enqueue("scripted", {"moves": ["retry", "raise", "done"]}, session=session, effects=app)
        session.commit()
    attempts(app, 3)
    [sent] = traces.spans("enqueue default")
    assert (sent.kind, sent.parent.span_id) == (SpanKind.PRODUCER, request.get_span_context().span_id)
    assert dict(sent.attributes) == {
        "messaging.system": "effects", "messaging.operation.name": "enqueue", "messaging.operation.type": "send",
        "messaging.destination.name": "default", "messaging.message.id": str(receipt.job_id),
        "effects.job.type": "scripted",
    }  # fmt: skip
    tried = traces.spans("process default")
    assert [span.attributes["effects.attempt"] for span in tried] == [1, 2, 3]
    assert [span.attributes["effects.outcome"] for span in tried] == ["failed", "unknown", "succeeded"]
    assert [span.status.status_code for span in tried] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert {span.context.trace_id for span in tried} == {request.get_span_context().trace_id}
    assert {span.parent.span_id for span in tried} == {sent.context.span_id}
    assert [[link.context.span_id for link in span.links] for span in tried] == [[sent.context.span_id]] * 3
    assert {span.kind for span in tried} == {SpanKind.CONSUMER}


def test_the_metrics_are_those_of_messaging(app: Effects, traces: Traces) -> None:
    enqueue_many([NewJob(job_type="scripted", payload={"moves": [move]}) for move in ("done", "refuse")], effects=app)
    attempts(app, 1)
    [sent] = traces.points("messaging.client.sent.messages")
    assert (sent.value, sent.attributes["messaging.destination.name"]) == (2, "default")
    consumed = {point.attributes["effects.outcome"]: point for point in traces.points("messaging.process.duration")}
    assert {outcome: point.count for outcome, point in consumed.items()} == {"succeeded": 1, "refused": 1}
    assert "error.type" in consumed["refused"].attributes
    assert sum(point.value for point in traces.points("messaging.client.consumed.messages")) == 2
    assert traces.points("messaging.client.operation.duration")[0].count == 1


class Carried(Scripted):
    """Notes the context in which its handler runs."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.contexts: dict[int, tuple[int, Any]] = {}  # of each job

    def perform(self, payload: Any, attempt: Attempt) -> None:
        trace_id = trace.get_current_span().get_span_context().trace_id
        self.contexts[attempt.job.id] = trace_id, baggage.get_baggage("tenant")


class CarriedAsync(AsyncScripted):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.contexts: dict[int, tuple[int, Any]] = {}  # of each job

    async def perform(self, payload: Any, attempt: Attempt) -> None:  # type: ignore[override]
        trace_id = trace.get_current_span().get_span_context().trace_id
        self.contexts[attempt.job.id] = trace_id, baggage.get_baggage("tenant")


@pytest.mark.parametrize("kind", [Carried, CarriedAsync])
def test_baggage_and_the_span_are_current_in_the_handler(app_factory: AppFactory, kind: Any) -> None:
    job_type = kind("scripted")
    app = app_factory(job_types=[job_type])
    traces = Traces(app)
    token = context.attach(baggage.set_baggage("tenant", "ü, 7"))
    try:
        with traces.tracer.start_as_current_span("request") as request:
            traced = enqueue("scripted", {}, effects=app)
        untraced = enqueue("scripted", {}, effects=app)
    finally:
        context.detach(token)
    Worker(app).drain()
    first, tenant = job_type.contexts[traced.job_id]
    second, _ = job_type.contexts[untraced.job_id]
    assert (first, tenant) == (request.get_span_context().trace_id, "ü, 7")
    assert second != first
    assert trace.get_current_span() is trace.INVALID_SPAN


async def _enqueue_in(app: Effects, traces: Traces) -> int:
    with traces.tracer.start_as_current_span("request") as request:
        await enqueue_async("scripted", {}, effects=app)
        return request.get_span_context().trace_id


def test_the_awaited_call_knows_the_requests_span(app: Effects, traces: Traces) -> None:
    trace_id = asyncio.run(_enqueue_in(app, traces))
    assert [span.context.trace_id for span in traces.spans("enqueue default")] == [trace_id]


def test_what_a_handler_enqueues_belongs_to_its_attempt(app_factory: AppFactory) -> None:
    class Chain(Scripted):
        def perform(self, payload: Any, attempt: Attempt) -> None:
            enqueue("scripted", {}, effects=app)

    app = app_factory(job_types=[Chain("chain"), Scripted()])
    traces = Traces(app)
    enqueue("chain", {}, effects=app)
    Worker(app).drain()
    first, second = traces.spans("enqueue default")
    assert second.parent.span_id == traces.spans("process default")[0].context.span_id
    assert second.context.trace_id == first.context.trace_id


def test_a_trace_context_that_the_caller_gives_stays_as_it_is(app: Effects, traces: Traces) -> None:
    text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    receipt = enqueue("scripted", {}, trace_context=text, effects=app)
    assert row(app, "jobs", "id = :id", id=receipt.job_id)["trace_context"] == text
    Worker(app).drain()
    [tried] = traces.spans("process default")
    assert f"{tried.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert traces.spans("enqueue default")[0].context.trace_id == tried.context.trace_id


def test_a_lost_attempt_has_no_span_and_the_next_has_its_link(app: Effects, traces: Traces) -> None:
    enqueue("scripted", {}, effects=app)
    lost = ManualWorker(app)
    lost.claim_one()
    end(app.store, lost.name, ExitCode.PART_FAILED, "killed")
    assert len(ManualWorker(app, "successor").rescue().accepted) == 1
    attempts(app, 1)
    [tried] = traces.spans("process quarantine") + traces.spans("process default")
    assert tried.attributes["effects.attempt"] == 2
    assert len(tried.links) == 1


def test_an_attempt_that_is_given_up_has_its_span(app_factory: AppFactory) -> None:
    job_type = Scripted(time_limit_seconds=0.2)
    app = app_factory(job_types=[job_type])
    traces = Traces(app)
    enqueue("scripted", {"moves": ["wait"]}, effects=app)
    Worker(app).drain()
    job_type.gate.set()
    [tried] = traces.spans("process default")
    assert tried.attributes["effects.outcome"] == "timed_out"


def test_a_refused_call_says_why_as_without_telemetry(app: Effects, traces: Traces) -> None:
    odd: Any = ["scripted"]
    for wrong in ({"job_type": "nothing"}, {"job_type": odd}, {"job_type": "scripted", "trace_context": 5}):
        with pytest.raises((EnqueueError, UnknownJobType)):
            enqueue(wrong["job_type"], {}, trace_context=wrong.get("trace_context"), effects=app)
    with pytest.raises(EnqueueError):
        enqueue("scripted", {}, key="rosebud", priority=10**9, effects=app)
    [sent] = traces.spans("enqueue default")
    assert sent.attributes["error.type"] == "EnqueueError"
    assert "rosebud" not in sent.to_json()


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("no room")


def test_telemetry_that_fails_harms_no_job(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    instrument(app, tracer_provider=provider)
    enqueue("scripted", {}, effects=app)
    assert Worker(app).drain().counts == {"succeeded": 1}
    assert "telemetry.failed" in caplog.text


class Full(NonRecordingSpan):
    def set_attribute(self, key: str, value: Any) -> None:
        raise RuntimeError("no room")


class FullTracer(Tracer):
    def start_span(self, *arguments: Any, **options: Any) -> Full:
        return Full(INVALID_SPAN_CONTEXT)

    start_as_current_span: Any = None


class FullProvider(trace.TracerProvider):
    def get_tracer(self, *arguments: Any, **options: Any) -> FullTracer:
        return FullTracer()


def test_a_job_that_is_written_is_no_error_where_its_span_is(app: Effects, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever enqueues would repeat the call."""
    instrument(app, tracer_provider=FullProvider())
    assert enqueue("scripted", {}, effects=app).job_id == 1
    assert "telemetry.failed" in caplog.text


def test_a_collector_gets_it_over_a_socket_and_nothing_personal(app: Effects) -> None:
    with Collector() as collector:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{collector.url}/v1/metrics"))
        meters = MeterProvider([reader])
        instrument(app, tracer_provider=provider, meter_provider=meters)
        payload = {"moves": ["raise"], "name": "Citizen Kane"}
        enqueue("scripted", payload, key="xanadu", limit_key="thatcher", effects=app)
        Worker(app).drain()
        provider.shutdown()
        meters.shutdown()
        names = [span.name for span in collector.spans]
        assert names == ["enqueue default", "process default"]
        assert collector.spans[1].parent_span_id == collector.spans[0].span_id
        assert collector.spans[1].links[0].span_id == collector.spans[0].span_id
        [event] = collector.spans[1].events
        assert {attribute.key for attribute in event.attributes} >= {"exception.type", "exception.stacktrace"}
        assert {metric.name for metric in collector.metrics} == {
            "messaging.client.sent.messages", "messaging.client.operation.duration",
            "messaging.client.consumed.messages", "messaging.process.duration",
        }  # fmt: skip
        for secret in (b"Kane", b"xanadu", b"thatcher"):
            assert secret not in collector.bodies


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "no context",
        "{",
        "[]",
        '{"traceparent": 5}',
        "{" * 5000,
        '{"a": "b"}',
        '{"baggage": "' + "a=b," * 9000 + '"}',
    ],
)
def test_a_row_that_has_no_context_is_one_without(text: str | None) -> None:
    assert not trace.get_current_span(context_of_text(text)).get_span_context().is_valid


def test_too_much_baggage_is_left_out() -> None:
    provider = TracerProvider()
    with provider.get_tracer("t").start_as_current_span("request") as span:
        token = context.attach(baggage.set_baggage("load", "x" * 4000))
        token2 = context.attach(baggage.set_baggage("more", "y" * 4000))
        text = text_of_context()
        context.detach(token2)
        context.detach(token)
    provider.shutdown()
    assert text is not None
    assert len(text) <= CHARS_MAX
    assert trace.get_current_span(context_of_text(text)).get_span_context().span_id == span.context.span_id


@pytest.mark.slow
def test_where_it_is_not_used_it_is_not_imported() -> None:
    code = """
import sys, tempfile
from effects import Effects, enqueue
from effects.worker import Worker
app = Effects(f"sqlite:///{tempfile.mkdtemp()}/a.db")
app.create_tables()
enqueue("effects.prune", {}, effects=app)
Worker(app).drain()
print([name for name in sys.modules if name.startswith("opentelemetry") or name == "effects.contrib.opentelemetry"])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() == "[]"
