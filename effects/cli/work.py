"""`effects work`: the worker in this terminal, or from cron."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import click

from effects import crashpoints
from effects.app import Effects
from effects.cli.context import Context, pass_context
from effects.cli.progress import WorkProgress
from effects.errors import ConfigurationError
from effects.metrics import LOOPBACK, MetricsServer, WorkerMetrics
from effects.settlement import Settlement
from effects.store.status import due_jobs
from effects.worker import Worker

_log = logging.getLogger("effects.worker")

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@click.command()
@click.option("--drain", is_flag=True, help="End when nothing is due: the form for cron.")
@click.option("--max-seconds", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="With --drain: start nothing after N seconds.")  # fmt: skip
@click.option("--lane", "lanes", multiple=True, metavar="NAME[=THREADS]",
              help="Serve this lane only; give it again for more. Default: every lane.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N",
              help="Threads of a lane that names none; over EFFECTS_THREADS.")  # fmt: skip
@click.option("--grace-seconds", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="Time for running handlers when told to stop; over EFFECTS_GRACE_SECONDS.")  # fmt: skip
@click.option("--progress/--no-progress", default=None, help="Show a progress bar. Default: on a terminal.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="N",
              help="Serve Prometheus metrics at /metrics on this port; 0 takes a free one and logs it.")  # fmt: skip
@click.option("--metrics-host", default=LOOPBACK, show_default=True, metavar="ADDRESS",
              help="Where to serve them; there is no password.")  # fmt: skip
@pass_context
def work(
    context: Context,
    *,
    drain: bool,
    max_seconds: float | None,
    lanes: Sequence[str],
    threads: int | None,
    grace_seconds: float | None,
    progress: bool | None,
    metrics_port: int | None,
    metrics_host: str,
) -> int:
    """Carry out jobs until told to stop (SIGTERM, Ctrl-C); a second signal ends at once.

    Exit codes: 0 stopped in order, or drained; 1 drained, and at least one job ended dead; 2 an error; 3 the time
    ran out before everything due was done; 75 too many handlers hang: start a fresh process.
    """
    if max_seconds is not None and not drain:
        raise click.UsageError("--max-seconds goes with --drain")
    crashpoints.install_from_environment()
    app = context.app if drain else context.waiting_app
    app.settings = replace(
        app.settings,
        threads=threads or app.settings.threads,
        grace_seconds=grace_seconds or app.settings.grace_seconds,
    )
    shown = sys.stderr.isatty() if progress is None else progress
    if shown and context.log_level is None:
        logging.getLogger("effects.worker").setLevel(logging.WARNING)  # the bar says the rest
    bar = WorkProgress(due_jobs(app.store) if drain else None) if shown else None
    counts = WorkerMetrics()

    def settled(settlement: Settlement) -> None:
        counts.settled(settlement)
        if bar is not None:
            bar.settled(settlement)

    worker = Worker(app, lanes=_lane_threads(app, lanes) if lanes else None, settled=settled)
    with bar or nullcontext(), _serving(app, counts, metrics_port, metrics_host), _stopping(worker.stop):
        return worker.drain(max_seconds).exit_code if drain else worker.run()


def _lane_threads(app: Effects, lanes: Sequence[str]) -> dict[str, int]:
    """`NAME=THREADS` as given; a bare `NAME` with the threads of EFFECTS_LANES, else EFFECTS_THREADS."""
    chosen: dict[str, int] = {}
    for lane in lanes:
        name, equals, count = (part.strip() for part in lane.partition("="))
        if not name or (equals and not (count.isdigit() and int(count) > 0)):
            raise click.UsageError(f"--lane is {lane!r}; give NAME or NAME=THREADS, such as emails=8")
        chosen[name] = int(count) if equals else app.settings.lane_threads().get(name, app.settings.threads)
    return chosen


@contextmanager
def _serving(app: Effects, counts: WorkerMetrics, port: int | None, host: str) -> Iterator[None]:
    """Serve the metrics, if a port was given."""
    if port is None:
        yield
        return
    try:
        server = MetricsServer(app, counts, port=port, host=host)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigurationError(f"--metrics-port: {host}:{port} cannot be served: {reason}") from error
    with server:
        _log.info("metrics.served", extra={"host": host, "port": server.port})
        yield


@contextmanager
def _stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` for each SIGINT and SIGTERM."""
    before = {number: signal.signal(number, lambda *_: stop()) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
