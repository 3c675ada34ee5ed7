"""Bulk actions: one action on all jobs that the filters of a list select, previewed first, with progress and an end."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effects import bulk as bulks_api
from effects.bulk import BulkPreview, BulkStarted
from effects.errors import EnqueueError
from effects.moments import moment_or_none
from effects.store.operator.dead_letters import DeadFilters, list_dead
from effects.store.operator.job_list import Filters, list_jobs
from effects.text.digits import whole_number
from effects.web.bulk_choices import BulkChoice, choices_of_jobs, choices_of_needs
from effects.web.exchange import BadRequestError, PageAnswer
from effects.web.views.jobs import job_filters
from effects.web.views.needs import dead_filters
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, page_of
from effects.web.visit import LIVE_SECONDS, Visit

_JOBS_DIGITS_MAX = 9
SAMPLE_ROWS = 10
CHANGE_MAX = 0.05  # by which what is selected may have changed since the preview


# -- preview and start ---------------------------------------------------------------------------------------------


def of_needs(visit: Visit) -> PageAnswer:
    """Act on all unresolved jobs that the filters select."""
    filters, chosen = dead_filters(_fields(visit))
    choice = _choice(visit, choices_of_needs(filters))
    return _ask_or_act(visit, choice, filters, chosen, "needs")


def of_jobs(visit: Visit) -> PageAnswer:
    """Act on all jobs that the filters select."""
    filters, chosen = job_filters(_fields(visit))
    choice = _choice(visit, choices_of_jobs(chosen.get("status")))
    return _ask_or_act(visit, choice, filters, chosen, "jobs")


def _fields(visit: Visit) -> Mapping[str, str]:
    return visit.form if visit.request.is_unsafe else visit.query


def _choice(visit: Visit, choices: Sequence[BulkChoice]) -> BulkChoice:
    name = _fields(visit).get("do")
    for choice in choices:
        if choice.name == name:
            return choice
    raise EnqueueError("this cannot be done with all jobs of these filters: choose a status or a kind of effect first")


def _ask_or_act(
    visit: Visit, choice: BulkChoice, filters: DeadFilters | Filters, chosen: Mapping[str, str], page: str
) -> PageAnswer:
    as_of = _as_of(visit) if visit.request.is_unsafe else None
    preview = bulks_api.preview(choice.action, _at(filters, as_of), effects=visit.app)
    if not visit.request.is_unsafe:
        return _ask(visit, choice, preview, chosen, page)
    expected = _expected(visit)
    if abs(preview.counted.jobs - expected) > max(1.0, CHANGE_MAX * expected):
        preview = bulks_api.preview(choice.action, filters, effects=visit.app)
        return _ask(visit, choice, preview, chosen, page, changed_from=expected)
    with visit.acting():
        result = bulks_api.carry_out(
            preview, actor=visit.someone.actor, reason=visit.form.get("reason"), effects=visit.app
        )
    if isinstance(result, BulkStarted):
        return visit.redirect("bulk", id=result.bulk_id, did="bulk_started")
    return visit.page("bulk_done.html", heading=choice.button, result=result, back=visit.url(page, **chosen))


def _ask(
    visit: Visit, choice: BulkChoice, preview: BulkPreview, chosen: Mapping[str, str], page: str,
    changed_from: int | None = None,
) -> PageAnswer:  # fmt: skip
    return visit.page(
        "bulk_ask.html", code=200 if changed_from is None else 409, choice=choice, preview=preview, chosen=chosen,
        target=visit.url(f"{page}_bulk"), back=visit.url(page, **chosen), sample=_sample(visit, preview),
        as_of=preview.as_of.timestamp(), changed_from=changed_from, by_job=preview.job_ids is None,
    )  # fmt: skip


def _sample(visit: Visit, preview: BulkPreview) -> list[tuple[int, str, str | None]]:
    """The newest of those that it is about: id, type, code."""
    store, ledgers, filters = visit.app.store, visit.app.ledgers, preview.selection.filters
    if isinstance(filters, DeadFilters):
        letters = list_dead(store, ledgers, _limited(filters))
        return [(letter.id, letter.job_type, letter.error_code) for letter in letters]
    return [(job.id, job.job_type, job.error_code) for job in list_jobs(store, ledgers, _limited(filters)).jobs]


def _limited(filters: Any) -> Any:
    return msgspec.structs.replace(filters, limit=SAMPLE_ROWS)


def _at(filters: Any, as_of: dt.datetime | None) -> Any:
    return filters if as_of is None else msgspec.structs.replace(filters, as_of=as_of)


def _as_of(visit: Visit) -> dt.datetime:
    try:
        as_of = moment_or_none(float(visit.form.get("as_of", "")))
    except (ValueError, OverflowError, OSError):
        as_of = None
    if not isinstance(as_of, dt.datetime):
        raise BadRequestError("as_of is not the time of a preview")
    return as_of


def _expected(visit: Visit) -> int:
    expected = whole_number(visit.form.get("expected", ""), _JOBS_DIGITS_MAX)
    if expected is None:
        raise BadRequestError("expected is not a number of jobs")
    return expected


# -- those that were started ---------------------------------------------------------------------------------------


def bulks(visit: Visit) -> PageAnswer:
    """Bulk actions, newest first."""
    before = before_of(visit)
    records, older = page_of(bulks_api.find_bulks(before=before, limit=PAGE_ROWS + 1, effects=visit.app))
    return visit.page("bulks.html", bulks=records, older=older, first=before is None, notice=notice(visit))


def bulk(visit: Visit) -> PageAnswer:
    """One bulk action, with its progress."""
    bulk_id = int(visit.values["id"])
    record = visit.read(("bulk", bulk_id), LIVE_SECONDS / 2, lambda: bulks_api.find_bulk(bulk_id, effects=visit.app))
    return visit.page("bulk.html", bulk=record, notice=notice(visit))
