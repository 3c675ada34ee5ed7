"""The audit log: who did what to what, through what, why and when."""

from __future__ import annotations

import msgspec

from effects.store.audit_log.entries import LogFilters, list_entries
from effects.web.exchange import PageAnswer
from effects.web.views.paging import PAGE_ROWS, before_of, chosen_of, filters_of, page_of
from effects.web.visit import Visit

_NAMES = ("actor", "action", "subject_kind", "subject")


def audit(visit: Visit) -> PageAnswer:
    chosen = filters_of(visit.query, _NAMES)
    filters = LogFilters(**chosen, before=before_of(visit), limit=PAGE_ROWS + 1)
    entries, older = page_of(list_entries(visit.app.store, filters))
    return visit.page(
        "audit.html", entries=[(entry, _detail(entry.detail)) for entry in entries], older=older,
        first=filters.before is None, chosen=chosen_of(chosen),
    )  # fmt: skip


def _detail(detail: object) -> str:
    return msgspec.json.encode(detail, enc_hook=str).decode() if detail else ""
