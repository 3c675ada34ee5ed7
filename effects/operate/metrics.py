"""Metrics in the text format of Prometheus (exposition format 0.0.4), and the probes of a worker.

`effects metrics` prints the metrics, `effects work --metrics-port` serves both.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from effects.app.effects import Effects
from effects.errors import StoreRejected, StoreUnavailable
from effects.kit import logs
from effects.kit.logs import own_logger
from effects.kit.process import Newest
from effects.kit.text.unsafe import without_unsafe
from effects.kit.text.wording import shown_status
from effects.model.job import LIVE
from effects.model.settlement import Execution, Settlement
from effects.operate.tables.counts import Numbers, read_numbers
from effects.store.db.deadlines import BoundedLock, Bounds
from effects.store.db.engine import LOCK_SECONDS
from effects.version import VERSION

Values: TypeAlias = tuple[str, ...]  # of labels
Probe: TypeAlias = Callable[[], str | None]  # why not, or None if all is well

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_TEXT = "text/plain; charset=utf-8"
LOOPBACK = "127.0.0.1"
NAMES_MAX = 10_000  # of job types; rows of others may name any
_REQUEST_SECONDS = 5.0
_UNFINISHED_MAX = 16  # connections that have brought no whole request
_BOUNDS = Bounds(LOCK_SECONDS, _REQUEST_SECONDS)  # a worker cuts a reading that is overdue

_log = own_logger("effects.metrics")


@dataclass(frozen=True, slots=True)
class Sample:
    """One value; `suffix` is `_sum` or `_count` in a summary."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its help and its samples."""

    name: str
    kind: Literal["gauge", "counter", "summary"]
    help: str
    samples: Sequence[Sample]


def render(families: Iterable[Family]) -> str:
    """The exposition: for each family its HELP, its TYPE and its samples."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def database_families(app: Effects) -> list[Family]:
    """Figures of all workers, from the database.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    return list(_families(read_numbers(app.store, app.settings.lease_seconds), app))


class WorkerMetrics:
    """What this worker did since it started, as an observer of its outcomes.

    Attributes:
        observer_errors: class of an observer → how often it has raised.
    """

    observer_errors: Mapping[str, int] = {}

    def __init__(self) -> None:
        self._attempts = Newest[tuple[str, str], int](NAMES_MAX)
        self._seconds = Newest[str, float](NAMES_MAX)
        self._lock = threading.Lock()

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        """Count recorded outcomes. Attempts that went back without running are not counted."""
        with self._lock:
            for settlement in settlements:
                if settlement.outcome:
                    name = settlement.job.job_type
                    self._attempts[name, settlement.outcome] = self._attempts.get((name, settlement.outcome), 0) + 1
                    self._seconds[name] = self._seconds.get(name, 0.0) + settlement.duration_seconds

    def released(self, executions: Sequence[Execution]) -> None:
        """No metric."""

    def refused(self, settlements: Sequence[Settlement]) -> None:
        """No metric: nothing of them is recorded."""

    def families(self) -> list[Family]:
        with self._lock:
            attempts, seconds = dict(self._attempts), dict(self._seconds)
        counts: Counter[str] = Counter()
        for (name, _), count in attempts.items():
            counts[name] += count
        return [
            Family(
                "effects_worker_attempts_total",
                "counter",
                "Attempts that this worker recorded, by their outcome.",
                [Sample(n, {"job_type": name, "outcome": word}) for (name, word), n in sorted(attempts.items())],
            ),
            Family(
                "effects_worker_attempt_seconds",
                "summary",
                "How long this worker's attempts took.",
                [
                    sample
                    for name in sorted(counts)
                    for sample in (
                        Sample(seconds.get(name, 0.0), {"job_type": name}, "_sum"),
                        Sample(counts[name], {"job_type": name}, "_count"),
                    )
                ],
            ),
            Family(
                "effects_observer_errors_total",
                "counter",
                "How often an observer of this worker raised: a log, a metric, a hook's queue or one of the app.",
                [Sample(n, {"observer": name}) for name, n in sorted(self.observer_errors.items())],
            ),
            Family(
                "effects_log_errors_total",
                "counter",
                "How often a log handler, filter or record factory of the app raised.",
                [Sample(n, {"handler": name}) for name, n in sorted(logs.failures.items())],
            ),
        ]


class MetricsServer:
    """Serves `GET /metrics`, `/livez` and `/readyz`, in threads of its own, for as long as the `with` block lasts.

    Bound to loopback by default: the numbers name job types and queues, and there is no password. While the
    database is unavailable, or has not answered for 5 s, `/metrics` answers 503. A probe answers 200 `ok`, or 503 with
    the reason; it asks the database nothing.

    Args:
        port: 0 takes a free one; see `port`.
        live, ready: what the probes ask; must wait for nothing.

    Raises:
        OSError: the port is taken, or the address is not ours.
    """

    def __init__(
        self,
        app: Effects,
        worker: WorkerMetrics,
        *,
        port: int,
        host: str = LOOPBACK,
        live: Probe = lambda: None,
        ready: Probe = lambda: None,
    ) -> None:
        self._server = _Server((host, port), _Handler)
        self._server.app, self._server.worker = app, worker
        self._server.probes = {"/livez": live, "/readyz": ready}
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="effects-metrics", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    app: Effects
    worker: WorkerMetrics
    probes: Mapping[str, Probe]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.reading = BoundedLock(_REQUEST_SECONDS)  # concurrent requests use one connection of the pool, not all
        self._unfinished: dict[socket.socket, float] = {}  # when each must have brought a whole request; oldest first
        self._lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give it a thread, and 5 s for all of its request. Of too many, the oldest is closed."""
        with self._lock:
            self._unfinished[request] = time.monotonic() + _REQUEST_SECONDS
        self._close(over=_UNFINISHED_MAX)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Called ten times a second."""
        self._close(over=0, until=time.monotonic())

    def finished(self, request: socket.socket) -> None:
        """It has brought a whole request, or has ended."""
        with self._lock:
            self._unfinished.pop(request, None)

    def _close(self, over: int, until: float = float("inf")) -> None:
        """Its thread reads the end, and closes it."""
        with self._lock:
            while len(self._unfinished) > over and next(iter(self._unfinished.values())) <= until:
                request = next(iter(self._unfinished))
                del self._unfinished[request]
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:
        self.finished(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Log a disconnected client or a failed reading in one line and continue."""
        error = sys.exc_info()[1]
        _log.warning("metrics.failed", extra={"error": type(error).__name__})


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_SECONDS  # for a peer that reads nothing

    def do_GET(self) -> None:
        self.server.finished(self.connection)
        path = self.path.partition("?")[0]
        if (probe := self.server.probes.get(path)) is not None:
            why = probe()
            self._answer(200 if why is None else 503, _TEXT, f"{why or 'ok'}\n")
        elif path == "/metrics":
            self._answer_metrics()
        else:
            self._answer(404, _TEXT, "the metrics are at /metrics, the probes at /livez and /readyz\n")

    def _answer_metrics(self) -> None:
        try:
            app = self.server.app
            with self.server.reading, app.store.within(_BOUNDS):
                families = [*database_families(app), *self.server.worker.families()]
        except StoreUnavailable:
            self._answer(503, _TEXT, "the database cannot be reached\n")
            return
        except StoreRejected:
            self._answer(503, _TEXT, "the database rejects a statement: see `effects doctor`\n")
            return
        self._answer(200, CONTENT_TYPE, render(families))

    def _answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """A scrape is no event."""


def _with_zeros(labels: Sequence[str], expected: Iterable[Values], counts: Mapping[Values, float]) -> list[Sample]:
    """A sample for each of the expected values, at zero too: a series that vanishes would keep an autoscaler up."""
    by_values = {**dict.fromkeys(expected, 0.0), **counts}
    return [Sample(count, dict(zip(labels, values, strict=True))) for values, count in sorted(by_values.items())]


def _families(numbers: Numbers, app: Effects) -> Iterator[Family]:
    job_types, names = list(app.job_types), app.job_types.names()
    statuses, effects = [shown_status(status) for status in LIVE], ("unknown", "not_done")
    queues = [(queue,) for queue in numbers.served.union(app.queues)]
    yield Family("effects_build_info", "gauge", "The version of effects.", [Sample(1, {"version": VERSION})])
    yield Family(
        "effects_jobs",
        "gauge",
        "Live jobs.",
        _with_zeros(
            ("job_type", "queue", "status"),
            [(job_type.name, job_type.queue, status) for status in statuses for job_type in job_types],
            {(count.job_type, count.queue, count.status): count.jobs for count in numbers.live},
        ),
    )
    yield Family(
        "effects_due_jobs",
        "gauge",
        "Jobs that could start now, paused and capped ones included.",
        _with_zeros(("queue",), queues, {(count.queue,): count.jobs for count in numbers.due}),
    )
    yield Family(
        "effects_oldest_due_seconds",
        "gauge",
        "How long the oldest due job of a queue has waited.",
        _with_zeros(("queue",), queues, {(count.queue,): count.oldest_seconds for count in numbers.due}),
    )
    yield Family(
        "effects_unresolved_jobs",
        "gauge",
        "Jobs that wait for a person: dead, or their effect may have happened.",
        _with_zeros(
            ("job_type", "effect"),
            [(name, effect) for name in names for effect in effects],
            {(count.job_type, effects[not count.unknown]): count.jobs for count in numbers.unresolved},
        ),
    )
    yield Family(
        "effects_dead_jobs_last_hour",
        "gauge",
        "Jobs that died within the last hour.",
        _with_zeros(
            ("job_type",), [(name,) for name in names], {(count.job_type,): count.jobs for count in numbers.dead}
        ),
    )
    yield from _bulk_families(numbers)
    yield Family("effects_paused_limits", "gauge", "Limit keys that are paused.", [Sample(numbers.paused_limits)])
    yield Family("effects_paused_queues", "gauge", "Queues that are paused.", [Sample(numbers.paused_queues)])
    yield from _failover_families(numbers)
    yield from _worker_families(numbers)


def _worker_families(numbers: Numbers) -> Iterator[Family]:
    yield Family(
        "effects_workers",
        "gauge",
        "Workers: alive; idle, which are alive and have not worked for a lease; silent for longer than a lease.",
        [
            Sample(numbers.workers.alive, {"state": "alive"}),
            Sample(numbers.workers.idle, {"state": "idle"}),
            Sample(numbers.workers.silent, {"state": "silent"}),
        ],
    )
    yield Family(
        "effects_workers_failed_last_hour",
        "gauge",
        "Workers that ended by a fault within the last hour, at most 50.",
        [Sample(numbers.workers.failed)],
    )
    yield Family(
        "effects_oldest_unsettled_seconds",
        "gauge",
        "The age of the oldest outcome that a living worker has not written.",
        [Sample(numbers.workers.oldest_unsettled_seconds)],
    )


def _failover_families(numbers: Numbers) -> Iterator[Family]:
    yield Family(
        "effects_unresolved_failovers",
        "gauge",
        "Failovers that need a person: orphans, or workers that did not compare what they remember.",
        [Sample(numbers.failovers.failovers)],
    )
    yield Family(
        "effects_orphans",
        "gauge",
        "Effects that arrived, or may have, of jobs that these failovers lost.",
        [Sample(numbers.failovers.orphans)],
    )


def _bulk_families(numbers: Numbers) -> Iterator[Family]:
    bulks = {count.status: count for count in numbers.bulks}
    yield Family(
        "effects_bulk_actions",
        "gauge",
        "Bulk actions that have not ended: running; stopped, on which no job works any more.",
        [Sample(bulks[name].bulks if name in bulks else 0, {"status": name}) for name in ("running", "stopped")],
    )
    yield Family(
        "effects_bulk_jobs",
        "gauge",
        "Jobs of bulk actions that have not ended: expected by their previews; done, which were acted on; refused.",
        [
            Sample(sum(getattr(count, name) for count in numbers.bulks), {"count": name})
            for name in ("expected", "done", "refused")
        ],
    )


def _lines(family: Family) -> Iterator[str]:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {family.name} {text}"
    yield f"# TYPE {family.name} {family.kind}"
    for sample in family.samples:
        labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
        yield f"{family.name}{sample.suffix}{f'{{{labels}}}' if labels else ''} {sample.value:.17g}"


def _escaped(value: str) -> str:
    return without_unsafe(value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
