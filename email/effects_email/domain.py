"""What the DNS says of a domain that this app sends from: what is right and what is missing, in plain words.

One finding for each matter, with what to do about it; and which demands of the large providers the findings meet. The
questions never take longer than they may, all together.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeAlias

import dns.exception
import dns.inet
import dns.resolver
import idna
import msgspec

from effects import ConfigurationError
from effects_email.dkim.entries import parse_entries, signing_domain
from effects_email.dkim.signing import RSA_BITS_ADVISED, DkimKey, DkimSigner, load_keys
from effects_email.message.source import Address

_QUERY_SECONDS = 2.0
SPF_LOOKUPS_MAX = 10
_ASKING = ("include:", "exists:", "redirect=")
Matter: TypeAlias = Literal["spf", "dkim", "dmarc", "alignment", "mx", "bounces"]
Level: TypeAlias = Literal["ok", "warning", "error", "unknown"]
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
CHECK_SECONDS = 20.0
DOCTOR_SECONDS = 3.0


class DnsUnavailable(Exception):
    """No name server answered in time, or each failed. Nothing is known of the name that was asked for."""


def _host_and_port(nameserver: str) -> tuple[str, int]:
    """
    Raises:
        ValueError: the port is no number.
    """
    host, colon, port = nameserver.rpartition(":")
    if not colon or dns.inet.is_address(nameserver):  # the colons of an IPv6 address
        return nameserver, 53
    return host.strip("[]"), int(port)


class Lookup:
    """Asks the system's name servers, or one of your choice.

    Args:
        seconds: for all questions together.
        nameserver: `9.9.9.9`, `127.0.0.1:5353`, `2620:fe::fe` or `[::1]:5353`; default those of /etc/resolv.conf.

    Raises:
        ConfigurationError: `nameserver` is no IP address with or without a port.
    """

    def __init__(self, *, seconds: float, nameserver: str = "") -> None:
        self._ends = time.monotonic() + seconds
        self._resolver: dns.resolver.Resolver | None = None
        try:
            self._resolver = dns.resolver.Resolver(configure=not nameserver)
            if nameserver:
                host, self._resolver.port = _host_and_port(nameserver)
                self._resolver.nameservers = [host]
        except dns.resolver.NoResolverConfiguration:
            self._resolver = None
        except ValueError:
            raise ConfigurationError(
                "EFFECTS_EMAIL_NAMESERVER is no IP address, with or without a port, such as 9.9.9.9 or 127.0.0.1:5353"
            ) from None

    def txt(self, name: str) -> list[str]:
        """The TXT records of a name; none if there is no such name.

        Raises:
            DnsUnavailable: no answer came in time.
        """
        return [b"".join(record.strings).decode("ascii", "replace") for record in self._ask(name, "TXT")]

    def mx(self, name: str) -> list[str]:
        """The hosts that take mail of a domain, the preferred first; `.` is the one that takes none (RFC 7505).

        Raises:
            DnsUnavailable: no answer came in time.
        """
        records = sorted(self._ask(name, "MX"), key=lambda record: int(record.preference))
        return [str(record.exchange).rstrip(".") or "." for record in records]

    def has_address(self, name: str) -> bool:
        """Whether a host has an address.

        Raises:
            DnsUnavailable: no answer came in time.
        """
        return any(self._ask(name, kind) for kind in ("A", "AAAA"))

    def _ask(self, name: str, kind: str) -> Sequence[dns.resolver.Answer]:
        seconds = min(_QUERY_SECONDS, self._ends - time.monotonic())
        if seconds <= 0 or self._resolver is None:
            raise DnsUnavailable(name)
        try:
            return list(self._resolver.resolve(name, kind, lifetime=seconds, search=False, raise_on_no_answer=False))
        except dns.resolver.NXDOMAIN:
            return []
        except (dns.exception.DNSException, OSError):
            raise DnsUnavailable(name) from None


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
    published = spf_of(lookup, name)
    if len(published) != 1:
        text = f"{name} has {len(published) or 'no'} SPF record{'s' if len(published) > 1 else ''}"
        advice = f"publish one TXT record at {name} that names your relay, such as v=spf1 include:relay.example ~all"
        yield DomainFinding(matter="spf", level="error", text=text, advice=advice)
        return
    words = published[0].lower().split()
    lookups = spf_lookups(lookup, published[0])
    if lookups > SPF_LOOKUPS_MAX:
        advice = "receivers give up at the eleventh, and SPF fails: include fewer"
        yield DomainFinding(matter="spf", level="error", text=f"{name} needs more than 10 lookups", advice=advice)
    elif "+all" in words or "all" in words:
        advice = "end the record with ~all or -all"
        yield DomainFinding(matter="spf", level="error", text=f"{name} lets everyone send", advice=advice)
    else:
        yield DomainFinding(matter="spf", level="ok", text=f"{name}: {published[0]}")


def _dkim(lookup: Lookup, domain: SendingDomain) -> Iterator[DomainFinding]:
    for key in domain.keys:
        yield _own_key(key, published_key(lookup.txt(key.name)))
    for selector in domain.selectors:
        name = f"{selector}._domainkey.{domain.name}"
        published = published_key(lookup.txt(name))
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
    place, published = dmarc_of(lookup, domain.name)
    policies = [tags(record).get("p", "").lower() for record in published]
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
    organization, published = dmarc_of(lookup, domain.name)
    own = tags(published[0]) if published else {}
    signing = {key.domain for key in domain.keys} | ({domain.name} if domain.selectors else set())
    passing = [
        how
        for how, aligned in {
            "SPF": is_aligned(domain.envelope, domain.name, organization, own.get("aspf", "r")),
            "DKIM": any(is_aligned(name, domain.name, organization, own.get("adkim", "r")) for name in signing),
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


class SenderSettings(Protocol):
    """Of `EmailSettings`, what is asked here."""

    @property
    def sender(self) -> Address | None: ...
    @property
    def return_path(self) -> Address | None: ...
    @property
    def email_bounce_domain(self) -> str: ...
    @property
    def email_nameserver(self) -> str: ...
    @property
    def dkim_keys(self) -> str: ...


def sending_domain(
    settings: SenderSettings, domain: str, signer: DkimSigner, selectors: Sequence[str] = ()
) -> SendingDomain:
    """A domain as this app sends from it.

    Raises:
        ConfigurationError: it is no domain.
    """
    try:
        name = idna.encode(domain.strip().rstrip("."), uts46=True).decode().lower()
    except idna.IDNAError:
        raise ConfigurationError(f"{domain!r} is no domain; give one, such as shop.example") from None
    back = settings.return_path
    own = signing_domain(name, {key.domain for key in signer.keys})
    return SendingDomain(
        name=name,
        envelope=settings.email_bounce_domain or (back.domain if back is not None else name),
        bounces=settings.email_bounce_domain,
        keys=[key for key in signer.keys if key.domain == own],
        selectors=selectors,
    )


def risks(settings: SenderSettings) -> dict[str, str]:
    """What `effects doctor` warns of: errors in the DNS where effects signs, or has bounces come back. 3 seconds at
    most; silence of the name servers is no finding.
    """
    if settings.sender is None or not (settings.dkim_keys or settings.email_bounce_domain):
        return {}
    try:
        signer = DkimSigner(load_keys(parse_entries(settings.dkim_keys)))
    except ConfigurationError as error:
        return {str(error): "mend EFFECTS_DKIM_KEYS: no worker starts with it"}
    sending = sending_domain(settings, settings.sender.domain, signer)
    findings = examine_domain(Lookup(seconds=DOCTOR_SECONDS, nameserver=settings.email_nameserver), sending)
    return {finding.text: finding.advice for finding in findings if finding.level == "error"}
