"""The list of jobs, by filters that stand in the address."""

from __future__ import annotations

from collections.abc import Mapping

from effects.model.job import ENDED, LIVE
from effects.store.db.sql import ANY_TIME, Window
from effects.store.operator.job_list import Filters, list_jobs
from effects.text.wording import RETRYING
from effects.web.bulk_choices import choices_of_jobs
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, choice_of, chosen_of, filters_of, word_of
from effects.web.visit import Visit

STATUSES = tuple(RETRYING if status == "failed" else status for status in (*LIVE, *ENDED))
AGES = {"15m": 900.0, "1h": 3_600.0, "24h": 86_400.0, "7d": 604_800.0}
_NAMES = ("job_type", "queue", "error_code", "limit_key", "group_key", "worker")


def job_filters(fields: Mapping[str, str], before: int | None = None) -> tuple[Filters, Mapping[str, str]]:
    """The filters of a query or a form, and those of them that are set, by name.

    Raises:
        BadRequestError: as `text_of`.
    """
    names = {**filters_of(fields, _NAMES), "word": word_of(fields)}
    status, age = choice_of(fields, "status", STATUSES), choice_of(fields, "age", AGES)
    window = ANY_TIME if age is None else Window(newer=AGES[age])
    filters = Filters(
        status="failed" if status == RETRYING else status, window=window, before=before, limit=PAGE_ROWS, **names
    )
    return filters, chosen_of({**names, "age": age, "status": status})


def jobs(visit: Visit) -> PageAnswer:
    before = before_of(visit)
    filters, chosen = job_filters(visit.query, before)
    page = visit.read_list("jobs", chosen, before, lambda: list_jobs(visit.app.store, visit.app.ledgers, filters))
    status = chosen.get("status")
    return visit.page(
        "jobs.html", page=page, chosen={name: value for name, value in chosen.items() if name != "status"},
        status=status, statuses=STATUSES, ages=list(AGES), first=before is None, notice=notice(visit),
        job_types=visit.app.job_types.names(), choices=choices_of_jobs(status),
    )  # fmt: skip
