"""`effects work`: the worker in this terminal, or from cron."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import click

from effects import crashpoints
from effects.app import Effects
from effects.cli import garbage
from effects.cli.context import Context, pass_context
from effects.cli.options import TimeSpan
from effects.cli.progress import WorkProgress
from effects.errors import ConfigurationError
from effects.exit_codes import ExitCode
from effects.model.settlement import Settlement
from effects.observation.metrics import LOOPBACK, MetricsServer, WorkerMetrics
from effects.process import open_files
from effects.store.operator.counts import count_unknown_due
from effects.store.operator.queue_status import due_jobs
from effects.text.digits import whole_number
from effects.worker import Worker
from effects.worker.queues.worker_queues import default_slots

_log = logging.getLogger("effects.worker")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option("--drain", is_flag=True, help="Exit when no job is due (for cron).")
@click.option("--max-seconds", type=TimeSpan(min=0, min_open=True), metavar="N",
              help="Time after which --drain starts no more jobs.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME[=THREADS]",
              help="Work only this queue. Repeatable. Default: every queue.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Threads per queue without a setting. Overrides EFFECTS_THREADS.")  # fmt: skip
@click.option("--grace-seconds", type=TimeSpan(min=0, min_open=True), metavar="N",
              help="Time for running handlers to finish when stopped. Overrides EFFECTS_GRACE_SECONDS.")  # fmt: skip
@click.option("--progress/--no-progress", default=None, help="Progress bar on standard error. Default: on a terminal.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="N",
              help="Port for /metrics (Prometheus), /livez and /readyz; 0 picks a free one and logs it.")  # fmt: skip
@click.option("--metrics-host", default=LOOPBACK, show_default=True, metavar="ADDRESS",
              help="Address for the metrics and probes, which need no password.")  # fmt: skip
@pass_context
def work(
    context: Context,
    *,
    drain: bool,
    max_seconds: float | None,
    queues: Sequence[str],
    threads: int | None,
    grace_seconds: float | None,
    progress: bool | None,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Run jobs until stopped.

    SIGTERM or Ctrl-C stops the worker in order; a second signal ends it within 2 seconds.

    Exit codes: 0 stopped in order, or drained; 1 drained, and at least one job ended dead; 2 error; 3 time ran out
    before everything due was done; 70 a part of the worker died or stalled, 75 too many handlers hang: start a
    fresh process; 143 ended by force, after a second signal.
    """
    if max_seconds is not None and not drain:
        raise click.UsageError("--max-seconds goes with --drain")
    crashpoints.install_from_environment()
    open_files.raise_limit()
    app = context.checked_app if drain else context.waiting_app
    app.settings = replace(
        app.settings,
        threads=threads or app.settings.threads,
        grace_seconds=grace_seconds or app.settings.grace_seconds,
    )
    shown = sys.stderr.isatty() if progress is None else progress
    if shown and context.log_level is None:
        logging.getLogger("effects.worker").setLevel(logging.WARNING)  # the bar shows the rest
    bar = WorkProgress(due_jobs(app.store) if drain else None) if shown else None
    counts = WorkerMetrics()

    def settled(settlement: Settlement) -> None:
        counts.settled(settlement)
        if bar is not None:
            bar.settled(settlement)

    worker = Worker(
        app, queues=_queue_threads(app, queues) if queues else None, settled=settled, checked=drain, hard_end=os._exit
    )
    garbage.resume()
    with bar or nullcontext(), _serving(app, counts, worker, metrics_port, metrics_host), _stopping(worker.stop):
        return _drained(app, worker, max_seconds, queues) if drain else worker.run()


def _drained(app: Effects, worker: Worker, max_seconds: float | None, queues: Sequence[str]) -> ExitCode:
    """The drain's exit code; where due jobs are left because this app does not know their types, 3."""
    result = worker.drain(max_seconds)
    if result.exit_code is not ExitCode.DONE or not (result.unknown_types or result.counts):
        return result.exit_code
    names = [queue.partition("=")[0].strip() for queue in queues]
    with app.store.read() as connection:
        left = count_unknown_due(app.store, connection, app.job_types.names(), names)
    if not left:
        return ExitCode.DONE
    _log.warning("drain.left", extra={"jobs": left, "reason": "their job types are not registered here: see --app"})
    return ExitCode.TIME_RAN_OUT


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
def _serving(app: Effects, counts: WorkerMetrics, worker: Worker, port: int | None, host: str) -> Iterator[None]:
    """Serve the metrics and the probes, if a port was given."""
    if port is None:
        yield
        return
    try:
        server = MetricsServer(app, counts, port=port, host=host, live=worker.why_not_live, ready=worker.why_not_ready)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(f"--metrics-port: {host}:{port} cannot be served: {reason}") from error
    with server:
        _log.info("metrics.served", extra={"host": host, "port": server.port})
        yield


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGINT and SIGTERM, on a thread of its own.

    Python runs a signal's handler in the main thread, between two of its steps. One that hangs in a database's library
    takes none; the number that C writes to the wake-up socket arrives all the same.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in STOP_SIGNALS}
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def relay() -> None:
        while numbers := reader.recv(64):
            for number in numbers:
                if number in STOP_SIGNALS:
                    stop()

    thread = threading.Thread(target=relay, name="effects-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.close()
        thread.join(1.0)
        reader.close()
