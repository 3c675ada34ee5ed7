"""Pages about what went wrong: what it was, and what to do. No trace, no statement, no value."""

from __future__ import annotations

import re
from dataclasses import replace

from effects.errors import (
    BulkNotFound,
    ConfigurationError,
    EffectsError,
    FailoverNotFound,
    JobNotFound,
    JobStateError,
    LimitNotFound,
    QueueNotFound,
    SchemaMismatch,
    StoreConflict,
    StoreRejected,
    StoreUnavailable,
    WorkerNotFound,
)
from effects.store.db.faults import is_cancelled
from effects.web.database import COUNT_SECONDS, StillCountingError
from effects.web.exchange import PageAnswer
from effects.web.routes import PageRoute
from effects.web.visit import Visit

_NOT_FOUND = (BulkNotFound, JobNotFound, LimitNotFound, QueueNotFound, WorkerNotFound, FailoverNotFound)
AGAIN_SECONDS = "1"
_BUSY = "the database was busy for longer than a page waits. Load the page again."
_BUSY_ACT = (
    "the database was busy for longer than an action waits. It was not carried out; one on several rows only for some "
    "of them. The list and the audit log say for which."
)
_TOO_LONG = (
    f"counting took longer than {COUNT_SECONDS:g} seconds. Load the page again, or ask by a command, which has no such "
    "limit: `effects status`, `effects limits list`, `effects doctor`."
)
_AWAY = "the database cannot be reached. Workers keep trying; this page can be loaded again."
_AWAY_ACT = (
    "the connection to the database was lost, and whether the action was carried out is not known. Look at the list or "
    "at the audit log before you do it again."
)
_READ_ONLY = (
    "the database answers and takes no changes: it is a standby, or read-only. Nothing was changed; pages that only "
    "show can be looked at."
)
_BEGINS_WITH_WORD = re.compile("[a-z]+ ")
_PLAIN = "text/plain; charset=utf-8"


def plain(status: int, text: str, *headers: tuple[str, str]) -> PageAnswer:
    """A line without a frame, for those whom we do not know, or where no page can be made."""
    return PageAnswer(status, f"{text}\n".encode(), _PLAIN, (("cache-control", "no-store"), *headers))


def not_found(visit: Visit, text: str) -> PageAnswer:
    return _page(visit, 404, "Not found", text)


def bad_request(visit: Visit, text: str) -> PageAnswer:
    return plain(400, text) if visit.person is None else _page(visit, 400, "This request cannot be read", text)


def forbidden(visit: Visit, route: PageRoute, text: str | None = None) -> PageAnswer:
    """The person lacks a role or a capability, which the page names."""
    if text is None:
        capability = " and the capability personal" if route.personal else ""
        text = f"this needs the role {route.role}{capability}; you are {visit.someone.role}"
    return _page(visit, 403, "Not allowed", text)


def too_many(visit: Visit) -> PageAnswer:
    return _page(visit, 429, "Too many actions", "wait a minute; for many jobs at once there are bulk actions")


def answer_of(visit: Visit, error: Exception) -> PageAnswer | None:
    """The page about a known error; None for any other."""
    if isinstance(error, StillCountingError):
        return _counting(visit)
    missing = tuple(kind for pages in visit.site.packages for kind in pages.missing)
    if isinstance(error, (*_NOT_FOUND, *missing)):
        return not_found(visit, str(error))
    if isinstance(error, JobStateError):
        return _page(visit, 409, "Something else happened meanwhile", f"{error}. Nothing was changed.")
    if isinstance(error, SchemaMismatch):
        return _page(visit, 503, "The tables are not of this version", str(error))
    if isinstance(error, StoreConflict) or is_cancelled(error):
        return _page(visit, 503, "This took too long", _too_long(visit))
    if isinstance(error, StoreUnavailable):
        away = _AWAY_ACT if visit.request.is_unsafe else _AWAY
        return _page(visit, 503, "The database is unavailable", _READ_ONLY if error.read_only else away)
    if isinstance(error, StoreRejected):
        return _page(visit, 503, "The database refuses", "see the section about the database in `effects doctor`")
    if isinstance(error, EffectsError) and not isinstance(error, ConfigurationError):
        return _page(visit, 422, "This cannot be done", str(error))
    if isinstance(error, ConfigurationError) and visit.person is not None and visit.request.is_unsafe:
        return _page(visit, 422, "This cannot be done", str(error))
    return None


def _too_long(visit: Visit) -> str:
    if visit.request.is_unsafe:
        return _BUSY_ACT
    return _TOO_LONG if visit.is_counting else _BUSY


def _counting(visit: Visit) -> PageAnswer:
    """202: the browser asks again by itself, with scripts or without."""
    text = "this page counts every job that waits; beside many that takes a few seconds. It follows by itself."
    answer = _page(visit, 202, "Counting", text)
    return replace(answer, headers=(*answer.headers, ("refresh", AGAIN_SECONDS)))


def _page(visit: Visit, status: int, heading: str, text: str) -> PageAnswer:
    """With the frame where a person is known."""
    if visit.person is None:
        return plain(status, text)
    return visit.page("failure.html", code=status, heading=heading, text=_sentence(text))


def _sentence(text: str) -> str:
    """An error's text as a page has it; a name at its beginning stays as it is."""
    begun = text[0].upper() + text[1:] if _BEGINS_WITH_WORD.match(text) else text
    return begun if begun.endswith((".", "?", "!")) else f"{begun}."
