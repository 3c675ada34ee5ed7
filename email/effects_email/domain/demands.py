"""What Gmail, Yahoo and Microsoft ask of senders, and how a domain fares.

As they publish it: Google's "Email sender guidelines", Yahoo's "Sender best practices", Microsoft's "Outlook's new
requirements for high-volume senders". Large senders are those of about 5,000 messages a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from effects_email.domain.checks import DomainFinding, Matter

Met: TypeAlias = Literal["met", "missing", "unknown", "see for yourself"]
_LARGE = "of large senders"
_ALL = "of everyone"
# Demand → the matters that meet it; none: no DNS shows it.
_DEMANDS: Mapping[str, Mapping[tuple[str, str], Sequence[Matter]]] = {
    "Gmail": {
        (_ALL, "SPF or DKIM, and both of large senders"): ("spf", "dkim"),
        (_LARGE, "DMARC, of which p=none is enough"): ("dmarc",),
        (_LARGE, "SPF or DKIM of the From's own domain (alignment)"): ("alignment",),
        (_LARGE, "one-click unsubscribing of what is not transactional, signed"): (),
        (_ALL, "TLS, a name for the sending address and back (PTR), complaints under 0.3 %"): (),
    },
    "Yahoo": {
        (_ALL, "SPF or DKIM, and both of large senders"): ("spf", "dkim"),
        (_LARGE, "DMARC that passes, p=none at least"): ("dmarc", "alignment"),
        (_LARGE, "one-click unsubscribing, honoured within two days"): (),
        (_ALL, "a PTR record, complaints under 0.3 %"): (),
    },
    "Microsoft": {
        (_LARGE, "SPF and DKIM that pass"): ("spf", "dkim"),
        (_LARGE, "DMARC, p=none at least, aligned with SPF or DKIM"): ("dmarc", "alignment"),
        (_LARGE, "a From that takes replies"): ("mx",),
    },
}


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One demand of one provider. `missing`: the matters that stand in its way."""

    provider: str
    whom: str
    demand: str
    met: Met
    missing: tuple[Matter, ...] = ()


def demands(findings: Sequence[DomainFinding]) -> list[Demand]:
    """Each demand, and whether these findings meet it."""
    return [
        _judged(provider, whom, demand, matters, findings)
        for provider, theirs in _DEMANDS.items()
        for (whom, demand), matters in theirs.items()
    ]


def _judged(
    provider: str, whom: str, demand: str, matters: Sequence[Matter], findings: Sequence[DomainFinding]
) -> Demand:
    levels = {matter: {finding.level for finding in findings if finding.matter == matter} for matter in matters}
    missing = tuple(matter for matter in matters if not levels[matter] & {"ok", "unknown"} or "error" in levels[matter])
    met: Met = "met"
    if not matters:
        met = "see for yourself"
    elif missing:
        met = "missing"
    elif any("unknown" in levels[matter] for matter in matters):
        met = "unknown"
    return Demand(provider=provider, whom=whom, demand=demand, met=met, missing=missing)
