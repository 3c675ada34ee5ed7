"""The records of SPF (RFC 7208), DKIM (RFC 6376) and DMARC (RFC 7489): what a sender has to know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from effects_email.domain.lookup import Lookup

SPF_LOOKUPS_MAX = 10
_ASKING = ("include:", "exists:", "redirect=")


def tags(record: str) -> dict[str, str]:
    """`v=DMARC1; p=none` as a mapping; names in lower case."""
    pairs = (part.partition("=") for part in record.split(";"))
    return {name.strip().lower(): "".join(value.split()) for name, equals, value in pairs if equals}


def spf_of(lookup: Lookup, domain: str) -> list[str]:
    """Its SPF records; more than one is as bad as none."""
    return [record for record in lookup.txt(domain) if record.lower().split(" ")[0] == "v=spf1"]


def spf_lookups(lookup: Lookup, record: str, left: int = SPF_LOOKUPS_MAX + 1) -> int:
    """How many questions a record makes a receiver ask, those of what it includes too; counted up to eleven."""
    count = 0
    for term in record.lower().split()[1:]:
        word = term.lstrip("+-~?")
        if word.startswith(_ASKING) or word.partition(":")[0].partition("/")[0] in ("a", "mx", "ptr"):
            count += 1
        if count >= left:
            break
        if word.startswith(("include:", "redirect=")):
            included = spf_of(lookup, word.partition(":")[2] or word.partition("=")[2])
            count += spf_lookups(lookup, included[0], left - count) if included else 0
    return count


def dmarc_of(lookup: Lookup, domain: str) -> tuple[str, Sequence[str]]:
    """The domain whose DMARC records count for this one, itself or the nearest above it, and the records."""
    labels = domain.split(".")
    for start in range(max(1, len(labels) - 1)):
        place = ".".join(labels[start:])
        records = [record for record in lookup.txt(f"_dmarc.{place}") if record.lower().startswith("v=dmarc1")]
        if records:
            return place, records
    return domain, []


def is_aligned(domain: str, sender_domain: str, organization: str, mode: str) -> bool:
    """Whether a domain that passed counts for the From (`mode`: `r` or `s`, of DMARC's `adkim` and `aspf`).

    Args:
        organization: the domain under which both must be, where the mode is relaxed.
    """
    if domain == sender_domain or mode == "s":
        return domain == sender_domain
    return all(f".{name}".endswith(f".{organization}") for name in (domain, sender_domain))


def published_key(records: Sequence[str]) -> Mapping[str, str] | None:
    """The tags of a DKIM record; None without one."""
    return next((key for key in map(tags, records) if "p" in key), None)
