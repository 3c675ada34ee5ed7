"""Signatures as dkimpy verifies them, and which keys make them."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta

import pytest

from effects_email.dkim.signing import DkimSigner
from tests.email.dkim.generated import message, source
from tests.email.dkim.keys import both, ed25519, published, rsa, setting, signer, verdicts
from tests.support.sampling import sample

NOON = datetime(2024, 12, 1, 12, tzinfo=UTC)
DOMAIN = "shop.example"


def h_of(signed: bytes) -> list[str]:
    """The names that the first signature covers."""
    matched = re.search(rb"h=([^;]+);", signed)
    assert matched is not None
    return re.sub(r"\s", "", matched[1].decode()).split(":")


def signers_of(signed: bytes) -> list[tuple[str, str]]:
    """Selector and domain of each signature."""
    head = signed.partition(b"\r\nFrom:")[0].decode()
    return [(s, d) for d, s in re.findall(r"d=([^;]+); s=([^;]+);", head)]


def test_generated_messages_verify_with_dkimpy() -> None:
    records, shop = published(both()), signer(both())
    faults = []
    for number in sample(range(1000), 60):
        data = message(number)
        signed = shop.sign(data, DOMAIN, source(number)[0].date)
        if verdicts(signed, records) != [True, True] or not signed.endswith(data):
            faults.append(number)
        assert max(map(len, signed.split(b"\r\n"))) <= 998
    assert faults == []


def test_what_rfc_8058_wants_is_signed_and_from_once_more_than_there_is() -> None:
    covered = h_of(signer(both()).sign(message(2), DOMAIN, NOON))
    assert {
        "from", "to", "subject", "date", "message-id", "mime-version", "content-type", "list-unsubscribe",
        "list-unsubscribe-post",
    } <= set(covered)  # fmt: skip
    assert covered.count("from") == 2
    assert "list-unsubscribe" not in h_of(signer(both()).sign(message(1), DOMAIN, NOON))


@pytest.mark.parametrize(
    ("altered", "into"),
    [
        (b"List-Unsubscribe-Post: List", b"List-Unsubscribe-Post: Lost"),
        (b"https://shop.example/unsubscribe", b"https://evil.example/unsubscribe"),
        (b"\r\nSubject: ", b"\r\nSubject: not "),
        (b"\r\nTo: ", b"\r\nTo: x@evil.example, "),
        (b"\r\nDate: ", b"\r\nDate: 1 "),
        (b"\r\nMessage-ID: <", b"\r\nMessage-ID: <0"),
        (b"MIME-Version: 1.0", b"MIME-Version: 1.1"),
        (b"\r\nFrom: ", b"\r\nFrom: boss@evil.example\r\nFrom: "),
        (b"\r\nSubject: ", b"\r\nFrom: boss@evil.example\r\nSubject: "),
    ],
)  # fmt: skip
def test_a_change_of_what_is_signed_is_seen(altered: bytes, into: bytes) -> None:
    signed = signer(both()).sign(message(2), DOMAIN, NOON)
    assert verdicts(signed, published(both())) == [True, True]
    assert altered in signed
    assert verdicts(signed.replace(altered, into, 1), published(both())) == [False, False]


def test_a_change_of_the_body_is_seen_and_added_blanks_are_not() -> None:
    records, signed = published(both()), signer(both()).sign(message(5), DOMAIN, NOON)
    head, _, body = signed.partition(b"\r\n\r\n")
    assert verdicts(signed + b"\r\n\r\n", records) == [True, True]
    assert verdicts(head + b"\r\n\r\n" + body.replace(b"\r\n", b" \t\r\n"), records) == [True, True]
    assert verdicts(head + b"\r\n\r\nx" + body, records) == [False, False]


@pytest.mark.parametrize("body", [b"", b"\r\n", b"\r\n\r\n", b" \r\n", b"a", b" a\t \r\n\r\n \r\n", b"\r\na\r\n"])
def test_bodies_at_the_edge_verify(body: bytes) -> None:
    data = b"From: a@shop.example\r\nTo: b@example.org\r\n\r\n" + body
    assert verdicts(signer(both()).sign(data, DOMAIN, NOON), published(both())) == [True, True]


def test_the_same_message_has_the_same_signature_in_another_process() -> None:
    first, second = (signer(both()).sign(message(3), DOMAIN, NOON) for _ in range(2))
    assert first == second


def test_a_key_signs_for_the_domains_below_its_own_and_no_others() -> None:
    shop = signer(f"{both()},{setting('deep.shop.example', own=ed25519(2))}")
    by_domain = {
        domain: signers_of(shop.sign(message(1, domain), domain, NOON))
        for domain in ("shop.example", "news.shop.example", "a.deep.shop.example", "ashop.example", "example")
    }
    pair = [("ed2026", "shop.example"), ("s2026", "shop.example")]
    assert by_domain == {
        "shop.example": pair, "news.shop.example": pair, "a.deep.shop.example": [("own", "deep.shop.example")],
        "ashop.example": [], "example": [],
    }  # fmt: skip


def test_the_date_of_a_message_decides_which_key_signs() -> None:
    later = f"{setting(s2026=rsa())},{setting(s2027=rsa(2))};from=2025-01-01,{setting(ed=ed25519())};from=2025-02-01"
    shop = signer(later)
    began = datetime(2025, 1, 1, tzinfo=UTC)
    moments = [began - timedelta(seconds=1), began, began + timedelta(days=40)]
    assert [[selector for selector, _ in signers_of(shop.sign(message(1), DOMAIN, moment))] for moment in moments] == [
        ["s2026"], ["s2027"], ["ed", "s2027"],
    ]  # fmt: skip
    assert verdicts(shop.sign(message(1), DOMAIN, moments[2]), published(later)) == [True, True]


def test_what_was_released_is_signed_as_it_was_then() -> None:
    """However the setting has changed since, as long as the keys of then are in it."""
    before, after = signer(both()), signer(f"{both()},{setting(s2027=rsa(2))};from=2024-01-01")
    none, newer = DkimSigner(), signer(setting(s2027=rsa(2)))
    for released_by in (none, before, signer(setting(s2026=rsa())), newer):
        data = released_by.sign(message(4), DOMAIN, NOON)
        released_as = hashlib.sha256(data).hexdigest()
        assert after.sign(message(4), DOMAIN, NOON, released_as=released_as) == data
    lost = hashlib.sha256(before.sign(message(4), DOMAIN, NOON)).hexdigest()
    assert newer.sign(message(4), DOMAIN, NOON, released_as=lost) == newer.sign(message(4), DOMAIN, NOON)
