"""The dashboard beside many rows: the server's time of each page, and what twenty open browsers cost the database."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import event

from benchmarks import browsers, fill, servers
from benchmarks.browsers import BROWSERS, OPEN, POLL_SECONDS, SECONDS
from benchmarks.options import Options
from benchmarks.rounds import Goal, Report, Row
from benchmarks.systems import ours
from effects import Effects
from effects.web import Dashboard, PageRequest, Person, dashboard
from effects.web.visit import LIVE_HEADER

WARM_MS, COLD_MS, BROWSERS_PERCENT = 100, 300, 1
VISITS, COLD_VISITS = 20, 3
COUNTING = 202  # the page follows by itself
PAGES = (
    "/", "/?newer=7d", "/needs", "/needs?effect=not_done", "/needs/bulk?do=requeue&effect=not_done", "/decisions",
    "/jobs", "/jobs?status=dead", f"/jobs?type={fill.RARE}", "/jobs/1000", "/numbers", "/numbers?newer=7d",
    "/queues", "/workers", "/schedules", "/limits", "/bulk", "/health", "/audit", "/audit?actor=cli:person-3",
    "/settings", "/email/messages", "/email/messages?status=abandoned", "/email/suppressions", "/webhooks",
    "/webhooks/endpoints/ep_50", "/webhooks/deliveries", "/webhooks/deliveries?status=unknown",
    "/webhooks/events", "/webhooks/events/msg_500", "/reports", "/reports?status=failed",
)  # fmt: skip


def run(options: Options) -> Report:
    """Beside 100,000 live and 1,000,000 ended jobs."""
    return _measure(options, fill.Sizes().scaled(options.scale))


def many(options: Options) -> Report:
    """Beside 1,000,000 live and 10,000,000 ended jobs, and 500,000 deliveries."""
    sizes = fill.Sizes(live=1_000_000, ended=10_000_000, deliveries=500_000)
    return _measure(options, sizes.scaled(options.scale))


def _measure(options: Options, sizes: fill.Sizes) -> Report:
    title = f"milliseconds beside {sizes.live:,} live and {sizes.ended:,} ended jobs, {sizes.deliveries:,} deliveries"
    columns = [f"{database}, {kind}" for database in ("PostgreSQL", "SQLite") for kind in ("p95", "cold", "counted")]
    rows = {page: Row(page, "") for page in PAGES}
    cost = rows["browsers"] = Row(f"{BROWSERS} browsers, % of a core", "")
    report = Report("pages", title, columns, list(rows.values()), decimals=1)
    for database in ("PostgreSQL", "SQLite"):
        options.say(f"filling {database}")
        with _opened(options, database) as url:
            effects = ours.install(url)
            fill.fill(effects, sizes)
            with closing(dashboard(guard=lambda request: Person("ann", role="admin"), effects=effects)) as board:
                for page in PAGES:
                    options.say(f"{database}: {page}")
                    cold, counted = zip(*(_cold(board, page) for _ in range(COLD_VISITS)), strict=True)
                    warm = sorted(_milliseconds(board, page) for _ in range(VISITS))
                    rows[page].add({f"{database}, p95": warm[math.ceil(0.95 * VISITS) - 1]}, f"{database}, p95")
                    rows[page].add({f"{database}, cold": max(cold)}, f"{database}, cold")
                    rows[page].add({f"{database}, counted": max(counted)}, f"{database}, counted")
                percent = _sqlite_percent(board, options.scale) if database == "SQLite" else None
            effects.dispose()
            if percent is None:
                percent, note = browsers.postgresql_percent(options.server, url, options.scale)
                report.notes.append(note)
            cost.add({f"{database}, p95": percent}, f"{database}, p95")
    report.goals = [
        Goal(f"{page}, {column}", row.median(column), COLD_MS if column.endswith("cold") else WARM_MS, at_least=False)
        for page, row in rows.items()
        for column in columns
        if page in PAGES and not column.endswith("counted")
    ] + [
        Goal(f"browsers, {database}", cost.median(f"{database}, p95"), BROWSERS_PERCENT, at_least=False)
        for database in ("PostgreSQL", "SQLite")
    ]
    return report


def _cold(board: Dashboard, page: str) -> tuple[float, float]:
    """Milliseconds to the first answer where nothing was read for another page, and to the page with its counts."""
    board.site.readings.forget()
    begun = time.perf_counter()
    _visit(board, page)
    first = (time.perf_counter() - begun) * 1000
    return first, first + _milliseconds(board, page)


def _milliseconds(board: Dashboard, page: str) -> float:
    """The time until this process has answered with the page itself."""
    begun = time.perf_counter()
    while (status := _visit(board, page)) == COUNTING:
        pass
    elapsed = (time.perf_counter() - begun) * 1000
    assert status in (200, 404), (page, status)
    return elapsed


def _visit(board: Dashboard, page: str, **headers: str) -> int:
    path, _, query = page.partition("?")
    return board.handle(PageRequest("GET", path, query=query, headers={"host": "bench", **headers})).status


def _sqlite_percent(board: Dashboard, scale: float) -> float:
    """The share of the time that statements take in this process, where the database is; as long as PostgreSQL's."""
    polls = max(2, round(SECONDS * scale / POLL_SECONDS))
    for page in OPEN:
        _milliseconds(board, page)
    with _seconds_of(board.site.app) as spent, _seconds_of(board.site.counting) as counting:
        begun = time.monotonic()
        for poll in range(polls):
            for browser in range(BROWSERS):
                _visit(board, OPEN[browser % len(OPEN)], **{LIVE_HEADER: "1"})
            time.sleep(max(0.0, begun + (poll + 1) * POLL_SECONDS - time.monotonic()))
        elapsed = time.monotonic() - begun
    return 100 * (sum(spent) + sum(counting)) / elapsed


@contextmanager
def _seconds_of(effects: Effects) -> Iterator[list[float]]:
    """The seconds of each statement on these connections."""
    spent: list[float] = []

    def before(connection: Any, *_: object) -> None:
        connection.info["begun"] = time.perf_counter()

    def after(connection: Any, *_: object) -> None:
        spent.append(time.perf_counter() - connection.info["begun"])

    for engine in effects.store.engines:
        event.listen(engine, "before_cursor_execute", before)
        event.listen(engine, "after_cursor_execute", after)
    try:
        yield spent
    finally:
        for engine in effects.store.engines:
            event.remove(engine, "before_cursor_execute", before)
            event.remove(engine, "after_cursor_execute", after)


@contextmanager
def _opened(options: Options, database: str) -> Iterator[str]:
    if database == "PostgreSQL":
        with options.server.database() as url:
            yield url
    else:
        with servers.sqlite_file() as path:
            yield str(path)
