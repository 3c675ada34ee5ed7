"""`effects work`: the worker in this terminal, or from cron; and its progress bar."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType

import click
from sqlalchemy import Connection

from effects.app.effects import Effects
from effects.cli import process
from effects.cli.context import Context, pass_context
from effects.cli.options import TimeSpan
from effects.cli.process import signals, standstill
from effects.errors import ConfigurationError
from effects.kit import crashpoints, lazy
from effects.kit.exit_codes import ExitCode
from effects.kit.frames import frame_texts
from effects.kit.logs import frame_places, own_logger
from effects.kit.process import raise_open_files_limit
from effects.kit.text.unsafe import whole_number
from effects.model.settlement import Settlement
from effects.worker import Observer, Worker
from effects.worker.queues.worker_queues import default_slots

with lazy.modules(__name__):
    from rich import console, progress

    from effects.operate import metrics
    from effects.operate.tables import counts, held_up, queue_status

_WORDS = {"succeeded": "done", "failed": "to retry", "dead": "dead", "cancelled": "cancelled"}


class WorkProgress(Observer):
    """A bar on standard error; log lines are printed above it.

    Args:
        total: jobs that are due at the start; None where the worker has no end.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        done = "{task.completed} of {task.total} due" if total is not None else "{task.completed} jobs"
        self._progress = progress.Progress(
            progress.SpinnerColumn(),
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn(done),
            progress.TimeElapsedColumn(),
            console=console.Console(stderr=True),
        )
        self._task = self._progress.add_task("waiting for jobs", total=total)

    def recorded(self, settlements: Sequence[Settlement]) -> None:
        """Count recorded outcomes; called from the settling thread."""
        with self._lock:
            for settlement in settlements:
                if settlement.ends or settlement.status == "failed":
                    self._counts[_WORDS[settlement.status]] += 1
            handled = self._counts.total()
            if self._total is not None:
                self._total = max(self._total, handled)
            words = ", ".join(f"{count:,} {word}" for word, count in self._counts.items())
            self._progress.update(self._task, completed=handled, total=self._total, description=words)

    def __enter__(self) -> WorkProgress:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


_log = own_logger("effects.worker")

_STACKS_MAX = 100  # attempts whose places are logged; a thousand may be on the event loop
_STACK_FRAMES_MAX = 20


@click.command()
@click.option("--drain", is_flag=True, help="Exit when no job is due (for cron).")
@click.option("--max-seconds", type=TimeSpan(min=0, min_open=True), metavar="N",
              help="Time after which --drain starts no more jobs.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME[=THREADS]",
              help="Work only this queue, and effects. Repeatable. Default: every queue.")  # fmt: skip
@click.option("--no-housekeeping", "housekeeping", flag_value=False, default=True,
              help="Do not serve the queue effects: pruning, bulk actions, alerts.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Threads per queue without a setting. Overrides EFFECTS_THREADS.")  # fmt: skip
@click.option("--grace-seconds", type=TimeSpan(min=0, min_open=True), metavar="N",
              help="Time for running handlers to finish when stopped. Overrides EFFECTS_GRACE_SECONDS.")  # fmt: skip
@click.option("--progress/--no-progress", default=None, help="Progress bar on standard error. Default: on a terminal.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="N",
              help="Port for /metrics (Prometheus), /livez and /readyz; 0 picks a free one and logs it.")  # fmt: skip
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Address for the metrics and probes, which need no password.")  # fmt: skip
@pass_context
def work(
    context: Context,
    *,
    drain: bool,
    max_seconds: float | None,
    queues: Sequence[str],
    housekeeping: bool,
    threads: int | None,
    grace_seconds: float | None,
    progress: bool | None,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Run jobs until stopped.

    SIGTERM, SIGHUP or Ctrl-C stops the worker in order; a second signal ends it within 2 seconds. SIGUSR1 and SIGUSR2
    write to the log where each thread and each running job is. Under nohup, SIGHUP is ignored.

    Exit codes: 0 stopped in order, or drained; 1 drained, and at least one job ended dead, or the interpreter stood
    still for a lease, and at least 30 s ("Timeout" and its threads on standard error); 2 error; 3 time ran out before
    everything due was done; 70 a part of the worker died or stalled, 75 too many handlers hang: start a
    fresh process; 143 ended by force, after a second signal.
    """
    if max_seconds is not None and not drain:
        raise click.UsageError("--max-seconds goes with --drain")
    crashpoints.install_from_environment()
    raise_open_files_limit()
    app = context.checked_app if drain else context.waiting_app
    app.settings = replace(
        app.settings,
        threads=threads or app.settings.threads,
        grace_seconds=grace_seconds or app.settings.grace_seconds,
    )
    shown = process.is_on_terminal() if progress is None else progress
    if shown and context.log_level is None:
        own_logger("effects.worker").setLevel(logging.WARNING)  # the bar shows the rest
    bar = WorkProgress(queue_status.due_jobs(app.store) if drain else None) if shown else None
    numbers = None if metrics_port is None else metrics.WorkerMetrics()

    observers: list[Observer] = [] if numbers is None else [numbers]
    if bar is not None:
        observers.append(bar)
    with standstill(app.settings.lease_seconds) as timer:
        worker = Worker(
            app, queues=_queue_threads(app, queues) if queues else None, housekeeping=housekeeping,
            observers=observers, process=timer,
        )  # fmt: skip
        if numbers is not None:
            numbers.observer_errors = worker.observer_errors
        process.resume_garbage()
        serving = nullcontext() if numbers is None else _serving(app, numbers, worker, metrics_port or 0, metrics_host)
        with bar or nullcontext(), serving, signals(worker.stop_directly, partial(_log_stacks, worker)):
            return _drained(app, worker, max_seconds, queues) if drain else worker.run()


def _drained(app: Effects, worker: Worker, max_seconds: float | None, queues: Sequence[str]) -> ExitCode:
    """The drain's exit code; where due jobs are left whose types this app does not know, or that no one serves, 3."""
    result = worker.drain(max_seconds, checked=True)
    if result.exit_code is not ExitCode.DONE or not (result.unknown_jobs or result.counts):
        return result.exit_code
    names = [queue.partition("=")[0].strip() for queue in queues]
    with app.store.read() as connection:
        left = counts.count_unknown_due(app.store, connection, app.job_types.names(), names)
        unserved = [] if names else _unserved(app, connection)
    if left:
        _log.warning("drain.left", extra={"jobs": left, "reason": "their job types are not registered here: see --app"})
    for queue in unserved:
        _log.warning("drain.left", extra={"jobs": queue.jobs, "reason": queue.text, "advice": queue.ends})
    return ExitCode.TIME_RAN_OUT if left or unserved else ExitCode.DONE


def _unserved(app: Effects, connection: Connection) -> list[held_up.HeldUp]:
    """Queues that no drain of this app would serve, nor any worker that is alive."""
    unserved = held_up.read_unserved(app.store, connection, app.settings.lease_seconds, app.queues)
    return [queue for queue in unserved if queue.name not in app.queues]


def _queue_threads(app: Effects, queues: Sequence[str]) -> dict[str, int]:
    """`NAME=THREADS` as given; a bare `NAME` with the number of EFFECTS_QUEUES, else that of its kind."""
    chosen: dict[str, int] = {}
    for queue in queues:
        name, equals, text = (part.strip() for part in queue.partition("="))
        count = whole_number(text) if equals else default_slots(app, name)
        if not name or not count:
            raise click.UsageError(f"--queue is {queue!r}; give NAME or NAME=THREADS, such as emails=8")
        chosen[name] = count
    return chosen


@contextmanager
def _serving(app: Effects, numbers: metrics.WorkerMetrics, worker: Worker, port: int, host: str) -> Iterator[None]:
    """Serve the metrics and the probes."""
    live, ready = worker.why_not_live, worker.why_not_ready
    try:
        server = metrics.MetricsServer(app, numbers, port=port, host=host, live=live, ready=ready)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(f"--metrics-port: {host}:{port} cannot be served: {reason}") from error
    with server:
        _log.info("metrics.served", extra={"host": host, "port": server.port})
        yield


def _log_stacks(worker: Worker) -> None:
    """Log where each thread and each running attempt is now."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        at = None if frame is None else frame_places(frame, _STACK_FRAMES_MAX)
        _log.warning("thread.stack", extra={"named": thread.name, "at": at})
    for attempt in worker.running[:_STACKS_MAX]:
        facts = {"job": attempt.job.id, "type": attempt.job.job_type, "attempt": attempt.number}
        _log.warning("attempt.stack", extra={**facts, "at": " < ".join(frame_texts(attempt.frames()))})
