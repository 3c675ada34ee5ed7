"""What people ask, beside a year's rows: how long each list and each count takes, warm."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

from sqlalchemy import text

from benchmarks import fill, servers
from benchmarks.options import Options
from benchmarks.rounds import Goal, Report, Row
from benchmarks.systems import ours
from effects import Effects
from effects.operate.evidence import find_evidence
from effects.operate.stats import read_stats
from effects.operate.tables.actions import LogFilters, list_entries
from effects.operate.tables.counts import count_due, read_numbers
from effects.operate.tables.dead_letters import DeadFilters, count_causes, list_dead
from effects.operate.tables.job_list import Filters, list_jobs
from effects.operate.tables.limit_status import list_limits
from effects.operate.tables.queue_status import read_status
from effects.store.db.sql import Window
from effects_email.admin import list_emails
from effects_reports.api import find_reports
from effects_reports.tables.runs import RunFilters
from effects_webhooks import ANY_TENANT, list_deliveries, list_events

Question: TypeAlias = Callable[[Effects], object]

GOAL_MS, LIMITS_MS, NONE_OPEN_MS = 100, 200, 5
REPEATS = 5


def _limits(effects: Effects) -> object:
    with effects.store.read() as connection:
        return list_limits(effects.store, connection)


def _due(effects: Effects) -> object:
    with effects.store.read() as connection:
        return count_due(effects.store, connection)


def _causes(effects: Effects) -> object:
    with effects.store.read() as connection:
        return count_causes(effects.store, connection)


def _jobs(**filters: Any) -> Question:
    return lambda effects: list_jobs(effects.store, effects.ledgers, Filters(**filters))


def _dead(**filters: Any) -> Question:
    return lambda effects: list_dead(effects.store, effects.ledgers, DeadFilters(**filters))


def _deliveries(**filters: Any) -> Question:
    return lambda effects: list_deliveries(effects=effects, **filters)


def _events(**filters: Any) -> Question:
    return lambda effects: list_events(effects=effects, **filters)


def _emails(**filters: Any) -> Question:
    return lambda effects: list_emails(effects, **filters)


def _reports(**filters: Any) -> Question:
    return lambda effects: find_reports(effects, RunFilters(**filters))


def _log(**filters: Any) -> Question:
    return lambda effects: list_entries(effects.store, LogFilters(**filters))


OLD = Window(older=86_400.0)
QUESTIONS: Mapping[str, Question] = {
    "status": lambda effects: read_status(effects.store, 60.0, effects.job_types, effects.queues),
    "due jobs": _due,
    "limits list": _limits,
    "jobs list": _jobs(),
    "jobs list --type, rare": _jobs(job_type=fill.RARE),
    "jobs list --type, none": _jobs(job_type="no.such"),
    "jobs list --status dead": _jobs(status="dead"),
    "jobs list --key": _jobs(key=fill.KEY),
    "jobs list --code": _jobs(error_code="code_3"),
    "jobs list --text, none": _jobs(text="no such text"),
    "jobs list --word, none": _jobs(word="such"),
    "jobs list --limit-key": _jobs(limit_key="webhook:ep_50"),
    "jobs list --group": _jobs(group_key="group-50"),
    "jobs list --tenant": _jobs(limit_keys=("webhook:ep_50", "webhook:ep_51")),
    "jobs list --worker": _jobs(worker="w"),
    "jobs list --worker, none": _jobs(worker="no.such"),
    "jobs list --older": _jobs(window=OLD, queue="default"),
    "jobs list --before": _jobs(before=500_000, job_type="no.such"),
    "webhooks deliveries": _deliveries(tenant=ANY_TENANT),
    "webhooks deliveries --endpoint": _deliveries(tenant=ANY_TENANT, endpoint_id="ep_50"),
    "webhooks deliveries --endpoint, quiet": _deliveries(tenant=ANY_TENANT, endpoint_id=fill.QUIET_ENDPOINT),
    "webhooks deliveries --event": _deliveries(tenant=ANY_TENANT, event_id="msg_500"),
    "webhooks deliveries --status": _deliveries(tenant=ANY_TENANT, state="unknown"),
    "webhooks deliveries --status, none": _deliveries(tenant=ANY_TENANT, state="abandoned"),
    "webhooks deliveries --tenant": _deliveries(tenant="tenant-50"),
    "webhooks deliveries --tenant, quiet": _deliveries(tenant=fill.QUIET_TENANT),
    "webhooks events": _events(tenant=ANY_TENANT),
    "webhooks events --tenant": _events(tenant="tenant-50"),
    "webhooks events --tenant, quiet": _events(tenant=fill.QUIET_TENANT),
    "webhooks events --before": _events(tenant="tenant-50", before="msg_50"),
    "email list": _emails(),
    "email list ADDRESS": _emails(address=fill.ADDRESS),
    "email list ADDRESS --status": _emails(address=fill.ADDRESS, status="done"),
    "email list --key": _emails(key=fill.EMAIL_KEY),
    "email list --status, none": _emails(status="abandoned"),
    "email list --older": _emails(window=OLD),
    "email list --before": _emails(before=fill.EMAIL_KEY),
    "reports list": _reports(),
    "reports list --report": _reports(report=fill.REPORT),
    "reports list --status": _reports(state="failed"),
    "reports list --status, none": _reports(state="planning"),
    "reports list --key": _reports(key=fill.REPORT_KEY),
    "reports list --older": _reports(window=OLD),
    "reports list --before": _reports(before="run_500", report=fill.REPORT),
    "log": _log(),
    "log --actor": _log(actor="cli:person-3"),
    "log --action": _log(action="pause"),
    "log --subject": _log(subject_kind="limit", subject="500"),
    "log --job, none": _log(subject_kind="job", subject="0"),
    "log --older": _log(window=OLD),
    "log --before": _log(before=500, actor="cli:person-3"),
    "stats": lambda effects: read_stats(effects.store),
    "stats --newer 2d": lambda effects: read_stats(effects.store, Window(newer=2 * 86_400.0), queue="default"),
    "stats --newer 30d": lambda effects: read_stats(effects.store, Window(newer=30 * 86_400.0)),
    "metrics": lambda effects: read_numbers(effects.store, 60.0),
    "why": lambda effects: find_evidence(effects, fill.KEY),
    "dead causes": _causes,
    "dead list": _dead(),
    "dead list --code": _dead(error_code="code_3"),
    "dead list --text": _dead(text="of the day"),
    "dead list --limit-key": _dead(limit_key="ep_50"),
    "dead list --resolved": _dead(closed=True),
    "dead list --resolved --type, none": _dead(closed=True, job_type="no.such"),
    "dead list --type, none": _dead(job_type="no.such"),
    "dead list --before": _dead(before=fill.UNRESOLVED_JOB),
    "dead list --older": _dead(window=OLD),
}


def run(options: Options) -> Report:
    """Both databases are filled once; a round asks every question `REPEATS` times and takes the median."""
    sizes = fill.Sizes().scaled(options.scale)
    title = f"milliseconds beside {sizes.live:,} live and {sizes.ended:,} ended jobs, {sizes.deliveries:,} deliveries"
    rows = {name: Row(name, "") for name in QUESTIONS}
    none_open = rows["dead list, none unresolved"] = Row("dead list, none unresolved", "")
    report = Report("lists", title, list(_DATABASES), list(rows.values()), decimals=1)
    for database, opened in _DATABASES.items():
        options.say(f"filling {database}")
        with opened(options) as url:
            effects = ours.install(url)
            fill.fill(effects, sizes)
            for _ in range(options.rounds):
                for name, question in QUESTIONS.items():
                    options.say(f"{database}: {name}")
                    rows[name].add({database: _median_ms(effects, question)}, database)
            with effects.store.begin() as connection:
                connection.execute(text("DELETE FROM effects_unresolved"))
            for _ in range(options.rounds):
                none_open.add({database: _median_ms(effects, _dead())}, database)
            effects.dispose()
    report.goals = [
        Goal(f"{name}, {database}", row.median(database), _goal(name), at_least=False)
        for name, row in rows.items()
        for database in _DATABASES
    ]
    return report


def _goal(question: str) -> int:
    return {"limits list": LIMITS_MS, "dead list, none unresolved": NONE_OPEN_MS}.get(question, GOAL_MS)


def _median_ms(effects: Effects, question: Question) -> float:
    question(effects)
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        question(effects)
        times.append((time.perf_counter() - begun) * 1000)
    return statistics.median(times)


@contextmanager
def _sqlite(_options: Options) -> Iterator[str]:
    with servers.sqlite_file() as path:
        yield str(path)


_DATABASES: Mapping[str, Callable[[Options], AbstractContextManager[str]]] = {
    "PostgreSQL": lambda options: options.server.database(),
    "SQLite": _sqlite,
}
