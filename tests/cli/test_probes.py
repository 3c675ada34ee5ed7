"""`/livez` and `/readyz`: what a service manager asks a worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from effects import Effects, enqueue
from effects.operate import metrics
from effects.operate.metrics import MetricsServer, WorkerMetrics
from effects.store.db.deadlines import Bounds
from effects.worker import Worker
from effects.worker.supervisor import DOUBT_SECONDS, PartFault
from tests.peers.proxy import Proxy
from tests.support.processes import fleet
from tests.support.served_metrics import fetch, port_of, serving
from tests.support.waiting import wait_until


@contextmanager
def probed(app: Effects, worker: Worker) -> Iterator[int]:
    with MetricsServer(app, WorkerMetrics(), port=0, live=worker.why_not_live, ready=worker.why_not_ready) as server:
        yield server.port


def answers(port: int) -> tuple[tuple[int, str], tuple[int, str]]:
    live, ready = fetch(port, "/livez"), fetch(port, "/readyz")
    return (live[0], live[2].strip()), (ready[0], ready[2].strip())


def test_a_worker_is_live_and_ready_while_it_works_and_unready_while_it_ends(
    database_url: str, app: Effects, tmp_path: Path
) -> None:
    enqueue("scripted", {"moves": ["wait"]}, effects=app)
    with fleet(database_url, tmp_path) as processes:
        worker = serving(processes)
        wait_until(lambda: port_of(worker.output))
        port = port_of(worker.output)
        wait_until(lambda: answers(port) == ((200, "ok"), (200, "ok")))
        worker.send(signal.SIGTERM)
        wait_until(lambda: answers(port) == ((200, "ok"), (503, "stopping")))


def test_a_worker_that_has_not_started_is_unready(app: Effects) -> None:
    with probed(app, Worker(app)) as port:
        assert answers(port) == ((200, "ok"), (503, "starting"))


def test_a_part_that_stalled_makes_it_unlive(app: Effects) -> None:
    worker = Worker(app)
    with probed(app, worker) as port:
        worker._failed(PartFault("settler", "stalled"))
        assert answers(port) == ((503, "settler stalled"), (503, "settler stalled"))
        worker._coming.set()
        wait_until(worker._shutdown.over.is_set)  # its end would reach into another test


def test_a_supervisor_that_looks_no_more_makes_it_unlive(app: Effects) -> None:
    worker = Worker(app)
    supervisor = worker._context.supervisor
    with probed(app, worker) as port:
        supervisor.begin()
        assert answers(port)[0] == (200, "ok")
        supervisor.stop()
        assert supervisor._thread is not None
        supervisor._thread.join(10)
        supervisor._looked_at -= 2 * DOUBT_SECONDS
        assert answers(port)[0] == (503, "supervisor stalled")


def test_an_outage_makes_it_unready_and_leaves_it_live(app: Effects, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker(app)
    worker._parts.started = True
    with probed(app, worker) as port:
        assert answers(port) == ((200, "ok"), (200, "ok"))
        worker._context.lease.renewed_at -= app.settings.lease_seconds / 2
        live, (status, why) = answers(port)
        assert (live, status) == ((200, "ok"), 503)
        assert "database" in why


@pytest.mark.slow
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_metrics_of_a_database_that_hangs_are_not_waited_for(
    app: Effects, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_BOUNDS", Bounds(lock_seconds=1, seconds=0.1))
    with Proxy(database_url) as proxy:
        through = Effects(proxy.url)
        supervisor = Worker(through)._context.supervisor
        supervisor.begin()
        with MetricsServer(through, WorkerMetrics(), port=0) as server:
            assert fetch(server.port)[0] == 200
            proxy.freeze()
            assert fetch(server.port)[0] == 503
            assert fetch(server.port, "/livez")[0] == 200
        supervisor.stop()
        through.dispose()


def test_a_probe_answers_while_the_database_is_away(tmp_path: Path) -> None:
    app = Effects(f"sqlite:///{tmp_path / 'no' / 'such.db'}")
    with probed(app, Worker(app)) as port:
        assert fetch(port)[0] == 503
        assert fetch(port, "/livez")[0] == 200
        assert fetch(port, "/")[0] == 404
    app.dispose()
