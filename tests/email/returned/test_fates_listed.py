"""What became of messages after a server took them, in lists: beside the status, and as a filter."""

from __future__ import annotations

import pytest

from effects import Effects
from effects_email import admin
from effects_email.admin import list_emails
from effects_email.returned.taking import take_report
from effects_email.tables import lists
from tests.cli.conftest import Run, _logging, run
from tests.email.returned.conftest import Written, address_of
from tests.email.returned.corpus import cases

__all__ = ["_logging", "run"]
CASES = {case.name: case for case in cases()}
FATES = {
    "ann": ["postfix: delivered, on request", "complaints: with the address"],
    "ben": ["postfix: unknown user at the next server"],
    "cat": ["postfix: mailbox full at delivery"],
    "dan": ["postfix: delivered, on request"],
    "eve": ["postfix: delayed"],
    "fay": [],
}


def report_all(shop: Effects, written: Written) -> None:
    for name, reports in FATES.items():
        receipt = written(f"{name}@example.org", key=name)
        for case in reports:
            data = CASES[case].message(
                to=address_of(shop, receipt), address=f"{name}@example.org", message_id=receipt.message_id
            )
            assert take_report(data, effects=shop).fate == "taken"


def pages(shop: Effects, limit: int, **filters: str) -> list[str]:
    keys: list[str] = []
    before = None
    while True:
        page = list_emails(shop, before=before, limit=limit, **filters)  # type: ignore[arg-type]
        keys += [email.key for email in page.emails]
        before = page.next_before
        if before is None:
            return keys


def test_each_message_is_listed_with_its_fate(shop: Effects, written: Written) -> None:
    report_all(shop, written)
    listed = {email.key: email.fate for email in list_emails(shop).emails}
    assert listed == {
        "ann": "complained", "ben": "bounced", "cat": "bounced", "dan": "delivered", "eve": None, "fay": None,
    }  # fmt: skip


@pytest.mark.parametrize(("span", "batch", "limit"), [(10_000, 500, 50), (10_000, 500, 1), (2, 1, 50), (3, 2, 1)])
def test_messages_are_found_by_their_fate(
    shop: Effects, written: Written, monkeypatch: pytest.MonkeyPatch, span: int, batch: int, limit: int
) -> None:
    report_all(shop, written)
    monkeypatch.setattr(lists, "SPAN", span)
    monkeypatch.setattr(admin, "_BATCH", batch)
    assert pages(shop, limit, fate="bounced") == ["cat", "ben"]
    assert pages(shop, limit, fate="complained", status="intended") == ["ann"]
    assert pages(shop, limit, fate="bounced", address="ben@example.org") == ["ben"]
    assert pages(shop, limit, fate="delivered", status="done") == []


def test_the_command_has_the_same_word(shop: Effects, written: Written, run: Run) -> None:
    report_all(shop, written)
    listed = run("email", "list", "--fate", "bounced", "--json").json
    assert [(email["key"], email["fate"]) for email in listed] == [("cat", "bounced"), ("ben", "bounced")]
    assert "complained" in run("email", "list").out
