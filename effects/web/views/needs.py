"""What needs a person: effects that may have happened, and dead letters by cause and one by one."""

from __future__ import annotations

from collections.abc import Mapping

from effects.store.operator.dead_letters import DeadFilters, count_causes, list_dead
from effects.web.bulk_choices import choices_of_needs
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, filters_of
from effects.web.visit import LIVE_SECONDS, Visit

_NAMES = ("job_type", "error_code", "queue", "endpoint", "word")
_EFFECTS = {"unknown": True, "not_done": False}


def dead_filters(fields: Mapping[str, str], before: int | None = None) -> tuple[DeadFilters, dict[str, str]]:
    """The filters of a query or a form, and those of them that are set, by name.

    Raises:
        BadRequestError: as `text_of`.
    """
    names = filters_of(fields, _NAMES)
    effect = fields.get("effect", "")
    filters = DeadFilters(**names, unknown=_EFFECTS.get(effect), before=before, limit=PAGE_ROWS + 1)
    chosen = {**names, "effect": effect if effect in _EFFECTS else None}
    return filters, {name: value for name, value in chosen.items() if value}


def needs(visit: Visit) -> PageAnswer:
    store = visit.app.store

    def read_causes() -> object:
        with store.read() as connection:
            return count_causes(store, connection)

    filters, chosen = dead_filters(visit.query, before_of(visit))
    letters = visit.read_list("needs", chosen, filters.before, lambda: list_dead(store, visit.app.ledgers, filters))
    return visit.page(
        "needs.html", causes=visit.read("causes", LIVE_SECONDS, read_causes), letters=letters[:PAGE_ROWS],
        counts=visit.site.unresolved(), older=letters[PAGE_ROWS - 1].id if len(letters) > PAGE_ROWS else None,
        chosen=chosen, first=filters.before is None, notice=notice(visit), choices=choices_of_needs(filters),
    )  # fmt: skip
