"""Goal: no list and no count of an operator reads a table that grows with time.

Method: what the benchmarks ask is asked of the rows that they fill, fewer of them. PostgreSQL explains each statement
with sequential scans forbidden, so that one remains only where no index serves; SQLite's plans do not depend on sizes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import msgspec
import pytest

from benchmarks import lists, pages
from benchmarks.fill import Sizes, fill
from effects import Effects
from effects.operate.bulk import BulkStarted, carry_out, find_bulk, preview
from effects.operate.tables.audit import audit
from effects.operate.tables.bulk_rows import ChunkActor
from effects.operate.tables.bulk_selection import BulkAction
from effects.operate.tables.dead_letters import DeadFilters
from effects.operate.tables.job_list import Filters
from effects.operate.tables.queue_status import SHOWN_MAX, read_status
from effects.store.db.sql import Window
from effects.web import PageRequest, Person, dashboard
from tests.conftest import AppFactory
from tests.support.manual_workers import run_sql
from tests.support.query_plans import recorded, rows_touched

SIZES = Sizes(
    live=200,
    ended=4_000,
    deliveries=2_000,
    limit_keys=100,
    unresolved=1_000,
    emails=1_000,
    entries=1_000,
    reports=1_000,
    minutes=60,
    hours=24,
)
GROWING = (  # of those that are filled
    "effects_audit_log", "effects_delivered_webhooks", "effects_effect_ledger", "effects_job_actions",
    "effects_job_attempts", "effects_job_history", "effects_report_runs", "effects_rollups", "effects_samples",
    "effects_sent_emails", "effects_webhook_events",
)  # fmt: skip
# The newest rows in the order of an index, without a filter: the page's LIMIT ends the walk. SQLite calls that a scan.
WALKS = (
    "webhooks events", "dead list --resolved", "dead list --resolved --type, none", "email list",
    "email list --status, none", "reports list", "log",
)  # fmt: skip


@pytest.fixture
def app(app_factory: AppFactory) -> Effects:
    app = app_factory()
    fill(app, SIZES)
    return app


def _scans(app: Effects, statement: str, parameters: Any) -> Iterator[str]:
    """What the plan reads in full of a growing table."""
    with app.engine.connect() as connection:
        if not app.store.is_postgresql:
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).fetchall()
            aliases = {alias: table for table, alias in re.findall(r"(effects_\w+) AS (\w+)", statement)}
            scanned = [row.detail.split()[1] for row in plan if row.detail.startswith("SCAN ")]
            yield from (name for name in scanned if aliases.get(name, name) in GROWING)
            return
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        explained = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", parameters).scalar()
        plan = (json.loads(explained) if isinstance(explained, str) else explained)[0]["Plan"]
        yield from _unbounded(plan, under_limit=False)


def _unbounded(node: dict[str, Any], *, under_limit: bool) -> Iterator[str]:
    """The first row of an index, without a filter, is no scan."""
    bounded = "Index Cond" in node or "Recheck Cond" in node or (under_limit and "Filter" not in node)
    if node.get("Relation Name") in GROWING and (node["Node Type"] == "Seq Scan" or not bounded):
        yield f"{node['Node Type']} {node['Relation Name']}"
    for child in node.get("Plans", []):
        ends = node["Node Type"] == "Limit" or (under_limit and node["Node Type"] == "Incremental Sort")
        yield from _unbounded(child, under_limit=ends)


def test_the_benchmarks_rows_pass_the_audit(app: Effects) -> None:
    assert audit(app.store, app.ledgers) == []


def test_no_query_scans_a_growing_table(app: Effects) -> None:
    scans = []
    for name, question in lists.QUESTIONS.items():
        with recorded(app) as statements:
            question(app)
        assert statements, name
        if app.store.is_postgresql or name not in WALKS:
            scans += [(name, scan) for statement in statements for scan in _scans(app, *statement)]

    assert scans == []


BULK_ACTIONS = (
    (BulkAction("requeue"), DeadFilters()),
    (BulkAction("ignore"), DeadFilters(job_type="webhook.deliver", text="no", window=Window(older=1))),
    (BulkAction("requeue"), Filters(status="dead", job_type="webhook.deliver")),
    (BulkAction("requeue"), Filters(worker="none")),
    (BulkAction("cancel"), Filters(job_type="webhook.deliver")),
)


def test_no_chunk_of_a_bulk_action_scans_a_growing_table(app: Effects) -> None:
    scans = []
    for action, filters in BULK_ACTIONS:
        with recorded(app) as statements:
            previewed = msgspec.structs.replace(preview(action, filters, effects=app), job_ids=None)
            started = carry_out(previewed, actor="ann", reason="because", effects=app)
            assert isinstance(started, BulkStarted)
            job_id, bulk_id = started.job_id, started.bulk_id
            ChunkActor(app.store, app.job_types, app.ledgers, bulk_id=bulk_id, job_id=job_id).act(2)
            find_bulk(bulk_id, effects=app)
        selecting = [statement for statement in statements if statement[0].lstrip().startswith("SELECT")]
        assert selecting
        scans += [(action.name, scan) for statement in selecting for scan in _scans(app, *statement)]
    assert scans == []


def test_status_reads_the_live_jobs_a_few_times_however_many_keys_are_paused(app: Effects) -> None:
    if not app.store.is_postgresql:
        pytest.skip("SQLite does not say how many rows a plan touches")
    run_sql(app, f"DELETE FROM {app.store.sql.unresolved}")
    keys = f"SELECT limit_key FROM {app.store.sql.limits} ORDER BY limit_key LIMIT {SHOWN_MAX}"
    paused_until = app.store.sql.after("600")
    run_sql(app, f"UPDATE {app.store.sql.limits} SET paused_until = {paused_until} WHERE limit_key IN ({keys})")
    with recorded(app) as statements:
        held_up = read_status(app.store, 60.0, app.job_types, app.queues).held_up
        assert sum(held.kind == "limit_paused" for held in held_up) == SHOWN_MAX
    live = [statement for statement in statements if "effects_jobs" in statement[0]]
    assert rows_touched(app, live) < 6 * SIZES.live


# Walks of an index in the order of a page, without a filter, as above; `/health` asks what `effects doctor` asks.
PAGE_WALKS = (
    "/jobs",
    "/jobs?status=dead",
    "/jobs?type=bench.rare",
    "/webhooks/events",
    "/email/messages",
    "/email/messages?status=abandoned",
    "/reports",
    "/audit",
    "/health",
)


@pytest.mark.slow
def test_no_page_of_the_dashboard_scans_a_growing_table(app: Effects) -> None:
    board = dashboard(guard=lambda request: Person("ann", role="admin"), effects=app)
    scans = []
    with closing(board):
        board.site.readings.patience = 60.0
        for page in pages.PAGES:
            board.site.readings.forget()
            path, _, query = page.partition("?")
            with recorded(board.site.app) as statements, recorded(board.site.counting) as counting:
                assert board.handle(PageRequest("GET", path, query=query)).status in (200, 404), page
            statements += counting
            selecting = [statement for statement in statements if statement[0].lstrip().startswith(("SELECT", "WITH"))]
            assert selecting or page == "/settings", page
            if page not in PAGE_WALKS or (app.store.is_postgresql and page != "/health"):
                scans += [(page, scan) for statement in selecting for scan in _scans(app, *statement)]
    assert scans == []
