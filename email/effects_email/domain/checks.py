"""What is right and what is missing, in plain words: one finding for each matter, with what to do about it."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias

import msgspec

from effects_email.dkim.keys import RSA_BITS_ADVISED, DkimKey
from effects_email.domain import records
from effects_email.domain.lookup import DnsUnavailable, Lookup

Matter: TypeAlias = Literal["spf", "dkim", "dmarc", "alignment", "mx", "bounces"]
Level: TypeAlias = Literal["ok", "warning", "error", "unknown"]


class DomainFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`unknown`: the DNS did not answer. `advice`: what to do; empty where nothing is."""

    matter: Matter
    level: Level
    text: str
    advice: str = ""


class SendingDomain(msgspec.Struct, frozen=True, kw_only=True):
    """A From's domain, and what sends for it.

    `envelope`: the domain that SPF is asked of. `bounces`: of the addresses per message, or empty. `keys`: ours that
    sign for it. `selectors`: of others that sign, such as a relay.
    """

    name: str
    envelope: str
    bounces: str = ""
    keys: Sequence[DkimKey] = ()
    selectors: Sequence[str] = ()


def examine_domain(lookup: Lookup, domain: SendingDomain) -> list[DomainFinding]:
    """Every check. One that gets no answer is `unknown`; none raises."""
    checks = (_spf, _dkim, _dmarc, _alignment, _mx, _bounces)
    matters: Sequence[Matter] = ("spf", "dkim", "dmarc", "alignment", "mx", "bounces")
    findings: list[DomainFinding] = []
    for matter, check in zip(matters, checks, strict=True):
        try:
            findings += check(lookup, domain)
        except DnsUnavailable as error:
            findings.append(
                DomainFinding(matter=matter, level="unknown", text=f"no name server answered about {error}")
            )
    return findings


def _spf(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    name = domain.envelope
    published = records.spf_of(lookup, name)
    if len(published) != 1:
        text = f"{name} has {len(published) or 'no'} SPF record{'s' if len(published) > 1 else ''}"
        advice = f"publish one TXT record at {name} that names your relay, such as v=spf1 include:relay.example ~all"
        yield DomainFinding(matter="spf", level="error", text=text, advice=advice)
        return
    words = published[0].lower().split()
    lookups = records.spf_lookups(lookup, published[0])
    if lookups > records.SPF_LOOKUPS_MAX:
        advice = "receivers give up at the eleventh, and SPF fails: include fewer"
        yield DomainFinding(matter="spf", level="error", text=f"{name} needs more than 10 lookups", advice=advice)
    elif "+all" in words or "all" in words:
        advice = "end the record with ~all or -all"
        yield DomainFinding(matter="spf", level="error", text=f"{name} lets everyone send", advice=advice)
    else:
        yield DomainFinding(matter="spf", level="ok", text=f"{name}: {published[0]}")


def _dkim(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    for key in domain.keys:
        yield _own_key(key, records.published_key(lookup.txt(key.name)))
    for selector in domain.selectors:
        name = f"{selector}._domainkey.{domain.name}"
        published = records.published_key(lookup.txt(name))
        if published is None or not published["p"]:
            yield DomainFinding(matter="dkim", level="error", text=f"{name} has no key", advice="publish the relay's")
        else:
            yield DomainFinding(matter="dkim", level="ok", text=f"{name} has a key")
    if not domain.keys and not domain.selectors:
        yield DomainFinding(
            matter="dkim", level="warning", text=f"effects signs nothing for {domain.name}",
            advice="set EFFECTS_DKIM_KEYS, or check what your relay signs by --selector",
        )  # fmt: skip


def _own_key(key: DkimKey, published: Mapping[str, str] | None) -> DomainFinding:
    publish = f"publish there: {key.record}"
    later = key.begins is not None and key.begins > datetime.now(UTC)
    if published is None:
        level: Level = "warning" if later else "error"
        return DomainFinding(matter="dkim", level=level, text=f"{key.name} has no record", advice=publish)
    if not published["p"]:
        return DomainFinding(matter="dkim", level="error", text=f"{key.name} is revoked", advice="use another selector")
    if published["p"] != base64.b64encode(key.public).decode():
        text = f"{key.name} has another key than the one that signs"
        return DomainFinding(matter="dkim", level="error", text=text, advice=publish)
    if "y" in published.get("t", "").split(":"):
        advice = "take t=y out of the record"
        return DomainFinding(matter="dkim", level="warning", text=f"{key.name} is marked as a test", advice=advice)
    if key.algorithm == "rsa-sha256" and key.bits < RSA_BITS_ADVISED:
        advice = f"make one of {RSA_BITS_ADVISED}"
        return DomainFinding(matter="dkim", level="warning", text=f"{key.name} has {key.bits} bits", advice=advice)
    return DomainFinding(matter="dkim", level="ok", text=f"{key.name} is our key ({key.algorithm})")


def _dmarc(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    place, published = records.dmarc_of(lookup, domain.name)
    policies = [records.tags(record).get("p", "").lower() for record in published]
    if not published:
        yield DomainFinding(
            matter="dmarc", level="error", text=f"_dmarc.{domain.name} has no record",
            advice=f"publish there: v=DMARC1; p=none; rua=mailto:dmarc@{domain.name}",
        )  # fmt: skip
    elif len(published) > 1 or policies[0] not in ("none", "quarantine", "reject"):
        text = f"_dmarc.{place} has no single record with p=none, quarantine or reject"
        yield DomainFinding(matter="dmarc", level="error", text=text, advice="publish one v=DMARC1 record")
    else:
        yield DomainFinding(matter="dmarc", level="ok", text=f"_dmarc.{place}: {published[0]}")


def _alignment(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    organization, published = records.dmarc_of(lookup, domain.name)
    own = records.tags(published[0]) if published else {}
    signing = {key.domain for key in domain.keys} | ({domain.name} if domain.selectors else set())
    passing = [
        how
        for how, aligned in {
            "SPF": records.is_aligned(domain.envelope, domain.name, organization, own.get("aspf", "r")),
            "DKIM": any(records.is_aligned(name, domain.name, organization, own.get("adkim", "r")) for name in signing),
        }.items()
        if aligned
    ]
    if passing:
        yield DomainFinding(
            matter="alignment", level="ok", text=f"{' and '.join(passing)} of {domain.name} can pass DMARC"
        )
    else:
        yield DomainFinding(
            matter="alignment", level="error",
            text=f"neither SPF of {domain.envelope} nor a signature counts for the From at {domain.name}",
            advice="sign with a key of the From's domain, or let bounces go to a domain below it",
        )  # fmt: skip


def _mx(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    yield _takes_mail(lookup, domain.name, "mx", "replies to the From are lost, and some servers refuse such senders")


def _bounces(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    if domain.bounces:
        yield _takes_mail(lookup, domain.bounces, "bounces", "bounces are lost: publish an MX record")


def _takes_mail(lookup: Lookup, name: str, matter: Matter, advice: str) -> DomainFinding:
    hosts = lookup.mx(name)
    if hosts and hosts != ["."]:
        return DomainFinding(matter=matter, level="ok", text=f"{name} takes mail at {', '.join(hosts[:3])}")
    if not hosts and lookup.has_address(name):
        return DomainFinding(matter=matter, level="warning", text=f"{name} has an address and no MX", advice=advice)
    return DomainFinding(matter=matter, level="error", text=f"{name} takes no mail", advice=advice)
