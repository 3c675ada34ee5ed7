"""Acting on many jobs, those that filters select or a person ticked; and the pages of bulk actions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from effects.errors import EnqueueError
from effects.kit.moments import exact_moment
from effects.kit.text.unsafe import whole_number
from effects.operate import bulk as bulks_api
from effects.operate.bulk import BulkPreview, BulkStarted
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.operate.tables.job_list import Filters, list_jobs
from effects.web.exchange import BadRequestError, PageAnswer
from effects.web.pages import notice
from effects.web.views.jobs import (
    OF_JOBS,
    OF_NEEDS,
    BulkChoice,
    choices_of_jobs,
    choices_of_needs,
    dead_filters,
    job_filters,
)
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
        return exact_moment(float(visit.form.get("as_of", "")))
    except ValueError:
        raise BadRequestError("as_of is not the time of a preview") from None


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


_TICKED = re.compile(r"job-([1-9][0-9]{0,17})")
_IDS = re.compile(r"[1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*")


def ticked_needs(visit: Visit) -> PageAnswer:
    """Act on unresolved jobs; what is not possible for one of them is refused for it alone, and said."""
    return _ask_or_act_on(visit, OF_NEEDS, "needs", dead_filters(_ticked_fields(visit))[1])


def ticked_jobs(visit: Visit) -> PageAnswer:
    """Act on jobs, as `ticked_needs`."""
    return _ask_or_act_on(visit, OF_JOBS, "jobs", job_filters(_ticked_fields(visit))[1])


def _ticked_fields(visit: Visit) -> Mapping[str, str]:
    return visit.form if visit.request.is_unsafe else visit.query


def _ask_or_act_on(visit: Visit, choices: Sequence[BulkChoice], page: str, chosen: Mapping[str, str]) -> PageAnswer:
    """Ask about the ticked rows, or act on them; the way back has the filters of the list (`chosen`)."""
    choice = next((choice for choice in choices if choice.name == _ticked_fields(visit).get("do")), None)
    if choice is None:
        raise BadRequestError("there is no such action on rows of this list")
    if not visit.request.is_unsafe:
        ids = sorted(int(match[1]) for match in visit.query.matching(_TICKED))
        if not ids:
            raise EnqueueError("no row is ticked: go back, and tick those that it is about")
        return visit.page(
            "ticked.html", choice=choice, ids=ids, chosen=chosen, target=visit.url(f"{page}_ticked"),
            back=visit.url(page, **chosen),
        )  # fmt: skip
    with visit.acting():
        result = bulks_api.act_on(
            choice.action, _ids(visit), actor=visit.someone.actor, reason=visit.form.get("reason"), effects=visit.app
        )
    return visit.page("bulk_done.html", heading=choice.ticked, result=result, back=visit.url(page, **chosen))


def _ids(visit: Visit) -> list[int]:
    text = visit.form.get("jobs", "")
    ids = sorted({int(part) for part in text.split(",")}) if _IDS.fullmatch(text) else []
    if not 0 < len(ids) <= PAGE_ROWS:
        raise BadRequestError(f"jobs are ids of 1 to {PAGE_ROWS} rows")
    return ids
