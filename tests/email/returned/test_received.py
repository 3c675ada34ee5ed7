"""Bounces that people received, of many mail servers: each is read as it is listed, by either proof, or left alone."""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from effects import Effects
from effects_email import events_of, find_suppressions, list_suppressions
from effects_email.returned.reading import read_report
from effects_email.returned.taking import kind_of, take_report
from tests.email.returned.conftest import Written, address_of
from tests.support.sampling import sample

FOLDER = Path(__file__).parent / "received"
Line = dict[str, str]


@cache
def listed() -> dict[str, list[Line]]:
    """File → its lines in `expected.csv`."""
    lines: dict[str, list[Line]] = defaultdict(list)
    with (FOLDER / "expected.csv").open(encoding="utf-8", newline="") as stream:
        for line in csv.DictReader(stream):
            lines[line["file"]].append(line)
    return lines


def is_report(line: Line) -> bool:
    return line["action"] != "left alone"


def test_there_are_enough_of_enough_systems() -> None:
    lines = [line for file in listed().values() for line in file]
    assert set(listed()) == {file.name for file in FOLDER.glob("*.eml")}
    assert len({line["file"] for line in lines if is_report(line)}) >= 60
    assert len({line["system"] for line in lines if is_report(line)}) >= 10


@pytest.mark.parametrize("name", sorted(listed()))
def test_each_is_read_as_listed(name: str) -> None:
    report = read_report((FOLDER / name).read_bytes())
    lines = [line for line in listed()[name] if is_report(line)]
    assert (report is not None) == bool(lines)
    if report is None:
        return
    read = [
        (recipient.addresses[:1], recipient.action, recipient.status or "", kind_of(recipient))
        for recipient in report.recipients
    ]
    assert read == [((line["recipient"],), line["action"], line["status"], line["kind"]) for line in lines]
    assert next(iter(report.message_ids), "") == lines[0]["message_id"]


def taken(shop: Effects, written: Written, name: str, line: Line, *, by_token: bool) -> tuple[str, bool, bool]:
    """Fate of the report of a message to the recipient that it names, whether it is an event, whether it suppresses."""
    address = line["recipient"] or "ann@example.org"
    receipt = written(address)
    to = address_of(shop, receipt) if by_token else "bounces@shop.example"
    data = (FOLDER / name).read_bytes()
    if not by_token:
        data = data.replace(line["message_id"].encode(), receipt.message_id.encode())
    report = take_report(data, came_to=to, effects=shop)
    events = [event.kind for event in events_of(receipt.message_id, effects=shop)]
    return report.fate, line["kind"] in events, bool(find_suppressions(address, effects=shop))


@pytest.mark.parametrize("by_token", [True, False])
def test_each_finds_its_message_and_suppresses_whom_it_names(shop: Effects, written: Written, by_token: bool) -> None:
    suppressed: set[str] = set()
    faults = []
    for name, lines in sample(listed().items(), 40):
        line = lines[0]
        if not by_token and not line["message_id"]:
            continue
        result = taken(shop, written, name, line, by_token=by_token)
        if line["kind"] == "bounced_hard":
            suppressed.add(line["recipient"].lower())
        expected = ("taken", True) if is_report(line) else ("left_alone", False)
        if result != (*expected, line["recipient"].lower() in suppressed):
            faults.append(f"{name}: {result}")
    assert not faults, "\n".join(faults)


def test_none_of_them_is_taken_without_a_proof(shop: Effects, written: Written) -> None:
    for name, lines in sample(listed().items(), 40):
        if lines[0]["recipient"]:
            written(lines[0]["recipient"], event_id=name)
        assert take_report((FOLDER / name).read_bytes(), effects=shop).fate in ("not_ours", "left_alone")
    assert list_suppressions(effects=shop) == []
