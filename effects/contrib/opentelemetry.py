"""OpenTelemetry: spans and metrics of jobs, by its conventions for messaging. The extra `effects-toolkit[otel]`.

    from effects.contrib.opentelemetry import instrument

    instrument(app)

The app brings the SDK and its exporter. Without this call nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from effects.app.effects import Effects
from effects.kit.logs import RateLimitedLogger, error_places, own_logger
from effects.kit.text.wording import shown_status
from effects.model.job import Job, NewJob
from effects.model.settlement import AttemptSpan, Settlement
from effects.version import VERSION

TRACEPARENT = "traceparent"
CHARS_MAX = 8192  # of baggage and the like; beyond it only `traceparent` is kept


def text_of_context(context: Context | None = None) -> str | None:
    """The headers of the configured propagators: `traceparent` by itself as it is, several as a JSON object.

    Args:
        context: default: the current one.
    """
    headers: dict[str, str] = {}
    propagate.inject(headers, context)
    parent = headers.get(TRACEPARENT)
    if headers.keys() <= {TRACEPARENT}:
        return parent
    text = json.dumps(headers, separators=(",", ":"))
    return text if len(text) <= CHARS_MAX else parent


def context_of_text(text: str | None) -> Context:
    """The context of a job's `trace_context`: empty where the text is missing or no context."""
    return propagate.extract(_headers(text), Context())


def _headers(text: str | None) -> dict[str, str]:
    if text is not None and len(text) > CHARS_MAX:  # anybody with INSERT may have written it
        return {}
    if text is None or not text.startswith("{"):
        return {} if text is None else {TRACEPARENT: text}
    try:
        headers = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in headers.items() if isinstance(value, str)}


SYSTEM, SENT, PROCESSED = "effects", "enqueue", "process"
_FAILED = ("failed", "unknown", "timed_out", "refused")

_log = own_logger("effects.telemetry")


def instrument(
    app: Effects, *, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Give each enqueue a span, and each attempt one that is linked to it; count and time both.

    Call it once, where the app and its Effects are made, in the app's processes and in the workers'. An attempt's span
    is a child of the enqueue's, carries a link to it, and is current while the handler runs; baggage of the request is
    there as well. No key, payload or text of an exception becomes an attribute. What telemetry itself raises is logged
    (`telemetry.failed`) and affects no job. Spans that a crashed process had not exported are lost.

    Args:
        app: the Effects; a second call for it replaces the first.
        tracer_provider, meter_provider: default: the global ones.
    """
    app.telemetry = OpenTelemetry(app, tracer_provider, meter_provider)


class OpenTelemetry:
    """The `Telemetry` of an Effects. An enqueue that the caller rolls back has a span all the same."""

    def __init__(self, app: Effects, tracers: TracerProvider | None, meters: MeterProvider | None) -> None:
        self._app = app
        self._errors = RateLimitedLogger(_log, "telemetry.failed")
        self._tracer = trace.get_tracer(__name__, VERSION, tracers)
        meter = metrics.get_meter(__name__, VERSION, meters)
        self.sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Jobs that were enqueued.")
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that a worker has begun."
        )
        self.enqueue_seconds = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long enqueuing took."
        )
        self.process_seconds = meter.create_histogram("messaging.process.duration", "s", "How long attempts took.")

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Iterator[Callable[[Sequence[int]], object]]:
        """A producer's span. One for a batch, which names its queue only where all have the same."""
        if not all(self._is_sendable(job) for job in jobs):
            yield lambda ids: None
            return
        try:
            sending = _Sending(self, self._tracer, jobs)
            leave = sending.enter()
        except Exception as error:  # of what the app plugged in
            self.failed(error)
            yield lambda ids: None
            return
        raised: BaseException | None = None
        try:
            yield sending.note_ids
        except BaseException as error:
            raised = error
            raise
        finally:
            leave()
            sending.end(raised)

    def trace_context(self) -> str | None:
        try:
            return text_of_context()
        except Exception as error:
            self.failed(error)
            return None

    def start(self, job: Job) -> AttemptSpan:
        """A consumer's span; where it cannot be made, one that does nothing."""
        try:
            return _Attempt(self, self._tracer, job)
        except Exception as error:
            self.failed(error)
            return _NoSpan()

    def failed(self, error: Exception) -> None:
        self._errors.error(f"{type(error).__name__} at {error_places(error)}")

    def _is_sendable(self, job: NewJob) -> bool:
        """Else it is refused in a moment."""
        texts = (job.job_type, job.queue or "", job.trace_context or "")
        return all(isinstance(text, str) for text in texts) and job.job_type in self._app.job_types

    def queue_of(self, job: NewJob) -> str:
        """Its type's, where the call names none: what `route` says is known to the row alone."""
        return job.queue or self._app.job_types.get(job.job_type).queue


class _Sending:
    """The span of one enqueue."""

    def __init__(self, telemetry: OpenTelemetry, tracer: trace.Tracer, jobs: Sequence[NewJob]) -> None:
        self._telemetry = telemetry
        self._queues = Counter(telemetry.queue_of(job) for job in jobs)
        queue = next(iter(self._queues)) if len(self._queues) == 1 else None
        self._labels = _attributes(SENT, "send", queue, {job.job_type for job in jobs})
        parent = context_of_text(jobs[0].trace_context) if jobs[0].trace_context else contexts.get_current()
        self._started = time.monotonic()
        self._span = tracer.start_span(
            f"{SENT} {queue}" if queue else SENT, parent, kind=SpanKind.PRODUCER, attributes=self._labels
        )
        self._context = trace.set_span_in_context(self._span, parent)

    def enter(self) -> Callable[[], object]:
        token = contexts.attach(self._context)
        return lambda: contexts.detach(token)

    def note_ids(self, ids: Sequence[int]) -> None:
        try:
            if len(ids) == 1:
                self._span.set_attribute("messaging.message.id", str(ids[0]))
            else:
                self._span.set_attribute("messaging.batch.message_count", len(ids))
        except Exception as failure:  # the jobs are written
            self._telemetry.failed(failure)

    def end(self, error: BaseException | None) -> None:
        try:
            self._end(error)
        except Exception as failure:
            self._telemetry.failed(failure)

    def _end(self, error: BaseException | None) -> None:
        labels = self._labels
        if error is not None:  # by its class alone: its text may quote a key
            labels = {**labels, "error.type": type(error).__name__}
            self._span.set_status(Status(StatusCode.ERROR))
            self._span.set_attributes(labels)
        self._span.end()
        self._telemetry.enqueue_seconds.record(time.monotonic() - self._started, labels)
        for queue, count in self._queues.items():
            self._telemetry.sent.add(count, {**labels, "messaging.destination.name": queue})


class _Attempt:
    """The span of one attempt."""

    def __init__(self, telemetry: OpenTelemetry, tracer: trace.Tracer, job: Job) -> None:
        created = context_of_text(job.trace_context)
        creator = trace.get_current_span(created).get_span_context()
        self._telemetry = telemetry
        self._labels = _attributes(PROCESSED, "process", job.home_queue, {job.job_type})
        numbers: dict[str, AttributeValue] = {"messaging.message.id": str(job.id), "effects.attempt": job.attempts}
        self._span: Span = tracer.start_span(
            f"{PROCESSED} {job.home_queue}", created, kind=SpanKind.CONSUMER, attributes={**self._labels, **numbers},
            links=[Link(creator)] if creator.is_valid else [], record_exception=False, set_status_on_exception=False,
        )  # fmt: skip
        self._context = trace.set_span_in_context(self._span, created)
        self._started_ns = time.time_ns()

    def enter(self) -> Callable[[], object]:
        token = contexts.attach(self._context)
        return lambda: contexts.detach(token)

    def released(self) -> None:
        try:
            self._span.add_event("effects.released")
        except Exception as error:
            self._telemetry.failed(error)

    def end(self, settlement: Settlement, *, recorded: bool) -> None:
        try:
            self._end(settlement, recorded)
        except Exception as error:
            self._telemetry.failed(error)

    def _end(self, settlement: Settlement, recorded: bool) -> None:
        labels = {**self._labels, "effects.outcome": settlement.outcome or "returned"}
        if settlement.outcome in _FAILED:
            labels["error.type"] = settlement.error_code or settlement.error_type or "_OTHER"
            self._span.set_status(Status(StatusCode.ERROR, settlement.error_code))
        status = shown_status(settlement.status)
        self._span.set_attributes({**labels, "effects.status": status, "effects.recorded": recorded})
        if settlement.logged_error is not None and self._span.is_recording():
            self._span.record_exception(settlement.logged_error)
        self._span.end(self._started_ns + int(settlement.duration_seconds * 1e9))  # it was recorded a moment later
        if settlement.outcome:
            self._telemetry.consumed.add(1, labels)
            self._telemetry.process_seconds.record(settlement.duration_seconds, labels)


class _NoSpan:
    def enter(self) -> Callable[[], object]:
        return lambda: None

    def released(self) -> None:
        """No span was begun."""

    def end(self, settlement: Settlement, *, recorded: bool) -> None:
        """No span was begun."""


def _attributes(name: str, kind: str, queue: str | None, job_types: set[str]) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM, "messaging.operation.name": name, "messaging.operation.type": kind,
    }  # fmt: skip
    if queue:
        attributes["messaging.destination.name"] = queue
    if len(job_types) == 1:
        attributes["effects.job.type"] = next(iter(job_types))
    return attributes
