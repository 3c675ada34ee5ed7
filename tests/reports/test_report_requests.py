"""Requesting: in the caller's transaction, under a key, with params that fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy.orm import Session

from effects import Effects, IdempotencyConflict, JobNotFound, SchemaMismatch, cancel
from effects.keys.encryption import generate_key
from effects.store.db.sql import Window
from effects_reports import (
    ParamsInvalid,
    ReportInvalid,
    ReportNotFound,
    ReportStateError,
    cancel_report,
    find_report,
    list_reports,
    open_result,
    report_status,
    request_report,
)
from effects_reports.api import find_reports
from effects_reports.tables.runs import RunFilters
from tests.reports.conftest import Shop, drain
from tests.reports.shop import REPORTS, OrdersParams, fill
from tests.support.manual_workers import row, rows, run_sql

KEY = "sales_report:2026-01-14"


def test_a_request_is_part_of_the_callers_transaction(shop: Effects) -> None:
    with Session(shop.engine) as session:
        request_report("orders", session=session, effects=shop)
        session.rollback()
    assert (rows(shop, "report_runs"), rows(shop, "generated_reports"), rows(shop, "jobs")) == ([], [], [])
    with Session(shop.engine) as session, session.begin():
        receipt = request_report("orders", session=session, effects=shop)
    assert report_status(receipt.run_id, effects=shop).state == "requested"
    assert row(shop, "jobs")["job_type"] == "report.plan"


@pytest.mark.slow
def test_the_same_key_is_the_same_run_whatever_state_it_is_in(shop: Effects) -> None:
    fill(shop, 5)
    first = request_report("orders", {"above": 1}, key=KEY, effects=shop)
    again = request_report("orders", OrdersParams(above=1), key=KEY, effects=shop)
    assert (first.existing, again.existing, again.run_id) == (False, True, first.run_id)
    drain(shop)
    ready = request_report("orders", {"above": 1}, key=KEY, effects=shop)
    assert (ready.run_id, ready.state, ready.existing) == (first.run_id, "ready", True)
    assert len(rows(shop, "generated_reports")) == 1


def test_a_run_is_found_by_the_key_of_its_request(shop: Effects) -> None:
    first = request_report("orders", key=KEY, effects=shop)
    assert find_report("orders", key=KEY, effects=shop).run_id == first.run_id
    cancel_report(find_report("orders", key=KEY, effects=shop).run_id, effects=shop)
    second = request_report("orders", key=KEY, effects=shop)
    assert find_report("orders", key=KEY, effects=shop).run_id == second.run_id
    for name, key in (("orders", "other"), ("other", KEY)):
        with pytest.raises(ReportNotFound):
            find_report(name, key=key, effects=shop)
    with pytest.raises(JobNotFound):
        cancel(key=KEY, actor="ann", effects=shop)


@pytest.mark.parametrize("ended", ["failed", "cancelled", "expired"])
def test_a_new_generation_follows_a_run_without_a_file(ended: str, shop: Effects) -> None:
    first = request_report("orders", key=KEY, effects=shop)
    if ended == "cancelled":
        cancel_report(first.run_id, effects=shop)
    else:
        run_sql(shop, "UPDATE effects_report_runs SET state = :state", state=ended)
    again = request_report("orders", {"above": 9}, key=KEY, effects=shop)
    assert (again.existing, again.generation) == (False, 2)
    assert again.run_id != first.run_id
    assert request_report("orders", {"above": 9}, key=KEY, effects=shop).run_id == again.run_id
    shown = list_reports(effects=shop)
    assert [(report.run_id, report.generation) for report in shown] == [(again.run_id, 2), (first.run_id, 1)]


def test_runs_are_listed_a_page_at_a_time(shop: Effects) -> None:
    newest_first = [request_report("orders", key=f"k{number}", effects=shop).run_id for number in range(5)][::-1]
    prime = request_report("primes", effects=shop).run_id
    for age, run_id in enumerate([prime, *newest_first]):  # else two may be of one millisecond
        created_at = shop.store.sql.after(f"-{age + 1}")
        run_sql(shop, f"UPDATE effects_report_runs SET created_at = {created_at} WHERE id = '{run_id}'")
    run_sql(shop, "UPDATE effects_report_runs SET state = 'failed' WHERE key IN ('k1', 'k2')")

    def pages(**filters: Any) -> list[str]:
        runs: list[str] = []
        while page := find_reports(shop, RunFilters(before=runs[-1] if runs else None, limit=2, **filters)):
            runs += [report.run_id for report in page]
        return runs

    assert pages() == pages(window=Window(newer=3600.0)) == [prime, *newest_first]
    assert pages(window=Window(older=3600.0)) == []
    assert pages(report="orders") == newest_first
    assert pages(state="failed") == pages(report="orders", state="failed") == newest_first[2:4]
    assert pages(key="k3") == [newest_first[1]]
    assert pages(key="k3", report="primes") == []
    with pytest.raises(ReportNotFound, match="'nothing'"):
        list_reports(before="nothing", effects=shop)


@pytest.mark.parametrize("difference", [{"params": {"above": 2}}, {"format": "ndjson"}])
def test_a_key_is_for_one_report_only(difference: dict[str, Any], shop: Effects) -> None:
    first = request_report("orders", key=KEY, effects=shop)
    with pytest.raises(IdempotencyConflict, match=f"belongs to run {first.run_id}, which has other"):
        request_report("orders", **{"key": KEY, "effects": shop, **difference})
    assert request_report("primes", key=KEY, effects=shop).existing is False  # another report's keys


def test_many_at_once_under_one_key_are_one_run(shop: Effects) -> None:
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda _: request_report("orders", key=KEY, effects=shop), range(16)))
    assert len({receipt.run_id for receipt in receipts}) == 1
    assert sum(not receipt.existing for receipt in receipts) == 1
    assert len(rows(shop, "jobs")) == 1


def test_without_a_key_the_same_report_params_and_format_are_one_run(shop: Effects) -> None:
    wishes: list[dict[str, Any]] = [
        {}, {"params": {"above": 3}}, {"params": OrdersParams(above=3)}, {"params": {"above": 4}}, {"format": "ndjson"},
    ]  # fmt: skip
    receipts = [request_report("orders", **wish, effects=shop) for wish in wishes * 2]
    assert [receipt.existing for receipt in receipts] == [False, False, True, False, False, *[True] * 5]
    assert len({receipt.run_id for receipt in receipts}) == 4
    assert {receipt.key.partition(":")[0] for receipt in receipts} == {"orders"}
    cancel_report(receipts[0].run_id, effects=shop)
    assert request_report("orders", effects=shop).generation == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "order"},
            "no report 'order' is known .known: euros, .*orders",
        ),
        ({"params": {"above": "x"}}, "report 'orders': the params do not fit"),
        ({"format": "pdf"}, "no format 'pdf'; it offers csv, csv.gz"),
        ({"key": ""}, "key must have 1 to 200 printable characters"),
        ({"key": "k" * 201}, "key must have 1 to 200 printable characters"),
        ({"key": "a\nb"}, "key must have 1 to 200 printable characters"),
    ],
    ids=["name", "params", "format", "no-key", "long-key", "line-break"],
)
def test_an_invalid_request_is_refused_before_it_is_written(
    arguments: dict[str, Any], message: str, shop: Effects
) -> None:
    with pytest.raises(ReportInvalid, match=message):
        request_report(**{"name": "orders", "effects": shop, **arguments})
    assert rows(shop, "report_runs") == []


def test_no_repr_shows_the_params(shop: Effects) -> None:
    run_id = request_report("primes", {"below": 3, "who": "rosebud"}, effects=shop).run_id
    status = report_status(run_id, effects=shop)
    assert status.params["who"] == "rosebud"
    assert "rosebud" not in repr(status)


UNSTORABLE: list[tuple[Any, str]] = [
    ("a\0b", "NUL"), ({"\0": 1}, "NUL"), ("\ud800", "half of another"), (float("nan"), "a number is NaN"),
    ([{"x": float("-inf")}], "a number is NaN or infinite"), ({1: 2}, "a name is no text"), (object(), "object"),
]  # fmt: skip


def test_params_that_json_or_a_database_cannot_hold_are_refused_at_the_call(shop: Effects) -> None:
    for value, says in UNSTORABLE:
        with pytest.raises(ParamsInvalid, match=f"the params cannot be stored: .*{says}"):
            request_report("primes", {"below": value}, effects=shop)
    assert rows(shop, "report_runs") == []


def test_the_size_of_params_is_bounded(shop: Effects) -> None:
    with pytest.raises(ReportInvalid, match="at most 65,536"):
        request_report("primes", {"below": 3, "text": "x" * 70_000}, effects=shop)


def test_a_secret_value_that_does_not_fit_is_not_repeated(shop: Effects) -> None:
    with pytest.raises(ReportInvalid) as refusal:
        request_report("orders", {"above": "rosebud"}, effects=shop)
    assert "rosebud" not in str(refusal.value)


def test_keys_are_still_known_after_their_secret_was_rotated(shop_factory: Shop) -> None:
    old = shop_factory(keys=f"digest={generate_key()}")
    first = request_report("orders", key=KEY, effects=old)
    assert request_report("orders", key=KEY, effects=old).run_id == first.run_id


def test_a_missing_report_is_reported(shop: Effects) -> None:
    with pytest.raises(ReportNotFound, match="there is no run 'rep_1' of a report"):
        report_status("rep_1", effects=shop)
    run_id = request_report("orders", effects=shop).run_id
    with pytest.raises(ReportStateError, match="is requested: its file is not ready"):
        open_result(run_id, effects=shop)
    assert list_reports(report="euros", effects=shop) == []
    assert [report.run_id for report in list_reports(state="requested", effects=shop)] == [run_id]


def test_a_database_without_tables_names_the_command_to_run(empty_database_url: str) -> None:
    app = Effects(empty_database_url, reports=REPORTS)
    with pytest.raises(SchemaMismatch, match=r"run `effects .*init`"):
        request_report("orders", effects=app)
    app.dispose()
