"""What a provider's answer means: tables of rows, of which the first that fits counts. Pure.

An answer of 2xx is *accepted*, even one that cannot be read: the provider has the message, and what it said of it is
less. After the request had left, no answer, and a status that leaves it open whether anything was done, are *unknown*;
where the provider knows idempotency keys the job then repeats with the same one, and that is safe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache

import msgspec

from effects.extend import escape_unprintable
from effects_email.transport.base import Kind, Reply, Suppress, Verdict
from effects_email.transport.http_api.exchange import ProviderExchange
from effects_email.transport.replies.verdicts import TEXT_CHARS_MAX

HINT_MAX_SECONDS = 6 * 3600.0
ACCEPTED = "the provider took the message"
_WAITING = ("retry", "throttle", "transport_down", "unknown")  # where a wish to wait makes sense
_WAIT_HEADERS = ("retry-after", "ratelimit-reset")
_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


class HttpRow(msgspec.Struct, frozen=True):
    """One row. Empty fields match anything.

    Args:
        statuses: `429`, `500-504`, several parted by spaces.
        codes: the provider's own codes, parted by spaces.
        says: a pattern in the provider's message, in any case.
        hinted: the answer names a time to wait.
        after_seconds: the shortest wait; a time that the answer names may be longer.
    """

    kind: Kind
    reason: str
    statuses: str = ""
    codes: str = ""
    says: str = ""
    hinted: bool = False
    after_seconds: float | None = None
    suppress: Suppress | None = None


class Said(msgspec.Struct, frozen=True):
    """A provider's error: its own code and message."""

    code: str = ""
    message: str = ""


COMMON: tuple[HttpRow, ...] = (
    HttpRow("config", "the provider does not accept the credentials", "401 403 407"),
    HttpRow("config", "the account must be paid or is suspended", "402"),
    HttpRow("config", "the provider knows no such address of its API", "404 410"),
    HttpRow("config", "the provider redirects; redirects are not followed", "300-399"),
    HttpRow("unknown", "the provider did not get the whole request in time", "408"),
    HttpRow("unknown", "the provider reports a conflict with an earlier request", "409"),
    HttpRow("retry", "the provider asks to try again", "421 425"),
    HttpRow("throttle", "the provider asks for fewer requests", "429", after_seconds=1.0),
    HttpRow("refused_message", "the provider refuses the message", "400-499"),
    HttpRow("retry", "the provider is unavailable for a stated time", "503", hinted=True),
    HttpRow("unknown", "the provider failed, and may have taken the message", "500-599"),
    HttpRow("unknown", "the provider answered with a status that means nothing here", "100-999"),
)

# Before anything was written nothing can have been sent; after that, it is not known.
FAULTS: Mapping[str, HttpRow] = {
    "connect_failed": HttpRow("transport_down", "no connection to the provider"),
    "connect_timeout": HttpRow("transport_down", "no connection to the provider within the time limit"),
    "tls_failed": HttpRow("transport_down", "the TLS handshake with the provider failed"),
    "tls_unverified": HttpRow("config", "the provider's certificate does not verify"),
    "no_answer": HttpRow("unknown", "the request left and the connection ended without an answer"),
    "answer_timeout": HttpRow("unknown", "the request left and no answer came in time"),
    "bad_answer": HttpRow("unknown", "the request left and its answer broke off or is not HTTP"),
}


def verdict_of(provider: str, rows: Iterable[HttpRow], exchange: ProviderExchange, said: Said) -> Verdict:
    """What an exchange without a 2xx means, by the provider's own rows and then the common ones."""
    if exchange.status is None:
        assert exchange.failure is not None
        row = FAULTS[exchange.failure]
        return Verdict(kind=row.kind, code=exchange.failure, reason=row.reason, reply=Reply(stage="request"))
    hint = wait_of({name: exchange.header(name) or "" for name in _WAIT_HEADERS})
    row = find([*rows, *COMMON], exchange.status, said, hinted=hint is not None)
    waits = [row.after_seconds, hint if row.kind in _WAITING else None]
    return Verdict(
        kind=row.kind,
        code=f"{provider}_{exchange.status}" + (f"_{said.code}" if said.code else ""),
        reason=row.reason,
        reply=Reply(stage="request", code=exchange.status, text=escape_unprintable(said.message, TEXT_CHARS_MAX)),
        after_seconds=max((seconds for seconds in waits if seconds is not None), default=None),
        suppress=row.suppress,
    )


def find(rows: Iterable[HttpRow], status: int, said: Said, *, hinted: bool = False) -> HttpRow:
    """The first row that fits; the last common one fits everything."""
    return next(row for row in rows if _fits(row, status, said, hinted))


def wait_of(headers: Mapping[str, str]) -> float | None:
    """Requested delay in seconds, at most 6 hours: `Retry-After` (RFC 9110), else `ratelimit-reset`."""
    for name in _WAIT_HEADERS:
        text = headers.get(name, "").strip()
        if _SECONDS.fullmatch(text):
            return min(float(text), HINT_MAX_SECONDS)
    return _until(headers.get("retry-after", ""))


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date[:64])
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime.now(UTC)
    return min(max(wait.total_seconds(), 0.0), HINT_MAX_SECONDS)


def _fits(row: HttpRow, status: int, said: Said, hinted: bool) -> bool:
    if row.hinted and not hinted:
        return False
    if row.codes and said.code not in row.codes.split():
        return False
    if row.says and not _pattern(row.says).search(said.message):
        return False
    return not row.statuses or any(low <= status <= high for low, high in _ranges(row.statuses))


@cache
def _ranges(statuses: str) -> tuple[tuple[int, int], ...]:
    pairs = (span.partition("-") for span in statuses.split())
    return tuple((int(low), int(high or low)) for low, _, high in pairs)


@cache
def _pattern(says: str) -> re.Pattern[str]:
    return re.compile(says, re.IGNORECASE)
