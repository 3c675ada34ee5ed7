"""`effects email check` and `effects doctor` against a name server on loopback."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import pytest

from effects import ConfigurationError
from effects.keys.encryption import generate_key
from effects.operate.doctor import examine
from effects_email import EmailSettings
from effects_email.domain import (
    DOCTOR_SECONDS,
    DnsUnavailable,
    Lookup,
    examine_domain,
    is_aligned,
    sending_domain,
    spf_lookups,
)
from tests.cli.conftest import Run, _logging, run
from tests.conftest import AppFactory
from tests.email.dkim.keys import both, ed25519, published, rsa, setting, signer
from tests.peers.dns import NameServer

__all__ = ["_logging", "run"]
Zone: TypeAlias = dict[str, dict[str, list[str]]]
Serve: TypeAlias = Callable[..., NameServer]
KEYS = f"k1={generate_key()},digest={generate_key()}"


def txt(record: str) -> dict[str, list[str]]:
    pieces = [record[start : start + 200] for start in range(0, len(record), 200)]
    return {"TXT": [" ".join(f'"{piece}"' for piece in pieces)]}


def zone(changes: Mapping[str, Mapping[str, list[str]] | None] | None = None) -> Zone:
    """All as it should be, but for `changes`; None for a name that there is not."""
    names: dict[str, Any] = {
        "shop.example": {"TXT": ['"v=spf1 include:relay.example ~all"', '"another"'], "MX": ["10 mx.shop.example."]},
        "bounces.shop.example": {"TXT": ['"v=spf1 include:relay.example -all"'], "MX": ["5 mx.shop.example."]},
        "relay.example": txt("v=spf1 ip4:192.0.2.0/24 -all"),
        "_dmarc.shop.example": txt("v=DMARC1; p=none; rua=mailto:dmarc@shop.example"),
        **{name: txt(record) for name, record in published(both()).items()},
        **(changes or {}),
    }
    return {name: records for name, records in names.items() if records is not None}


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[NameServer] = []

    def start(names: Zone, **options: Any) -> NameServer:
        servers.append(NameServer(names, **options).__enter__())
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def findings(server: NameServer, name: str = "shop.example", *, keys: str = "", **options: Any) -> dict[str, list[str]]:
    """What is not in order: matter → levels and texts."""
    settings = EmailSettings(email_nameserver=server.address, email_bounce_domain="bounces.shop.example")
    domain = sending_domain(settings, name, signer(keys or both()), **options)
    shown: dict[str, list[str]] = {}
    for finding in examine_domain(Lookup(seconds=10, nameserver=server.address), domain):
        if finding.level != "ok":
            shown.setdefault(finding.matter, []).append(f"{finding.level}: {finding.text}")
            assert finding.advice or finding.level == "unknown"
    return shown


def test_a_domain_in_order_has_no_findings(serve: Serve) -> None:
    assert findings(serve(zone())) == {}
    assert findings(serve(zone({"news.shop.example": {"MX": ["1 mx.shop.example."]}})), "news.shop.example") == {}


OTHER = txt(published(setting(s2026=rsa(2)))["s2026._domainkey.shop.example"])
REVOKED, TEST = txt("v=DKIM1; k=rsa; p="), txt(published(both())["s2026._domainkey.shop.example"] + "; t=y")
BOUNCES, OWN_KEY, DMARC = "bounces.shop.example", "s2026._domainkey.shop.example", "_dmarc.shop.example"
FAULTS: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("no-spf", {BOUNCES: {"MX": ["1 mx."]}}, {"spf": "error: has no SPF record"}),
    ("two-spf", {BOUNCES: {"TXT": ['"v=spf1 -all"', '"v=spf1 ~all"'], "MX": ["1 mx."]}},
     {"spf": "error: has 2 SPF records"}),
    ("open-spf", {BOUNCES: {"TXT": ['"v=spf1 +all"'], "MX": ["1 mx."]}}, {"spf": "error: lets everyone"}),
    ("deep-spf", {BOUNCES: {"TXT": ['"v=spf1 include:bounces.shop.example -all"'], "MX": ["1 mx."]}},
     {"spf": "error: needs more than 10"}),
    ("no-key", {OWN_KEY: None}, {"dkim": "error: has no record"}),
    ("revoked", {OWN_KEY: REVOKED}, {"dkim": "error: is revoked"}),
    ("other-key", {OWN_KEY: OTHER},
     {"dkim": "error: has another key"}),
    ("test-key", {OWN_KEY: TEST}, {"dkim": "warning: is marked"}),
    ("no-dmarc", {DMARC: None}, {"dmarc": "error: has no record"}),
    ("bad-dmarc", {DMARC: txt("v=DMARC1; p=perhaps")}, {"dmarc": "error: has no single"}),
    ("no-bounces", {BOUNCES: {"TXT": ['"v=spf1 -all"']}}, {"bounces": "error: takes no mail"}),
    ("null-mx", {"shop.example": {"TXT": ['"v=spf1 -all"'], "MX": ["0 ."]}}, {"mx": "error: takes no mail"}),
    ("no-mx", {"shop.example": {"A": ["192.0.2.1"]}}, {"mx": "warning: has an address and no MX"}),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), [fault[1:] for fault in FAULTS], ids=[fault[0] for fault in FAULTS])
def test_each_fault_is_named_alone(changes: dict[str, Any], expected: dict[str, str], serve: Serve) -> None:
    shown = findings(serve(zone(changes)))
    assert shown.keys() == expected.keys()
    for matter, text in expected.items():
        level, _, words = text.partition(": ")
        assert shown[matter][0].startswith(f"{level}: "), shown
        assert words in shown[matter][0]


def test_a_key_for_later_is_to_be_published_and_a_relays_selector_is_looked_up(serve: Serve) -> None:
    later = f"{both()},{setting(s2099=rsa(2))};from=2099-01-01"
    assert findings(serve(zone()), keys=later) == {"dkim": ["warning: s2099._domainkey.shop.example has no record"]}
    names = zone({"relay._domainkey.shop.example": txt("v=DKIM1; p=abc")})
    assert findings(serve(names), selectors=["relay"]) == {}
    assert findings(serve(names), selectors=["nil"]) == {"dkim": ["error: nil._domainkey.shop.example has no key"]}


def test_alignment_follows_the_mode_of_the_dmarc_record(serve: Serve) -> None:
    strict = zone({"_dmarc.shop.example": txt("v=DMARC1; p=Reject; adkim=s; aspf=s")})
    own = setting("elsewhere.example", s1=ed25519())
    assert findings(serve(strict)) == {}  # by DKIM, although the bounces' domain is another
    assert set(findings(serve(strict), keys=own)) == {"dkim", "alignment"}
    assert is_aligned("bounces.shop.example", "shop.example", "shop.example", "r")
    assert not is_aligned("bounces.shop.example", "shop.example", "shop.example", "s")
    assert not is_aligned("ashop.example", "shop.example", "shop.example", "r")


@pytest.mark.parametrize(
    ("record", "count"),
    [
        ("v=spf1 -all", 0), ("v=spf1 a mx a:x.example/24 ip4:1.2.3.4 ptr -all", 4),
        ("v=spf1 include:relay.example redirect=nil.example", 2),
    ],
)  # fmt: skip
def test_the_lookups_of_spf_are_counted(record: str, count: int, serve: Serve) -> None:
    assert spf_lookups(Lookup(seconds=10, nameserver=serve(zone()).address), record) == count


# -- the DNS that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"rcode": "SERVFAIL"}, {"rcode": "REFUSED"}])
def test_a_name_server_that_fails_leaves_everything_unknown(options: dict[str, Any], serve: Serve) -> None:
    shown = findings(serve(zone(), **options))
    assert {text.partition(":")[0] for texts in shown.values() for text in texts} == {"unknown"}
    assert set(shown) == {"spf", "dkim", "dmarc", "alignment", "mx", "bounces"}


def test_a_silent_name_server_takes_no_longer_than_all_questions_may(serve: Serve) -> None:
    server = serve(zone(), silent=True)
    lookup = Lookup(seconds=0.3, nameserver=server.address)
    for _ in range(3):
        with pytest.raises(DnsUnavailable):
            lookup.txt("shop.example")
    questions = len(server.asked)
    with pytest.raises(DnsUnavailable):
        lookup.mx("shop.example")
    assert len(server.asked) == questions
    with pytest.raises(ConfigurationError, match="EFFECTS_EMAIL_NAMESERVER"):
        Lookup(seconds=1, nameserver="ns.example")


@pytest.mark.parametrize(("nameserver", "host", "port"), [
    ("9.9.9.9", "9.9.9.9", 53), ("9.9.9.9:5353", "9.9.9.9", 5353), ("2620:fe::fe", "2620:fe::fe", 53),
    ("::1", "::1", 53), ("[2620:fe::9]:5353", "2620:fe::9", 5353),
])  # fmt: skip
def test_a_name_server_has_an_address_of_either_kind(nameserver: str, host: str, port: int) -> None:
    resolver = Lookup(seconds=1, nameserver=nameserver)._resolver
    assert resolver is not None
    assert (resolver.nameservers, resolver.port) == ([host], port)


# -- the commands ----------------------------------------------------------------------------------------------------


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def set_variables(server: NameServer, **more: str) -> None:
        variables = {
            "KEYS": KEYS, "EMAIL_FROM": "Shop <hello@shop.example>", "DKIM_KEYS": both(),
            "EMAIL_BOUNCE_DOMAIN": "bounces.shop.example", "EMAIL_NAMESERVER": server.address, **more,
        }  # fmt: skip
        for name, value in variables.items():
            monkeypatch.setenv(f"EFFECTS_{name}", value)

    return set_variables


def test_the_command_says_what_providers_demand(run: Run, serve: Serve, environment: Callable[..., None]) -> None:
    environment(serve(zone()))
    answer = run("email", "check", "Shop.Example.", "--json")
    document = json.loads(answer.out)
    assert (answer.exit_code, document["domain"]) == (0, "shop.example")
    assert {demand["provider"] for demand in document["demands"]} == {"Gmail", "Yahoo", "Microsoft"}
    assert {demand["met"] for demand in document["demands"]} == {"met", "see for yourself"}
    environment(serve(zone({"_dmarc.shop.example": None})))
    answer = run("email", "check", "shop.example", "--json")
    missing = {demand["provider"] for demand in json.loads(answer.out)["demands"] if "dmarc" in demand["missing"]}
    assert (answer.exit_code, missing) == (1, {"Gmail", "Yahoo", "Microsoft"})
    shown = run("email", "check", "shop.example")
    assert "publish there: v=DMARC1; p=none" in " ".join(shown.out.split())
    assert run("email", "check", "not a domain").exit_code == 2


def test_without_a_key_dkim_is_for_the_relay(run: Run, serve: Serve, environment: Callable[..., None]) -> None:
    environment(serve(zone()), DKIM_KEYS="")
    document = json.loads(run("email", "check", "shop.example", "--json").out)
    [finding] = [finding for finding in document["findings"] if finding["matter"] == "dkim"]
    assert finding["level"] == "warning"
    assert "--selector" in finding["advice"]


def test_doctor_warns_of_errors_alone_and_of_no_silence(app_factory: AppFactory, serve: Serve) -> None:
    def settings_findings(server: NameServer) -> list[tuple[str, str]]:
        app = app_factory(
            job_types=[], keys=KEYS, email_from="a@shop.example", dkim_keys=both(), email_nameserver=server.address
        )
        return [(finding.level, finding.text) for finding in examine(app) if finding.check == "settings"]

    assert DOCTOR_SECONDS <= 3
    assert settings_findings(serve(zone())) == [("ok", "no problem found in the settings")]
    assert settings_findings(serve(zone({"_dmarc.shop.example": None}))) == [
        ("warning", "_dmarc.shop.example has no record")
    ]
    assert settings_findings(serve(zone(), rcode="SERVFAIL")) == [("ok", "no problem found in the settings")]
    assert EmailSettings(email_from="a@shop.example").risks() == {}
