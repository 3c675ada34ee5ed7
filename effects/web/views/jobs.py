"""The list of jobs, by filters that stand in the address."""

from __future__ import annotations

from effects.model.job import ENDED, LIVE
from effects.store.db.sql import ANY_TIME, Window
from effects.store.operator.job_list import Filters, list_jobs
from effects.text.wording import RETRYING
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, filters_of
from effects.web.visit import Visit

STATUSES = tuple(RETRYING if status == "failed" else status for status in (*LIVE, *ENDED))
AGES = {"15m": 900.0, "1h": 3_600.0, "24h": 86_400.0, "7d": 604_800.0}
_NAMES = ("job_type", "queue", "error_code", "limit_key", "group_key", "worker")


def jobs(visit: Visit) -> PageAnswer:
    chosen = filters_of(visit, _NAMES)
    status, age = visit.query.get("status"), visit.query.get("age")
    status = status if status in STATUSES else None
    window = Window(newer=AGES[age]) if age in AGES else ANY_TIME
    before = before_of(visit)
    filters = Filters(
        status="failed" if status == RETRYING else status, window=window, before=before, limit=PAGE_ROWS, **chosen
    )
    page = list_jobs(visit.app.store, visit.app.ledgers, filters)
    shown = {name: value for name, value in {**chosen, "age": age if age in AGES else None}.items() if value}
    return visit.page(
        "jobs.html", page=page, chosen=shown, status=status, statuses=STATUSES, ages=list(AGES), first=before is None,
        notice=notice(visit), job_types=visit.app.job_types.names(),
    )  # fmt: skip
