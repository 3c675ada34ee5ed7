"""The rows of a list that a person has ticked: one action on all of them, asked for first, done at once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from effects import bulk
from effects.errors import EnqueueError
from effects.web.bulk_choices import OF_JOBS, OF_NEEDS, BulkChoice
from effects.web.exchange import BadRequestError, PageAnswer
from effects.web.views.jobs import job_filters
from effects.web.views.needs import dead_filters
from effects.web.views.paging import PAGE_ROWS
from effects.web.visit import Visit

_TICKED = re.compile(r"job-([1-9][0-9]{0,17})")
_IDS = re.compile(r"[1-9][0-9]{0,17}(,[1-9][0-9]{0,17})*")


def of_needs(visit: Visit) -> PageAnswer:
    """Act on unresolved jobs; what is not possible for one of them is refused for it alone, and said."""
    return _ask_or_act(visit, OF_NEEDS, "needs", dead_filters(_fields(visit))[1])


def of_jobs(visit: Visit) -> PageAnswer:
    """Act on jobs, as `of_needs`."""
    return _ask_or_act(visit, OF_JOBS, "jobs", job_filters(_fields(visit))[1])


def _fields(visit: Visit) -> Mapping[str, str]:
    return visit.form if visit.request.is_unsafe else visit.query


def _ask_or_act(visit: Visit, choices: Sequence[BulkChoice], page: str, chosen: Mapping[str, str]) -> PageAnswer:
    """Ask about the ticked rows, or act on them; the way back has the filters of the list (`chosen`)."""
    choice = next((choice for choice in choices if choice.name == _fields(visit).get("do")), None)
    if choice is None:
        raise BadRequestError("there is no such action on rows of this list")
    if not visit.request.is_unsafe:
        ids = sorted(int(match[1]) for name in visit.query if (match := _TICKED.fullmatch(name)) is not None)
        if not ids:
            raise EnqueueError("no row is ticked: go back, and tick those that it is about")
        return visit.page(
            "ticked.html", choice=choice, ids=ids, chosen=chosen, target=visit.url(f"{page}_ticked"),
            back=visit.url(page, **chosen),
        )  # fmt: skip
    with visit.acting():
        result = bulk.act_on(
            choice.action, _ids(visit), actor=visit.someone.actor, reason=visit.form.get("reason"), effects=visit.app
        )
    return visit.page("bulk_done.html", heading=choice.ticked, result=result, back=visit.url(page, **chosen))


def _ids(visit: Visit) -> list[int]:
    text = visit.form.get("jobs", "")
    ids = sorted({int(part) for part in text.split(",")}) if _IDS.fullmatch(text) else []
    if not 0 < len(ids) <= PAGE_ROWS:
        raise BadRequestError(f"jobs are ids of 1 to {PAGE_ROWS} rows")
    return ids
