"""The decision desk: effects that may have happened, one by one, oldest first."""

from __future__ import annotations

from effects.store.bulk.selection import freeze, select_ids
from effects.store.operator.dead_letters import DeadFilters
from effects.web.exchange import PageAnswer
from effects.web.job_actions import DECISIONS
from effects.web.views.notices import notice
from effects.web.views.paging import id_of
from effects.web.views.story import story_values
from effects.web.visit import Visit


def desk(visit: Visit) -> PageAnswer:
    """The oldest one behind `after`; a decision leads to the next."""
    store, after = visit.app.store, id_of(visit, "after") or 0
    with store.read() as connection:
        selection = freeze(store, connection, "unresolved", DeadFilters(unknown=True))
        ids = select_ids(store, connection, selection, after, 2).ids
    if not ids:
        return visit.page("desk.html", job=None, after=after, unknown=visit.unresolved().unknown,
                          notice=notice(visit))  # fmt: skip
    evidence = visit.evidence(ids[0])
    return visit.page(
        "desk.html", **story_values(visit, evidence), decisions=DECISIONS, after=after, is_last=len(ids) == 1,
        unknown=visit.unresolved().unknown,
    )  # fmt: skip
