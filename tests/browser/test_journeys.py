"""Goal: an operator gets from a question to the deed, by mouse, by keyboard alone, and without JavaScript."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from sqlalchemy import text

from effects import Refused
from effects.store.limits import queue_pauses
from effects.worker import Worker
from effects_reports import request_report
from tests.browser.conftest import Opening
from tests.support.many_dead import many_dead
from tests.web.full_shop import FullShop
from tests.web.rows import audit_actions

MANY = 5_000
TABS_MAX = 120
IS_BEHIND = """element => document.activeElement !== document.body
    && (element.compareDocumentPosition(document.activeElement) & Node.DOCUMENT_POSITION_FOLLOWING)"""


class Mouse:
    """Clicks."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def follow(self, role: str, name: str | re.Pattern[str]) -> None:
        self.page.get_by_role(role, name=name, exact=isinstance(name, str)).first.click()

    def write(self, label: str, value: str) -> None:
        self.page.get_by_label(label).first.fill(value)

    def tick(self, label: str) -> None:
        self.page.get_by_label(label, exact=True).click()


class Keyboard(Mouse):
    """Tab, letters and Enter; no pointer."""

    def follow(self, role: str, name: str | re.Pattern[str]) -> None:
        self._reach(self.page.get_by_role(role, name=name, exact=isinstance(name, str)).first)
        with self.page.expect_navigation():
            self.page.keyboard.press("Enter")

    def write(self, label: str, value: str) -> None:
        self._reach(self.page.get_by_label(label).first)
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.type(value)

    def tick(self, label: str) -> None:
        self._reach(self.page.get_by_label(label, exact=True))
        self.page.keyboard.press("Space")

    def _reach(self, target: Any) -> None:
        handle = target.element_handle()
        for _ in range(TABS_MAX):
            if self.page.evaluate("element => element === document.activeElement", handle):
                return
            self.page.keyboard.press("Shift+Tab" if self.page.evaluate(IS_BEHIND, handle) else "Tab")
        raise AssertionError(f"{target} is not reached by Tab")


@pytest.fixture(params=["mouse", "keyboard", "no script"])
def hand(request: pytest.FixtureRequest, opening: Opening) -> Any:
    page = opening(script=request.param != "no script")
    return Keyboard(page) if request.param == "keyboard" else Mouse(page)


def words(hand: Any) -> str:
    return " ".join(hand.page.inner_text("main").split())


def test_why_a_mail_did_not_arrive(hand: Any, acting: tuple[FullShop, str]) -> None:
    hand.page.goto(acting[1])
    hand.follow("link", "Messages")
    hand.write("What became of the mail to", "bob@example.com")
    hand.page.keyboard.press("Enter")
    hand.page.wait_for_url("**/email/address")
    assert "It is not written to: hard bounce." in words(hand)
    assert hand.page.url.endswith("/email/address")
    assert audit_actions(acting[0].app)[-1] == ("web:ann", "look_up")


def test_decide_an_unknown(hand: Any, acting: tuple[FullShop, str]) -> None:
    hand.page.goto(acting[1])
    hand.follow("link", "Decide 3")
    assert "charge:1" in words(hand)
    hand.write("How you know, for the audit log", "it is on the bank's list")
    hand.follow("button", "It happened")
    assert "Recorded as done, on your word." in words(hand)
    assert "charge:2" in words(hand)
    assert audit_actions(acting[0].app)[-1] == ("web:ann", "mark_done")


def test_pause_a_partner(hand: Any, acting: tuple[FullShop, str]) -> None:
    hand.page.goto(acting[1])
    hand.follow("link", re.compile("is failing$"))
    hand.follow("link", re.compile("^(Pause|Try now)$"))
    hand.write("Why (may be empty), for the audit log", "they asked for it")
    hand.follow("button", re.compile("^(Pause|Try now)$"))
    assert re.search("The limit key is paused|It is tried now", words(hand))
    assert audit_actions(acting[0].app)[-1][1] in ("pause", "resume", "run_now")


def test_why_webhooks_are_missing(hand: Any, acting: tuple[FullShop, str]) -> None:
    """Two clicks to what the partner said last, one more to try again."""
    hand.page.goto(acting[1])
    hand.follow("link", "Endpoints")
    hand.follow("link", re.compile(r"gone\?…"))
    assert re.search(r"The last response, \d+ \w+ ago, was 503:? ?<b>!", words(hand))
    hand.follow("link", "Recover")
    assert re.search(r"Given up: \d+ in the last 1 hour", words(hand))
    hand.follow("button", "Recover")
    assert re.search(r"\d deliveries are sent again", words(hand))


def test_why_a_report_is_late(hand: Any, acting: tuple[FullShop, str]) -> None:
    """Two clicks to the step that it waits for."""
    shop, url = acting
    request_report("numbers", {"again": "1"}, effects=shop.app)
    hand.page.goto(url)
    hand.follow("link", "Runs")
    hand.follow("link", "numbers")
    assert re.search(r"Requested \d+ s ago, requested. Usual time: \d+ s.", words(hand))
    assert "Now: rep_" in words(hand)
    assert "waits for a worker on queue reports" in words(hand)


def test_see_what_a_colleague_did(hand: Any, acting: tuple[FullShop, str]) -> None:
    hand.page.goto(acting[1])
    hand.follow("link", "Audit log")
    hand.follow("link", "cli:ann")
    assert "pause" in words(hand)
    assert "the bank is down" in words(hand)
    assert "actor=cli%3Aann" in hand.page.url


def test_requeue_all_of_one_error_and_cancel_half_way(hand: Any, acting: tuple[FullShop, str]) -> None:
    shop, url = acting
    with shop.app.store.begin() as connection:
        queue_pauses.resume(shop.app.store, connection, "default", actor="test", app_queues={"default"})
    many_dead(shop.app, MANY, ending=Refused("no", code="lost_in_bulk"))
    hand.page.goto(f"{url}/needs")
    hand.follow("link", "lost_in_bulk")
    hand.follow("link", "Requeue all")
    assert f"{MANY:,} jobs" in words(hand)
    hand.follow("button", "Requeue all")
    assert f"0 of {MANY:,}" in words(hand)
    hand.follow("link", "Cancel")
    worker = Worker(shop.app)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        hand.follow("button", "Cancel")
    finally:
        worker.stop()
        thread.join()
    assert "Cancelled: what it has done stays done." in words(hand)
    done = re.search(r"([\d,]+) of 5,000", words(hand))
    assert done is not None
    assert int(done[1].replace(",", "")) < MANY


def test_choose_rows_and_act_on_them(hand: Any, acting: tuple[FullShop, str]) -> None:
    shop, url = acting
    hand.page.goto(f"{url}/needs?effect=not_done")
    hand.tick(f"Tick job {shop.dead}")
    hand.tick(f"Tick job {shop.dead - 2}")
    hand.follow("button", "Ignore")
    assert "Ignore: 2 jobs" in words(hand)
    hand.write("Why, for the audit log", "the invoices were printed")
    hand.follow("button", "Ignore")
    assert "2 done." in words(hand)
    hand.follow("link", "Back to the list")
    left = hand.page.locator("tbody .tick input").evaluate_all("boxes => boxes.map(box => box.name)")
    assert left[0] == f"job-{shop.dead - 1}"
    assert audit_actions(shop.app)[-2:] == [("web:ann", "ignore")] * 2


def test_keys_tick_a_span_of_rows(opening: Opening, shops: dict[str, Any]) -> None:
    page, shop = opening(), shops["shop"]
    page.goto(f"{shops['full'].url}/needs?effect=not_done")
    for key in ("j", "x", "j", "j", "j", "X", "k", "x", "b"):
        page.keyboard.press(key)
    ticked = page.locator("tbody .tick input:checked").evaluate_all("boxes => boxes.map(box => box.name)")
    assert ticked == [f"job-{shop.dead - back}" for back in (0, 1, 3)]
    assert page.evaluate("document.activeElement.textContent") == "Requeue"
    page.keyboard.press("Enter")
    page.wait_for_url("**/needs/ticked?*")
    assert page.get_by_role("heading", level=1).inner_text() == "Requeue: 3 jobs"


def test_keys_lead_everywhere(opening: Opening, shops: dict[str, Any]) -> None:
    page, url = opening(), shops["full"].url
    page.goto(url)
    for key, path in (("n", "/needs"), ("j", "/jobs"), ("u", "/numbers"), ("e", "/webhooks"), ("r", "/reports"),
                      ("f", "/reports/buckets"), ("m", "/email/messages"), ("o", "/")):  # fmt: skip
        page.keyboard.press("g")
        page.keyboard.press(key)
        page.wait_for_url(f"{url}{path}", wait_until="networkidle")
    page.keyboard.press("/")
    page.keyboard.type("charge:1")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/jobs/\d+$"))
    page.goto(f"{url}/jobs?status=dead")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.closest('tr').rowIndex") == 2


def test_a_list_that_has_become_empty_says_so_by_itself(opening: Opening, acting: tuple[FullShop, str]) -> None:
    shop, url = acting
    page = opening()
    page.goto(f"{url}/email/messages?status=done")
    assert page.locator("tr[data-row]").count() == 1
    with shop.app.store.begin() as connection:
        connection.execute(text(f"UPDATE {shop.app.store.sql.sent_emails} SET state = 'refused'"))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_text("No message is done.").wait_for()
    assert page.locator("tr[data-row]").count() == 0
    assert page.refused == []


def test_times_are_the_viewers_and_utc_beside(opening: Opening, shops: dict[str, Any]) -> None:
    page = opening()
    page.goto(f"{shops['full'].url}/jobs")
    shown = page.locator("td time").first
    assert shown.inner_text().endswith("+05:30")
    assert shown.get_attribute("title").startswith("UTC: ")


def test_on_a_narrow_screen_the_pages_are_behind_a_button(opening: Opening, shops: dict[str, Any]) -> None:
    page = opening(width=320, script=False)
    page.goto(shops["full"].url)
    jobs = page.get_by_role("link", name="Jobs", exact=True)
    assert not jobs.is_visible()
    page.get_by_role("button", name=re.compile("^Pages")).click()
    jobs.click()
    assert page.url.endswith("/jobs")
