"""What a screen says is true: each state by its own word, one moment for all numbers, one zone, whole sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import unescape

import pytest
from sqlalchemy import CheckConstraint, Connection, Engine, event, text
from sqlalchemy.exc import DBAPIError

from effects.operate.tables.queue_status import read_workers
from effects.web import Dashboard, Person, dashboard
from tests.support.manual_workers import run_sql
from tests.web.browsing import Visitor, plain
from tests.web.conftest import Shop, Visiting
from tests.web.full_shop import FullShop, pages_of

_IN = re.compile(r"\b(\w+) IN \(((?:'[a-z_]+'(?:, )?)+)\)")
_BARE_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}")


@pytest.fixture
def visitor(full: FullShop) -> Iterator[Visitor]:
    board: Dashboard = dashboard(guard=lambda request: Person("ann", role="admin", personal=True), effects=full.app)
    yield Visitor(board)
    board.close()


def vocabularies(full: FullShop) -> dict[tuple[str, str], list[str]]:
    """Table and column → the words that the database admits there."""
    words_of = {}
    for table in full.app.store.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, CheckConstraint):
                for column, words in _IN.findall(str(constraint.sqltext)):
                    words_of[table.fullname, column] = re.findall(r"'([a-z_]+)'", words)
    return words_of


# Where the states of a table are shown: the page, and what its chips call a word of the column.
SHOWN: dict[tuple[str, str], Callable[[FullShop], str]] = {
    ("effects_report_runs", "state"): lambda full: "/reports",
    ("effects_webhook_endpoints", "status"): lambda full: "/webhooks",
    ("effects_sent_emails", "state"): lambda full: "/email/messages",
    ("effects_delivered_webhooks", "state"): lambda full: "/webhooks/deliveries",
    ("effects_jobs", "status"): lambda full: "/jobs",
    ("effects_job_history", "status"): lambda full: f"/jobs/{full.dead}",
}
OTHER_WORDS = {("effects_jobs", "failed"): "retrying"}


def test_each_state_is_shown_by_its_own_word(full: FullShop, visitor: Visitor) -> None:
    """Of every package; only a live job's `failed` has another name."""
    words, seen = vocabularies(full), 0
    assert SHOWN.keys() <= words.keys()
    for (table, column), page in SHOWN.items():
        for word in words[table, column]:
            with suppress(DBAPIError):  # a state that takes more than its word
                run_sql(full.app, f"UPDATE {table} SET {column} = :word", word=word)
                visitor.app.site.readings.forget()
                chips = re.findall(
                    r'<span class="chip [a-z]+"><span[^>]*>.</span> ([^<]+)</span>', visitor.get(page(full)).text
                )
                expected = OTHER_WORDS.get((table, word), word).replace("_", " ")
                assert expected in chips, (table, word, set(chips))
                seen += 1
    assert seen > 25


def test_a_failed_worker_and_a_failed_run_are_not_retrying(full: FullShop, visitor: Visitor) -> None:
    run_sql(full.app, "UPDATE effects_report_runs SET state = 'failed', error_code = '42703'")
    now = full.app.store.sql.now
    run_sql(full.app, f"UPDATE effects_workers SET ended_at = {now}, exit_code = 70, end_reason = 'it stalled'")
    with full.app.store.read() as connection:
        assert {worker.state for worker in read_workers(full.app.store, connection, 60.0)} == {"failed"}
    for page in ("/reports", f"/reports/runs/{full.run}", "/workers"):
        chips = re.findall(r'class="chip[^>]*>.*?</span> ([a-z ]+)</span>', visitor.get(page).text)
        assert ("failed" in chips, "retrying" in chips) == (True, False), page


def test_the_numbers_of_a_page_are_of_one_moment(shop: Shop, visiting: Visiting) -> None:
    """Another job dies while the page reads: its sentence, its causes and its badge all tell of before."""
    store, died = shop.app.store, 0

    def die(connection: Connection, cursor: object, statement: str, *_: object) -> None:
        nonlocal died
        if "AS last_hour" in statement and not died:
            died = 1
            history = f"INSERT INTO {store.sql.job_history} (id, job_type, queue, status) VALUES (99, 'x', 'q', 'dead')"
            unresolved = f"INSERT INTO {store.sql.unresolved} (job_id, job_type, queue) VALUES (99, 'x', 'q')"
            with store.begin() as connection_beside:
                connection_beside.execute(text(history))
                connection_beside.execute(text(unresolved))

    visitor = visiting("viewer")
    visitor.get("/settings")
    visitor.app.site.readings.forget()
    event.listen(Engine, "before_cursor_execute", die)
    try:
        page = visitor.get("/").text
    finally:
        event.remove(Engine, "before_cursor_execute", die)
    assert died
    words = plain(page)
    in_rows = sum(map(int, re.findall(r'<td data-label="affected">([0-9]+) jobs?</td>', page)))
    badge = re.search(r'id="needing">([0-9]+)<', page)
    assert badge is not None
    assert "held: 1 may have happened" in words
    assert "scripted: 1 not done" in words
    assert "2 dead in the last hour" in words
    assert (in_rows, int(badge[1])) == (2, 2)
    assert re.search(r"Counted \d+ s ago", words)


def test_every_time_on_a_page_is_in_one_zone(full: FullShop, visitor: Visitor) -> None:
    """A browser converts `<time>` elements; a time beside them would stay in UTC."""
    run_sql(full.app, f"UPDATE effects_limits SET paused_until = {full.app.store.sql.after('600')}")
    bare = {}
    for path in pages_of(full):
        page = re.sub(r"<time [^>]*>[^<]*</time>", "", visitor.get(path).text)
        if times := _BARE_TIME.findall(re.sub(r'<(?:input|progress|svg)[^>]*>|="[^"]*"', "", page)):
            bare[path] = times
    assert bare == {}


def test_a_time_that_cannot_be_shown_is_said_to_be_unreadable(full: FullShop, visitor: Visitor) -> None:
    """And stays so in a browser, which converts `<time>` elements; the rows beside it are as they were."""
    far = "'infinity'" if full.app.store.is_postgresql else "400000000000000000"
    run_sql(full.app, f"UPDATE effects_webhook_events SET created_at = {far} WHERE id = :id", id=full.event)
    page = visitor.get("/webhooks/events").text
    assert page.count("unreadable (after year 9999)</td>") == 1
    assert page.count("<tr data-row>") == 9


def test_a_code_of_the_database_has_words(full: FullShop, visitor: Visitor) -> None:
    run_sql(full.app, "UPDATE effects_unresolved SET error_code = '42703' WHERE unknown")
    assert "42703 the statement, or a name in it, is wrong" in plain(visitor.get("/needs").text)


def test_sentences_are_apart(full: FullShop, visitor: Visitor) -> None:
    run_sql(full.app, "UPDATE effects_limits SET breaker_state = 'open', breaker_failures = 3")
    for path in pages_of(full):
        page = visitor.get(path).text
        prose = [plain(unescape(each.replace("</span>", "").replace("<strong>", "")))
                 for each in re.findall(r"<p[^>]*>(.*?)</p>", page, re.DOTALL)]  # fmt: skip
        assert [each for each in prose if re.search(r"[a-z]\.[A-Z][a-z]+ ", each)] == [], path


def test_the_servers_own_words_are_quoted(full: FullShop, visitor: Visitor) -> None:
    reply = "5.7.1 Message rejected due to content restrictions (see https://x.example/policy)"
    run_sql(full.app, "UPDATE effects_sent_emails SET reply_code = 554, reply = :reply", reply=reply)
    page = visitor.get(f"/email/messages/{full.mail}").text
    assert f'<blockquote class="text">554 {reply}</blockquote>' in page
    answer = visitor.get(f"/webhooks/deliveries/{full.event}/{full.gone}").text
    assert "&lt;b&gt;!" in answer
