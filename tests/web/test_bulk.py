"""Goal: one action on a whole list does what was previewed, and can be watched and ended; decisions, one by one."""

from __future__ import annotations

import re

import pytest
from sqlalchemy import text

from effects import Refused, Unknown, enqueue
from effects.app.late_jobs import BulkJob
from effects.store.limits import queue_pauses
from tests.support.manual_workers import ManualWorker
from tests.support.scripted import Script
from tests.web.browsing import plain
from tests.web.conftest import Shop, Visiting
from tests.web.full_shop import HELD
from tests.web.rows import audit_actions, digest

DEAD = "/needs/bulk?do=requeue&effect=not_done"


def die(shop: Shop, jobs: int) -> None:
    """So many more dead letters of one cause."""
    worker = ManualWorker(shop.app, "w9")
    for number in range(jobs):
        enqueue("scripted", Script(), key=f"gone:{number}", effects=shop.app)
    with shop.app.store.begin() as connection:  # the shop's own waits
        queue_pauses.pause(shop.app.store, connection, "other", actor="test", app_queues={"other"})
    for _ in range(jobs + 1):
        worker.settle((worker.claim_one(), Refused("no", code="gone")))


def unresolved(shop: Shop) -> int:
    with shop.app.store.read() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {shop.app.store.sql.unresolved}")).scalar_one())


def test_few_are_acted_on_at_once(shop: Shop, visiting: Visiting) -> None:
    die(shop, 3)
    visitor = visiting("operator")
    assert "Requeue all: 4 jobs" in plain(visitor.get(f"{DEAD}&code=gone").text)
    answer = visitor.act(f"{DEAD}&code=gone", reason="partner is back")
    assert answer.status_code == 200
    assert "4 done" in plain(answer.text)
    assert unresolved(shop) == 2  # the others of the shop
    assert audit_actions(shop.app)[-4:] == [("web:ann", "requeue")] * 4


def test_many_are_acted_on_by_a_worker_and_can_be_cancelled(shop: Shop, visiting: Visiting) -> None:
    die(shop, 110)
    visitor = visiting("operator")
    answer = visitor.act(f"{DEAD}&code=gone", reason="partner is back")
    assert answer.status_code == 303
    page = answer.headers["location"]
    bulk_id = page.partition("?")[0].rpartition("/")[2]
    assert "0 of 111" in plain(visitor.get(page).text)
    assert "cancel" in plain(visitor.get(f"/bulk/cancel?name={bulk_id}").text).lower()
    ended = visitor.act(f"/bulk/cancel?name={bulk_id}", reason="wrong ones")
    assert ended.headers["location"] == f"/bulk/{bulk_id}?did=bulk_cancel"
    assert "What it has done stays done" not in visitor.get(f"/bulk/{bulk_id}").text
    assert visitor.post("/bulk/cancel", {"form_token": visitor.token(), "name": bulk_id}).status_code == 409
    assert unresolved(shop) == 113
    assert BulkJob.name in visitor.get("/jobs?status=queued").text
    assert plain(visitor.get("/bulk").text).count("cancelled") == 1


def test_a_list_that_has_changed_is_shown_again(shop: Shop, visiting: Visiting) -> None:
    die(shop, 30)
    visitor = visiting("operator")
    fields = visitor.form(f"{DEAD}&code=gone", "/needs/bulk")
    assert fields["expected"] == "31"
    before = digest(shop)
    changed = visitor.post("/needs/bulk", {**fields, "expected": "12"})
    assert changed.status_code == 409
    assert "It was 12 when you looked, and is 31 now" in plain(changed.text)
    assert digest(shop) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"as_of": "x"}, {"as_of": "nan"}, {"as_of": "1e400"}, {"as_of": "1e17"}, {"expected": "-1"},
        {"expected": "many"}, {"do": "drop"},
        {"do": "mark_done"}, {"effect": ""}, {"effect": "unknown"}, {"code": "x" * 300},
    ],
)  # fmt: skip
def test_a_form_that_no_page_made_does_nothing(changes: dict[str, str], shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    fields = visitor.form(f"{DEAD}&code=refused_by_peer", "/needs/bulk")
    before = digest(shop)
    assert visitor.post("/needs/bulk", {**fields, **changes}).status_code in (400, 409, 422)
    assert digest(shop) == before


@pytest.mark.parametrize(
    ("path", "button"),
    [
        ("/jobs?status=queued", "Run all now"), ("/jobs?status=queued", "Cancel all"), ("/jobs?status=dead", "Requeue"),
        ("/needs?effect=unknown", "All of them happened"), ("/needs?effect=not_done", "Ignore all"),
    ],
)  # fmt: skip
def test_a_list_offers_what_may_be_done_with_all(path: str, button: str, visiting: Visiting) -> None:
    assert button in plain(visiting("operator").get(path).text)
    assert button not in plain(visiting("viewer").get(path).text)


def test_all_queued_jobs_are_cancelled(shop: Shop, visiting: Visiting) -> None:
    answer = visiting("operator").act("/jobs/bulk?do=cancel&status=queued&limit_key=smtp")
    assert "1 done" in plain(answer.text)
    assert audit_actions(shop.app)[-1] == ("web:ann", "cancel")


def test_ages_are_those_of_the_preview(shop: Shop, visiting: Visiting) -> None:
    store, visitor = shop.app.store, visiting("operator")
    with store.begin() as connection:
        created = store.sql.after("-1000")
        connection.execute(text(f"UPDATE {store.sql.jobs} SET created_at = {created}"))
        as_of = store.now(connection) - 600
    fields = visitor.form("/jobs/bulk?do=cancel&status=queued", "/jobs/bulk")
    answer = visitor.post("/jobs/bulk", {**fields, "newer": "15m", "as_of": str(as_of), "expected": "1"})
    assert "1 done" in plain(answer.text)


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/bulk?do=cancel&status=queued&newer=1000y", "/jobs?status=nope", "/jobs?status=failed",
        "/numbers?newer=9d", "/needs?effect=none",
        "/webhooks/deliveries?status=x", "/reports?status=x", "/limits?paused=true",
    ],
)  # fmt: skip
def test_a_filter_of_another_word_is_refused_and_not_left_aside(path: str, visiting: Visiting) -> None:
    answer = visiting("operator").get(path)
    assert answer.status_code == 400
    assert "must be one of: " in answer.text


def test_ignoring_all_needs_a_reason(shop: Shop, visiting: Visiting) -> None:
    before = digest(shop)
    assert visiting("operator").act("/needs/bulk?do=ignore&effect=not_done").status_code == 422
    assert digest(shop) == before


def test_decisions_come_one_after_the_other(shop: Shop, visiting: Visiting) -> None:
    worker = ManualWorker(shop.app, "w2")
    enqueue(HELD, Script(), key="charge:2", effects=shop.app)
    worker.settle((worker.claim_one(), Unknown("cut off")))  # the shop's own that waits
    job = worker.claim_one()
    worker.release(job)
    worker.settle((job, Unknown("no reply")), released=True)
    visitor = visiting("operator")
    assert "charge:1" in visitor.get("/decisions").text
    fields = {"form_token": visitor.token(), "next": "desk", "reason": "it is in the provider's list"}
    answer = visitor.post(f"/jobs/{shop.unknown}/mark-done", fields)
    assert answer.headers["location"] == f"/decisions?after={shop.unknown}&did=mark-done"
    following = visitor.get(answer.headers["location"]).text
    assert "Recorded as done, on your word." in following
    assert "charge:2" in following
    again = visitor.post(f"/jobs/{shop.unknown}/mark-done", fields)
    assert again.status_code == 409
    assert audit_actions(shop.app)[-1] == ("web:ann", "mark_done")


def test_a_viewer_sees_cases_and_decides_none(visiting: Visiting) -> None:
    page = visiting("viewer").get("/decisions").text
    assert "To decide needs the role operator" in page
    assert "<button>It happened" not in page


def test_the_ticked_rows_are_acted_on_and_no_others(shop: Shop, visiting: Visiting) -> None:
    die(shop, 3)
    visitor = visiting("operator")
    rows = re.findall(r'name="(job-[0-9]+)"', visitor.get("/needs?effect=not_done&code=gone").text)
    assert len(rows) == 4
    ticked = "&".join(f"{row}=y" for row in rows[:2])
    answer = visitor.act(f"/needs/ticked?do=ignore&{ticked}", reason="test data")
    assert "2 done" in plain(answer.text)
    assert unresolved(shop) == 4
    left = re.findall(r'name="(job-[0-9]+)"', visitor.get("/needs?effect=not_done&code=gone").text)
    assert left == rows[2:]
    again = visitor.act(f"/needs/ticked?do=ignore&{rows[1]}=y&{rows[2]}=y", reason="test data")
    assert "1 done, 1 refused" in plain(again.text)  # a colleague was faster with one of them
    assert visitor.get("/needs/ticked?do=ignore").status_code == 422
    assert visitor.get(f"/needs/ticked?do=nothing&{ticked}").status_code == 400
    form = {"form_token": visitor.token(), "do": "ignore", "reason": "x"}
    assert [visitor.post("/needs/ticked", {**form, "jobs": ids}).status_code for ids in ("", "1,", "x", "1e9")] == [
        400
    ] * 4
    assert 'name="job-' not in visiting("viewer").get("/needs").text


def test_of_jobs_too_the_ticked_rows_are_acted_on(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    [row] = re.findall(r'name="(job-[0-9]+)"', visitor.get("/jobs?status=queued").text)
    assert 'name="job-' not in visitor.get("/jobs").text  # what may be done depends on the status
    assert "1 done" in plain(visitor.act(f"/jobs/ticked?do=cancel&{row}=y", reason="no longer").text)
    assert audit_actions(shop.app)[-1] == ("web:ann", "cancel")
