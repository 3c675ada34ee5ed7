"""What pages say and do, over rows in every state: as a person reads them, one action after the other."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import Engine, create_engine, event, text

from effects import Effects, Schedule, Unknown, enqueue
from effects.app.firing import fire_now
from effects.errors import StoreConflict, StoreUnavailable
from effects.store import schedules
from effects.store.limits import queue_pauses
from effects.store.numbers.rollups import WorkerRollup, write_rollups
from effects.web import Dashboard, PageRequest, Person, Visit, dashboard
from effects.web.database import ACT_BOUNDS, beside
from effects.web.failures import answer_of
from tests.support.manual_workers import ManualWorker, run_sql
from tests.support.scripted import Script
from tests.web.browsing import Visitor, plain
from tests.web.conftest import Shop, Visiting
from tests.web.full_shop import HELD
from tests.web.rows import audit_actions

PAGES = (
    "/",
    "/needs",
    "/decisions",
    "/numbers",
    "/bulk",
    "/jobs",
    "/queues",
    "/workers",
    "/schedules",
    "/limits",
    "/health",
    "/audit",
    "/why",
    "/settings",
)
_OF_A_CONNECTION = ("BEGIN", "COMMIT", "SHOW", "SELECT n.nspname")  # or of a transaction, or of an engine
STATEMENTS_MAX = 32  # of a page, before anything was read; the overview has a part of each package, webhooks three


def test_the_overview_says_what_needs_a_person(visiting: Visiting) -> None:
    words = plain(visiting("viewer").get("/").text)
    assert "held: 1 may have happened" in words
    assert "scripted: 1 not done" in words
    assert "no reply (held for an operator) (1)" in words  # what was said last
    assert "1 of 1 worker alive" in words


def test_the_story_of_an_effect_is_that_of_the_command(shop: Shop, visiting: Visiting) -> None:
    page = visiting("operator").get(f"/jobs/{shop.unknown}").text
    words = plain(page)
    assert (
        "charge:1 (held) is unknown (it may or may not have happened) after 1 attempt, last answer: no reply" in words
    )
    assert f"<code>effects resolve {shop.unknown} --as done</code>" in page
    assert all(button in words for button in ("It happened", "Leave it unknown", "Try it again", "Ignore it"))


def test_of_thousands_of_attempts_the_newest_are_shown(shop: Shop, visiting: Visiting) -> None:
    store = shop.app.store
    columns = [column.name for column in store.tables["attempt_log"].columns]
    values = ", ".join(f"{name} + i" if name in ("lease_token", "attempt") else name for name in columns)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 150)"
    copies = f"{numbers} SELECT {values} FROM {store.sql.attempt_log} CROSS JOIN n WHERE job_id = :id"
    with store.begin() as connection:
        insert = text(f"INSERT INTO {store.sql.attempt_log} ({', '.join(columns)}) {copies}")
        connection.execute(insert, {"id": shop.dead})
    words = plain(visiting("viewer").get(f"/jobs/{shop.dead}").text)
    assert "51 earlier ones are not shown" in words
    assert ("Attempt 52 " in words, "Attempt 151 " in words, "Attempt 51 " in words) == (True, True, False)


def test_a_viewer_is_told_which_role_an_action_needs(shop: Shop, visiting: Visiting) -> None:
    words = plain(visiting("viewer").get(f"/jobs/{shop.dead}").text)
    assert "Requeue it: needs the role operator" in words


def test_each_tab_has_its_count_and_dead_lists_what_is_dead(shop: Shop, visiting: Visiting) -> None:
    run_sql(shop.app, "INSERT INTO effects_job_history (id, job_type, status) VALUES (1000000, 'x', 'succeeded')")
    words = plain(visiting("viewer").get("/jobs?status=dead").text)
    assert "all queued 1 running 0 retrying 0 succeeded 2 dead 2 cancelled 0" in words
    assert "refused_by_peer" in words
    assert "searched" not in words


def test_why_it_waits_is_said(shop: Shop, visiting: Visiting) -> None:
    with shop.app.store.begin() as connection:
        queue_pauses.pause(shop.app.store, connection, "default", actor="cli:ann", reason="maintenance")
    words = plain(visiting("operator").get(f"/jobs/{shop.queued}").text)
    assert "Why it waits Its queue default is paused by cli:ann until it is resumed (maintenance)." in words
    assert "Resume default" in words


@pytest.mark.parametrize(
    ("action", "job", "did", "noted"),
    [
        ("run-now", "queued", "due", "run_now"),
        ("cancel", "queued", "cancelled", "cancel"),
        ("requeue", "dead", "requeued", "requeue"),
        ("requeue-unknown", "unknown", "requeued", "requeue"),
        ("requeue-done", "done", "requeued", "requeue"),
        ("mark-done", "unknown", "mark-done", "mark_done"),
        ("give-up", "unknown", "give-up", "give_up"),
        ("ignore", "dead", "ignored", "ignore"),
    ],
)
def test_each_action_on_a_job(action: str, job: str, did: str, noted: str, shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("admin")
    if action == "run-now":  # a job that is due needs no such button
        later = shop.app.store.sql.after("3600")
        run_sql(shop.app, f"UPDATE effects_jobs SET run_at = {later} WHERE id = {shop.queued}")
    path = f"/jobs/{getattr(shop, job)}/{action}"
    answer = visitor.act(path, reason="because")
    assert answer.status_code == 303
    assert answer.headers["location"].endswith(f"?did={did}")
    assert visitor.get(answer.headers["location"]).status_code == 200
    assert audit_actions(shop.app)[-1] == ("web:ann", noted)
    again = visitor.post(path, {"form_token": visitor.token(), "reason": "because"})
    assert again.status_code == (303 if action == "run-now" else 409)


@pytest.mark.parametrize("path", ["/jobs/{done}/requeue", "/jobs/{queued}/ignore", "/jobs/{dead}/mark-done"])
def test_an_action_that_is_not_possible_says_so(path: str, shop: Shop, visiting: Visiting) -> None:
    answer = visiting("admin").get(path.format(**vars(shop)))
    assert answer.status_code == 409
    assert "Nothing was changed" in answer.text


def test_to_ignore_needs_a_reason(shop: Shop, visiting: Visiting) -> None:
    answer = visiting("operator").act(f"/jobs/{shop.dead}/ignore", reason="")
    assert answer.status_code == 422
    assert "A reason is needed" in answer.text


@pytest.mark.parametrize(
    ("path", "action"),
    [
        ("/queues/pause?name=default", ("queue", "pause")),
        ("/queues/resume?name=default", ("queue", "resume")),
        ("/limits/pause?name=smtp", ("limit", "pause")),
        ("/limits/resume?name=smtp", ("limit", "resume")),
        ("/workers/drain?name=w1", ("worker", "drain")),
    ],
)
def test_each_action_on_what_has_a_name(path: str, action: tuple[str, str], shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("operator")
    if action[1] == "resume":
        visitor.act(path.replace("resume", "pause"))
    answer = visitor.act(path, reason="because")
    assert answer.status_code == 303
    assert visitor.get(answer.headers["location"]).status_code == 200
    assert audit_actions(shop.app)[-1] == ("web:ann", action[1])
    assert visitor.get(path.replace(path.partition("=")[2], "nothing")).status_code == 200
    unknown = visitor.act(path.replace(path.partition("=")[2], "nothing"), reason="because")
    assert unknown.status_code == 404


def test_a_schedule_that_runs_by_hand_says_whether_a_job_is_new(shop: Shop, visiting: Visiting) -> None:
    rarely, key = "0 0 29 2 *", "report:{previous_slot_date}"  # so that each run of the second one has the same key
    declared = [Schedule("fresh", "scripted", cron=rarely), Schedule("used", "scripted", cron=rarely, key=key)]
    schedules.register(shop.app.store, declared)
    fire_now(shop.app, "used", actor="cli:ann", slot=datetime.now(UTC) - timedelta(seconds=5))
    visitor = visiting("operator")
    for name, jobs in (("fresh", 1), ("used", 0)):
        answer = visitor.act(f"/schedules/run?name={name}")
        assert f"New jobs: {jobs};" in visitor.get(answer.headers["location"]).text


def test_what_is_looked_up_leads_to_its_story(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    token = visitor.token()

    def why(question: str) -> object:
        answer = visitor.post("/why", {"form_token": token, "q": question})
        return answer.headers.get("location") or (answer.status_code, plain(answer.text))

    assert why("dead:1") == f"/jobs/{shop.dead}"
    assert why(str(shop.unknown)) == f"/jobs/{shop.unknown}"
    assert "No ledger knows this" in str(why("no such key"))
    assert "needs the capability personal" in str(why("ann@example.com"))
    assert "No ledger knows this" in str(why("<1@example.com>"))


def test_a_look_up_of_an_address_is_noted_without_it(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer", personal=True)
    assert visitor.post("/why", {"form_token": visitor.token(), "q": "ann@example.com"}).status_code == 200
    assert audit_actions(shop.app)[-1] == ("web:ann", "look_up")
    with shop.app.store.read() as connection:
        log = str(connection.execute(text(f"SELECT * FROM {shop.app.store.sql.audit_log}")).all())
    assert "example.com" not in log


def test_addresses_in_stored_texts_are_hidden_until_they_are_asked_for(shop: Shop, visiting: Visiting) -> None:
    with shop.app.store.begin() as connection:
        words = "550 ann@example.com is unknown; see http://x.test/@a"
        connection.execute(text(f"UPDATE {shop.app.store.sql.job_history} SET last_error = :words"), {"words": words})
    visitor = visiting("admin", personal=True)
    assert "550 •••@example.com is unknown; see http://x.test/@a" in visitor.get("/needs").text
    path = f"/jobs/{shop.dead}"
    assert "ann@example.com" not in visitor.get(path).text


def test_a_word_of_an_error_is_no_pattern(visiting: Visiting) -> None:
    visitor = visiting("operator")
    for page in ("/jobs?word=", "/needs?word=", "/needs/bulk?do=requeue&effect=not_done&word="):
        for word in ("(", "no.", "*", "no one"):
            answer = visitor.get(f"{page}{quote(word)}")
            assert (answer.status_code, "letters, digits and underscores" in answer.text) == (400, True), (page, word)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("method", "error", "says"),
    [
        ("POST", StoreUnavailable("gone"), "whether the action was carried out is not known"),
        ("POST", StoreConflict("busy"), "only for some of them"),
        ("GET", StoreUnavailable("gone"), "this page can be loaded again"),
        ("GET", StoreConflict("busy"), "Load the page again"),
    ],
)
def test_an_action_that_was_cut_short_is_not_said_to_have_changed_nothing(
    method: str, error: Exception, says: str, visiting: Visiting
) -> None:
    board = visiting("operator").app
    assert isinstance(board, Dashboard)
    answer = answer_of(Visit(board.site, PageRequest(method, "/jobs"), Person("ann", role="operator")), error)
    assert answer is not None
    assert (answer.status, says in answer.body.decode()) == (503, True)
    assert "othing was changed" not in answer.body.decode()


def test_lists_have_pages_and_filters(shop: Shop, visiting: Visiting) -> None:
    for number in range(120):
        enqueue("scripted", Script(), key=f"n:{number}", effects=shop.app)
    visitor = visiting("viewer")
    seen: set[str] = set()
    path: str | None = "/jobs?status=queued"
    for _ in range(5):
        if path is None:
            break
        page = visitor.get(path).text
        rows = set(re.findall(r'href="/jobs/(\d+)"', page))
        assert not rows & seen
        seen |= rows
        older = re.search(r'href="([^"]+)" rel="next"', page)
        path = older[1].replace("&amp;", "&") if older else None
    assert (path, len(seen)) == (None, 121)
    assert set(re.findall(r'href="/jobs/(\d+)"', visitor.get("/jobs?limit_key=smtp").text)) == {str(shop.queued)}
    assert set(re.findall(r'href="/jobs/(\d+)"', visitor.get("/needs?effect=unknown").text)) == {str(shop.unknown)}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 40])
def test_no_page_asks_the_database_once_for_each_row(rows: int, shop: Shop) -> None:
    """The same statements, whether a list has one row or forty."""
    worker = ManualWorker(shop.app, "w2")
    for number in range(rows):
        enqueue(HELD, Script(), key=f"many:{number}", effects=shop.app)
        job = worker.claim_one()
        worker.release(job)
        worker.settle((job, Unknown("no reply")), released=True)
        ManualWorker(shop.app, f"worker{number}")
    statements: list[str] = []

    def count(*arguments: object) -> None:
        statements.append(str(arguments[2]))

    counts = {}
    event.listen(Engine, "before_cursor_execute", count)
    try:
        for page in PAGES:
            board = dashboard(guard=lambda request: Person("ann", role="admin"), effects=shop.app)
            visitor = Visitor(board)
            visitor.get("/settings")  # opens the connection
            board.site.readings.forget()
            statements.clear()
            assert visitor.get(page).status_code == 200
            counts[page] = len([each for each in statements if not each.lstrip().startswith(_OF_A_CONNECTION)])
            board.close()
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    del counts["/health"]  # what `effects doctor` asks
    assert {page: number for page, number in counts.items() if number > STATEMENTS_MAX} == {}


def test_an_error_of_the_guard_admits_no_one(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    def guard(request: PageRequest) -> Person:
        raise RuntimeError("secret: rosebud")

    board = dashboard(guard=guard, effects=shop.app)
    answer, alive = Visitor(board).get("/"), Visitor(board).get("/-/alive")
    board.close()
    assert (answer.status_code, alive.status_code) == (500, 200)
    assert "rosebud" not in answer.text + caplog.text
    assert re.search(r"reference [0-9a-f]{8}", answer.text)


def test_without_tables_the_page_says_what_to_run(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    with shop.app.store.begin() as connection:
        connection.execute(text(f"ALTER TABLE {shop.app.store.sql.unresolved} RENAME TO away"))
    answer = visitor.get("/needs")
    assert answer.status_code == 503
    assert "effects doctor" in answer.text


def test_dashboards_have_connections_of_their_own(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    assert isinstance(visitor.app, Dashboard)
    store = visitor.app.site.app.store
    assert store.engine is not shop.app.engine
    if store.is_postgresql:
        with store.read() as connection:
            settings = [
                connection.exec_driver_sql(f"SHOW {name}").scalar()
                for name in ("statement_timeout", "application_name")
            ]
        assert settings == ["2s", "effects-web"]
        with store.within(ACT_BOUNDS):
            for begin in (store.begin, store.begin_own):
                with begin() as connection:
                    assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "0"


def test_connections_are_made_as_those_of_the_apps_engine_are(database_url: str) -> None:
    """By its `creator`, say, which fetches a password for each."""
    if database_url.startswith("sqlite"):
        pytest.skip("a file asks for no password")
    created: list[str] = []

    def create() -> object:
        created.append("a connection")
        return psycopg.connect(database_url)

    engine = create_engine("postgresql+psycopg://", creator=create)
    app = Effects(database_url, engine=engine)
    pages = beside(app)
    for store in (app.store, pages.store):
        store.locate()  # by a connection that nothing else uses
    before = len(created)
    with pages.store.read() as connection:
        assert connection.exec_driver_sql("SHOW application_name").scalar() == "effects-web"
    with app.store.read() as connection:
        assert connection.exec_driver_sql("SHOW application_name").scalar() != "effects-web"
    with pages.store.within(ACT_BOUNDS), pages.store.begin_own() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "0"
    assert len(created) == before + 2
    app.dispose()
    engine.dispose()


def test_a_page_is_cut_short_and_an_action_is_not(shop: Shop) -> None:
    app = beside(shop.app, seconds=0.05)
    if app.store.is_postgresql:
        work = text("SELECT count(*) FROM generate_series(1, 2000000)")
    else:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000)"
        work = text(f"{numbers} SELECT count(*) FROM n")
    with pytest.raises((StoreConflict, StoreUnavailable)), app.store.read() as connection:
        connection.execute(work)
    with app.store.within(ACT_BOUNDS), app.store.begin() as connection:
        assert connection.execute(work).scalar_one() == 2_000_000


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_action_waits_for_an_sqlite_file_as_long_as_it_may_take(shop: Shop) -> None:
    """A worker that writes and writes lets others in by chance; a page does not wait for that."""
    store = beside(shop.app).store
    waits = []
    for bounds in (None, ACT_BOUNDS, None):
        with store.within(bounds), store.begin() as connection:
            waits.append(connection.exec_driver_sql("PRAGMA busy_timeout").scalar())
    assert waits == [2_000, 10_000, 2_000]


def test_the_overview_shows_the_last_hour_and_the_worst_type_first(shop: Shop, visiting: Visiting) -> None:
    with shop.app.store.read() as connection:
        minute = shop.app.store.now(connection) // 60 * 60
    row = partial(WorkerRollup, begins_at=minute - 60, seconds=60, queue="default", worker="w1")
    write_rollups(shop.app.store, [row(job_type="fine", done=150), row(job_type="poor", done=30, refused=20)])
    page = visiting("viewer").get("/").text
    words = plain(page)
    assert "180 done a minute" in words
    assert "10.0 % not done" in words
    assert words.index("poor 20 50") < words.index("fine 0 150")


def test_a_count_that_takes_too_long_names_the_commands(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    assert isinstance(visitor.app, Dashboard)
    site, numbers = (
        visitor.app.site,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000000)",
    )
    site.counting, site.readings.patience = beside(shop.app, seconds=0.05), 60.0
    with shop.app.store.begin() as connection:
        limits = shop.app.store.sql.limits
        connection.execute(text(f"ALTER TABLE {limits} RENAME TO away"))
        connection.execute(text(f"CREATE VIEW {limits} AS {numbers} SELECT away.* FROM away, n WHERE n.i < 0"))
    answer = visitor.get("/limits")
    assert answer.status_code == 503
    assert "longer than 10 seconds" in answer.text
    assert "effects limits list" in answer.text
    site.counting.store.dispose()


def test_connections_that_the_server_has_ended_are_not_noticed(shop: Shop, visiting: Visiting) -> None:
    if not shop.app.store.is_postgresql:
        pytest.skip("a file has no server")
    visitor = visiting("viewer")
    assert [visitor.get(page).status_code for page in ("/needs", "/jobs", "/schedules")] == [200] * 3
    with shop.app.store.begin() as connection:
        ended = text(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE application_name = 'effects-web' AND datname = current_database()"
        )
        assert connection.execute(ended).scalar_one() > 0
    assert isinstance(visitor.app, Dashboard)
    visitor.app.site.readings.forget()
    assert [visitor.get(page).status_code for page in ("/needs", "/jobs", "/schedules")] == [200] * 3


def test_the_numbers_are_a_file_too(shop: Shop, visiting: Visiting) -> None:
    visitor = visiting("viewer")
    answer = visitor.get("/numbers.csv?newer=1h")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert 'filename="numbers-1h.csv"' in answer.headers["content-disposition"]
    head, *lines = answer.text.splitlines()
    assert head.startswith("from,seconds,done,")
    assert head.endswith(",wait_p50_seconds,wait_p95_seconds,run_p50_seconds,run_p95_seconds")
    assert len(lines) > 10
    assert {line.count(",") for line in lines} == {head.count(",")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:00Z,60,+", lines[0])  # no worker measured: empty, not zero


def test_the_numbers_of_a_type_without_any_are_not_those_of_all(shop: Shop, visiting: Visiting) -> None:
    with shop.app.store.read() as connection:
        minute = shop.app.store.now(connection) // 60 * 60 - 120
    row = WorkerRollup(begins_at=minute, seconds=60, job_type="scripted", queue="default", worker="w1", done=40)
    write_rollups(shop.app.store, [row])
    visitor, idle = visiting("viewer"), "newer=1h&type=nightly&queue=default"
    assert ",60,40," in visitor.get("/numbers.csv?newer=1h").text
    assert ",60,40," in visitor.get("/numbers.csv?newer=1h&type=scripted&queue=default").text
    assert ",60,40," not in visitor.get(f"/numbers.csv?{idle}").text
    words = plain(visitor.get(f"/numbers?{idle}").text)
    assert ("nightly in default" in words, "No attempt in the last 1h" in words) == (True, True)
