"""Each report of the corpus: read as it is listed, by either proof; taken once; and without a proof not at all."""

from __future__ import annotations

import pytest

from effects import Effects
from effects_email import events_of, find_suppressions, list_suppressions
from effects_email.returned.taking import take_report
from tests.email.returned.conftest import Written, address_of
from tests.email.returned.corpus import Case, cases, systems

SUPPRESSING = {"bounced_hard", "complained", "unsubscribed"}


def faults_of(shop: Effects, written: Written, case: Case, number: int, *, by_token: bool) -> list[str]:
    """What is not as it should be about one report of a message of its own."""
    address = f"user{number}.{by_token:d}@example.org"
    receipt = written(address)
    to = address_of(shop, receipt) if by_token else "bounces@shop.example"
    data = case.message(to=to, address=address, message_id="gone@shop.example" if by_token else receipt.message_id)
    report = take_report(data, effects=shop)
    events = events_of(receipt.message_id, effects=shop)
    if not case.kinds:
        expected = ("left_alone", 0, 0)
        read = (report.fate, len(events), len(find_suppressions(address, effects=shop)))
        return [] if read == expected else [f"{case.name}: {read}"]
    faults = []
    if report.fate != "taken" or report.key != receipt.key or not set(report.kinds) <= case.kinds:
        faults.append(f"{report.fate} as {report.kinds}")
    if not events or events[0].code != case.code:
        faults.append(f"code {[event.code for event in events]}")
    if bool(find_suppressions(address, effects=shop)) != (bool(set(report.kinds) & SUPPRESSING)):
        faults.append(f"suppressed: {find_suppressions(address, effects=shop)}")
    again = take_report(data, effects=shop)
    if again.fate != "known" or events_of(receipt.message_id, effects=shop) != events:
        faults.append(f"taken again: {again}")
    return [f"{case.name} ({'token' if by_token else 'Message-ID'}): {fault}" for fault in faults]


@pytest.mark.slow
def test_every_report_is_read_as_it_is_listed(shop: Effects, written: Written) -> None:
    faults = [
        fault
        for number, case in enumerate(cases())
        for by_token in (True, False)
        if by_token or "@MID@" in case.template or not case.kinds
        for fault in faults_of(shop, written, case, number, by_token=by_token)
    ]
    assert not faults, "\n".join(faults)


def test_without_a_proof_no_report_suppresses_anyone(shop: Effects, written: Written) -> None:
    receipt = written("ann@example.org")
    own = address_of(shop, receipt)
    forged = own.replace(own[10], "a" if own[10] != "a" else "b", 1)
    for case in cases():
        for to in ("bounces@shop.example", forged):
            report = take_report(
                case.message(to=to, address="ann@example.org", message_id="x@shop.example"), effects=shop
            )
            assert report.fate == ("not_ours" if case.kinds else "left_alone"), case.name
    assert list_suppressions(effects=shop) == []
    assert events_of(receipt.message_id, effects=shop) == []


def test_the_corpus_has_ten_systems() -> None:
    assert len(systems()) >= 10
    assert sum(systems().values()) >= 80
    assert len({case.name for case in cases()}) == len(cases())
