"""What needs a person: effects that may have happened, and dead letters by cause and one by one."""

from __future__ import annotations

from effects.store.operator.dead_letters import DeadFilters, count_causes, list_dead
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, filters_of
from effects.web.visit import LIVE_SECONDS, Visit


def needs(visit: Visit) -> PageAnswer:
    store = visit.app.store

    def read_causes() -> object:
        with store.read() as connection:
            return count_causes(store, connection)

    chosen = filters_of(visit, ("job_type", "error_code", "queue", "endpoint"))
    effect = visit.query.get("effect", "")
    unknown = {"unknown": True, "not_done": False}.get(effect)
    filters = DeadFilters(**chosen, unknown=unknown, before=before_of(visit), limit=PAGE_ROWS + 1)
    letters = list_dead(store, visit.app.ledgers, filters)
    return visit.page(
        "needs.html", causes=visit.site.readings.get("causes", LIVE_SECONDS, read_causes), letters=letters[:PAGE_ROWS],
        counts=visit.site.unresolved(), older=letters[PAGE_ROWS - 1].id if len(letters) > PAGE_ROWS else None,
        chosen={**{name: value for name, value in chosen.items() if value}, **({"effect": effect} if effect else {})},
        first=filters.before is None, notice=notice(visit),
    )  # fmt: skip
