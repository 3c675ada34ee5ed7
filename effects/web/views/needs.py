"""What needs a person: effects that may have happened, and dead letters by cause and one by one."""

from __future__ import annotations

from collections.abc import Mapping

from effects.store.operator.dead_letters import DeadFilters, list_dead
from effects.web.bulk_choices import choices_of_needs, ticked_choices_of_needs
from effects.web.exchange import PageAnswer
from effects.web.views.notices import notice
from effects.web.views.paging import PAGE_ROWS, before_of, choice_of, chosen_of, filters_of, page_of, word_of
from effects.web.views.shared_readings import causes_of_dead
from effects.web.visit import Visit

_NAMES = ("job_type", "error_code", "queue", "endpoint")
_EFFECTS = {"unknown": True, "not_done": False}


def dead_filters(fields: Mapping[str, str], before: int | None = None) -> tuple[DeadFilters, Mapping[str, str]]:
    """The filters of a query or a form, and those of them that are set, by name.

    Raises:
        BadRequestError: as `text_of`.
    """
    names = {**filters_of(fields, _NAMES), "word": word_of(fields)}
    effect = choice_of(fields, "effect", _EFFECTS)
    unknown = None if effect is None else _EFFECTS[effect]
    filters = DeadFilters(**names, unknown=unknown, before=before, limit=PAGE_ROWS + 1)
    return filters, chosen_of({**names, "effect": effect})


def needs(visit: Visit) -> PageAnswer:
    app = visit.app
    filters, chosen = dead_filters(visit.query, before_of(visit))
    letters, older = page_of(
        visit.read_list("needs", chosen, filters.before, lambda: list_dead(app.store, app.ledgers, filters))
    )
    return visit.page(
        "needs.html", causes=causes_of_dead(visit), letters=letters, older=older, counts=visit.unresolved(),
        chosen=chosen, first=filters.before is None, notice=notice(visit), choices=choices_of_needs(filters),
        ticked=ticked_choices_of_needs(filters),
    )  # fmt: skip
