"""Goal: pages of packages show what happened and act as the commands do. Method: a shop with each of them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from effects import Refused
from effects.model.settlement import AttemptEnd, WorkerLost
from effects.store.limits import key_limits
from effects.web import Dashboard, Person, dashboard
from effects.web.security import Role
from effects_email import find_suppressions, send_templated_email
from effects_reports import report_status, request_report
from effects_webhooks import WebhookEvent, deliver_webhook
from effects_webhooks.admin.rotation import list_secrets
from effects_webhooks.tenants import ANY_TENANT
from effects_webhooks.writing import limit_key
from tests.support.manual_workers import ManualWorker
from tests.support.sampling import sample
from tests.web.browsing import Visitor, plain
from tests.web.full_shop import FullShop, pages_of
from tests.web.hostile import CORPUS, FIELDS
from tests.web.rows import audit_actions, digest
from tests.web.shapes import Shape


@pytest.fixture
def person(full: FullShop) -> Iterator[Callable[..., Visitor]]:
    boards: list[Dashboard] = []

    def make(role: Role = "operator", *, personal: bool = True) -> Visitor:
        boards.append(dashboard(guard=lambda request: Person("ann", role=role, personal=personal), effects=full.app))
        return Visitor(boards[-1])

    yield make
    for board in boards:
        board.close()


def test_each_page_shows_what_happened_without_what_is_personal(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person("viewer", personal=False)
    pages = {path: visitor.get(path) for path in pages_of(full) if "requeue" not in path}
    assert {path: answer.status_code for path, answer in pages.items() if answer.status_code != 200} == {}
    personal = ("ann@example.com", "bob@example.com", "eve@example.com", "12 €")
    assert [(path, word) for path, answer in pages.items() for word in personal if word in answer.text] == []
    texts = {path: plain(answer.text) for path, answer in pages.items()}
    assert "No delivery has succeeded for" in texts[f"/webhooks/endpoints/{full.gone}"]
    assert "503" in texts[f"/webhooks/deliveries/{full.event}/{full.gone}"]
    assert "1 of 1 rows, 1 of 1 chunks" in texts[f"/reports/runs/{full.run}"]
    assert "Where it is delivered" in texts[f"/reports/runs/{full.run}"]
    assert [texts[page].count("http_501") for page in (f"/reports/runs/{full.run}", "/reports/buckets")] == [1, 1]
    assert "none yet" in texts["/reports/buckets"]  # of the bucket that nothing went into
    assert "hard bounce" in texts["/email/suppressions"]
    assert "as it is now" in texts["/email/templates/show?name=welcome"]
    assert texts["/"].count("/gone?… is failing") == 1  # its pause is no row of its own
    assert "503 &lt;b&gt;! (1)" in texts["/"]
    assert [path for path, answer in pages.items() if "token=x" in answer.text] == []  # a partner's secret


def test_what_is_personal_is_shown_to_whom_may_see_it_and_noted(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person("viewer")
    form = {"form_token": visitor.token()}
    message = visitor.post(f"/email/messages/{full.mail}/reveal", form)
    assert "ann@example.com" in message.text
    assert "<body data-once>" in message.text  # to be loaded again it would need the form
    assert "<body>" in visitor.get(f"/email/messages/{full.mail}").text
    address = re.search(r'src="([^"]*ticket[^"]*)"', message.text)
    assert address is not None
    frame = visitor.get(html.unescape(address[1]))
    assert frame.status_code == 200
    assert frame.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert visitor.get(html.unescape(address[1]).replace("ticket=1", "ticket=2")).status_code == 404
    assert person("viewer").get(html.unescape(address[1])).status_code == 404  # another browser
    rows = visitor.post(f"/reports/runs/{full.run}/rows", form)
    assert "=a, b" in rows.text
    assert visitor.post(f"/reports/runs/{full.run}/file", form).content == b'\xef\xbb\xbfid,name\r\n1,"\'=a, b"\r\n'
    assert "12 €" in visitor.post(f"/webhooks/events/{full.event}/reveal", form).text
    page = visitor.post("/email/address", {**form, "address": "bob@example.com"}).text
    assert "It is not written to: hard bounce." in plain(page)
    assert [action for _, action in audit_actions(full.app)[-5:]] == [
        "reveal", "reveal", "download", "reveal", "look_up",
    ]  # fmt: skip


def test_the_first_rows_of_a_file_are_whole_ones(full: FullShop, person: Callable[..., Visitor]) -> None:
    store, visitor = full.app.store, person("viewer")
    data = f'id,name\r\n1,"a\n;b"\r\n2,c\u2028d\r\n3,{"x" * 70_000}\r\n'.encode()
    artifact = report_status(full.run, effects=full.app).artifact
    (Path(full.app.settings.storage_url) / str(artifact)).write_bytes(data)
    with store.begin() as connection:
        connection.execute(text(f"UPDATE {store.sql.generated_reports} SET bytes = :bytes"), {"bytes": len(data)})
    page = visitor.post(f"/reports/runs/{full.run}/rows", {"form_token": visitor.token()}).text
    table = page.partition("The first rows of the file</caption>")[2].partition("</table>")[0]
    assert re.findall("<t[hd][^>]*>([^<]*)</t[hd]>", table) == ["id", "name", "1", "a\n;b", "2", "c d"]


def test_an_address_is_lifted_after_a_question(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person()
    form = {"form_token": visitor.token(), "address": "bob@example.com"}
    question = visitor.post("/email/suppressions/lift", form)
    assert "make sure that the person wants it" in question.text
    assert find_suppressions("bob@example.com", effects=full.app)
    assert visitor.post("/email/suppressions/lift", {**form, "sure": "yes"}).status_code == 303
    assert find_suppressions("bob@example.com", effects=full.app) == []
    assert visitor.post("/email/suppressions/add", {**form, "reason": "asked by phone"}).status_code == 303
    assert [each.why for each in find_suppressions("bob@example.com", effects=full.app)] == ["asked by phone"]


@pytest.mark.parametrize(
    ("path", "leads_to", "noted"),
    [
        ("/webhooks/endpoints/disable?name={gone}", "/webhooks/endpoints/{gone}?did=webhooks_disable", "disable"),
        ("/webhooks/endpoints/test?name={good}", "/webhooks/deliveries/msg_", "send_test"),
        ("/webhooks/endpoints/try?name={gone}", "/webhooks/endpoints/{gone}?did=webhooks_try", "resume"),
        ("/webhooks/endpoints/recover?name={gone}", "did=webhooks_recover&n=", "requeue"),
        ("/webhooks/deliveries/replay?name={event}:{gone}", "/webhooks/deliveries/{event}/{gone}?did", "requeue"),
        ("/webhooks/events/replay?name={event}", "/webhooks/events/{event}?did=webhooks_replay_event&n=1", "requeue"),
        ("/limits/pause?name=webhook:{gone}", "/limits?did=limit_pause", "pause"),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_each_action(path: str, leads_to: str, noted: str, full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person()
    answer = visitor.act(path.format(**vars(full)), reason="because")
    assert answer.status_code == 303, plain(answer.text)
    assert leads_to.format(**vars(full)) in answer.headers["location"]
    assert visitor.get(answer.headers["location"]).status_code == 200
    assert ("web:ann", noted) in audit_actions(full.app)[-2:]


def test_the_page_of_an_endpoint_says_what_it_said_last_and_what_waits(
    full: FullShop, person: Callable[..., Visitor]
) -> None:
    visitor, gone = person(), f"/webhooks/endpoints/{full.gone}"
    deliver_webhook(WebhookEvent("order.paid", {}, key="paid:7"), effects=full.app)
    page = html.unescape(plain(visitor.get(gone).text))
    assert re.search(r"The last response, \d+ \w+ ago , was 503 : <b>! It took", page)
    counts = re.search(r"Failing (\d+) Waiting (\d+) Delivered 0 Given up (\d+) All (\d+)", page)
    assert counts is not None
    failing, waiting, given_up, every = map(int, counts.groups())
    assert (failing + waiting + given_up, every) == (10, 10)
    assert min(waiting, given_up) >= 1
    assert f"{failing + waiting} deliver" in page
    assert "paid:7 not tried yet 0 due now" in html.unescape(plain(visitor.get(f"{gone}?status=waiting").text))
    assert f"Given up: {given_up} in the last 1 hour" in plain(
        visitor.get(f"/webhooks/endpoints/recover?name={full.gone}").text
    )
    good = plain(visitor.get(f"/webhooks/endpoints/{full.good}").text)
    assert "Good partner" in good
    assert "Nothing was given up, so there is nothing to recover." in good
    assert visitor.get(f"{gone}?status=no_such").status_code == 400


def test_trying_now_ends_the_pause_and_makes_the_next_one_due(full: FullShop, person: Callable[..., Visitor]) -> None:
    app, visitor = full.app, person()
    deliver_webhook(WebhookEvent("order.paid", {}), effects=app)
    with app.store.begin() as connection:
        key_limits.pause(app.store, connection, limit_key(full.gone), actor="cli:ann", seconds=3_600)
        later = app.store.sql.after("3600")
        connection.execute(
            text(f"UPDATE {app.store.sql.jobs} SET run_at = {later} WHERE limit_key = :key AND status <> 'running'"),
            {"key": limit_key(full.gone)},
        )
    visitor.app.site.readings.forget()
    assert "next attempt in 59 min" in plain(visitor.get(f"/webhooks/endpoints/{full.gone}").text)
    assert visitor.act(f"/webhooks/endpoints/try?name={full.gone}").status_code == 303
    page = plain(visitor.get(f"/webhooks/endpoints/{full.gone}").text)
    assert "It is paused" not in page
    assert "next attempt now" in page
    assert audit_actions(app)[-2:] == [("web:ann", "resume"), ("web:ann", "run_now")]


def test_a_pause_without_an_end_has_none_on_the_page_of_its_endpoint(
    full: FullShop, person: Callable[..., Visitor]
) -> None:
    visitor = person()
    assert visitor.act(f"/limits/pause?name=webhook:{full.good}").status_code == 303
    assert "It is paused until it is resumed" in plain(visitor.get(f"/webhooks/endpoints/{full.good}").text)


def test_a_rotated_secret_is_shown_once(full: FullShop, person: Callable[..., Visitor]) -> None:
    admin, path = person("admin"), f"/webhooks/endpoints/rotate?name={full.good}"
    assert person("operator").get(path).status_code == 403
    before = list_secrets(full.good, tenant=ANY_TENANT, effects=full.app)
    answer = admin.act(path, reason="yearly", overlap="1 hour")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    secret = re.search(r"whsec_[A-Za-z0-9+/=]{40,}", answer.text)
    assert secret is not None
    after = list_secrets(full.good, tenant=ANY_TENANT, effects=full.app)
    assert [each.signs for each in after] == [True, True]
    pages = [admin.get(page).text for page in (f"/webhooks/endpoints/{full.good}/settings", "/audit")]
    assert all(secret[0] not in page for page in pages)
    assert admin.act(f"/webhooks/secrets/expire?name={full.good}:{before[0].id}", reason="done").status_code == 303
    assert [each.signs for each in list_secrets(full.good, tenant=ANY_TENANT, effects=full.app)] == [True, False]
    assert audit_actions(full.app)[-2:] == [("web:ann", "rotate"), ("web:ann", "expire")]


@pytest.mark.parametrize(("ending", "state"), [(Refused("no"), "refused"), (WorkerLost(), "unknown")])
def test_a_message_has_its_page_however_its_attempt_ended(
    ending: AttemptEnd, state: str, full: FullShop, person: Callable[..., Visitor]
) -> None:
    mail = send_templated_email("welcome", to="ann@example.com", context={"name": "Ann"}, effects=full.app)
    worker = ManualWorker(full.app, "w2", queue=full.app.job_types.get("email.send").queue)
    worker.settle((worker.claim_one(), ending), released=isinstance(ending, WorkerLost))
    page = person("operator").get(f"/email/messages/{mail.job_id}")
    assert (page.status_code, state in plain(page.text)) == (200, True)


def test_a_refused_message_begins_with_what_the_server_said(full: FullShop, person: Callable[..., Visitor]) -> None:
    app, store = full.app, full.app.store
    mail = send_templated_email("welcome", to="bob@example.com", context={"name": "Bob"}, effects=app)
    worker = ManualWorker(app, "w2", queue=app.job_types.get("email.send").queue)
    worker.settle((worker.claim_one(), Refused("refused by policy", code="smtp_554")))
    said = "5.7.1 Message rejected due to content restrictions"
    with store.begin() as connection:
        replied = text(f"UPDATE {store.sql.sent_emails} SET reply_code = 554, reply = :said WHERE job_id = :id")
        connection.execute(replied, {"said": said, "id": mail.job_id})
    visitor = person()
    page = plain(visitor.get(f"/email/messages/{mail.job_id}").text)
    assert re.search(rf"The server said, \d+ s ago : 554 {said}", page)
    assert "Sending it again unchanged gets the same reply" in page
    assert "suppressed" not in page
    form = {"form_token": visitor.token()}
    revealed = visitor.post(f"/email/messages/{mail.job_id}/reveal", form).text
    assert "bob@example.com is suppressed : hard bounce (550 no such user)" in plain(revealed)
    assert revealed.count('<iframe class="mail') == 3  # wide, narrow, dark


def test_the_list_of_messages_shows_people_to_whom_may_see_them(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person("viewer")
    assert "ann@example.com</a>" not in visitor.get("/email/messages").text
    page = visitor.post("/email/messages/reveal", {"form_token": visitor.token(), "status": "done"}).text
    assert "ann@example.com" in page
    assert '<th scope="col">subject</th>' in page
    assert audit_actions(full.app)[-1] == ("web:ann", "reveal")
    assert "Show recipients and subjects" not in person("viewer", personal=False).get("/email/messages").text


def test_the_page_of_a_run_says_how_long_it_takes_and_what_it_waits_for(
    full: FullShop, person: Callable[..., Visitor]
) -> None:
    visitor, run = person(), request_report("numbers", {"again": "1"}, effects=full.app)
    page = plain(visitor.get(f"/reports/runs/{run.run_id}").text)
    assert re.search(r"Requested \d+ s ago , requested\. Usual time: \d+ s\.", page)
    assert re.search(r"Now: rep_\w+/plan/1 \(report\.plan\) is queued \(0 attempts\)\..*Its story", page)
    done = plain(visitor.get(f"/reports/runs/{full.run}").text)
    assert re.search(r"Ready \d+ \w+ ago , after \d+ s\.", done)
    with full.app.store.begin() as connection:
        chunks = full.app.store.sql.report_chunks
        connection.execute(text(f"UPDATE {chunks} SET state = 'failed', error_code = '22012', rows_before = 1200"))
    failed = plain(visitor.get(f"/reports/runs/{full.run}").text)
    assert "It failed at about row 1,202: chunk 00001 , 22012." in failed


def test_a_search_finds_pages_by_id_and_by_name(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person("viewer", personal=False)

    def ask(question: str) -> str:
        answer = visitor.post("/why", {"form_token": visitor.token(), "q": question})
        return answer.headers.get("location") or plain(answer.text)

    assert ask(full.good) == f"/webhooks/endpoints/{full.good}"
    assert ask(full.event) == f"/webhooks/events/{full.event}"
    assert ask(full.run) == f"/reports/runs/{full.run}"
    assert "Pages Endpoint Good partner" in ask("good PART")
    assert "Template welcome" in ask("welc")
    assert "Jobs of the type webhook.deliver" in ask("webhook.del")
    assert "Audit log" in ask("audit")
    assert "No ledger knows this" in ask("ep_nothing12345")


def test_only_an_admin_repeats_what_is_done(full: FullShop, person: Callable[..., Visitor]) -> None:
    operator, admin, before = person("operator"), person("admin"), digest(full)
    done = {
        "/webhooks/deliveries/replay": f"{full.event}:{full.good}", "/webhooks/events/replay": full.event,
        "/email/messages/requeue": str(full.mail),
    }  # fmt: skip
    for path, name in done.items():
        assert "even_if_done" not in operator.get(path, params={"name": name}).text
        form = {"form_token": operator.token(), "name": name, "even_if_done": "yes"}
        assert operator.post(path, form).status_code == 403
    assert digest(full) == before
    assert "Send again" not in operator.get(f"/email/messages/{full.mail}").text
    for path, name in done.items():
        form = {"form_token": admin.token(), "name": name, "even_if_done": "yes"}
        assert admin.post(path, form).status_code == 303
    assert {action for _, action in audit_actions(full.app)[-3:]} == {"requeue"}


def test_what_is_not_there_is_404(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor = person()
    paths = (
        "/webhooks/endpoints/ep_x", "/webhooks/deliveries/msg_x/ep_x", "/webhooks/events/msg_x", "/reports/runs/rep_x",
        "/email/messages/999999", "/email/templates/show?name=nothing", "/email/templates/show?name=../../etc",
        "/webhooks/deliveries?endpoint=ep_x", "/reports?before=rep_x",
    )  # fmt: skip
    assert {path: visitor.get(path).status_code for path in paths} == dict.fromkeys(paths, 404)
    assert visitor.get("/webhooks/explain?what=nonsense").status_code == 422


def test_a_row_that_cannot_be_read_takes_no_other_page_with_it(full: FullShop, person: Callable[..., Visitor]) -> None:
    """A number too large to read, by hand: the page of endpoints has a reference to the log, the others are whole."""
    visitor, store = person("viewer"), full.app.store
    with store.begin() as connection:
        stored = store.sql.bound("value", "json")
        altered = text(f"UPDATE {store.sql.webhook_endpoints} SET overrides = {stored}")
        connection.execute(altered, {"value": '{"429": 1e5000}'})
    overview = visitor.get("/")
    assert overview.status_code == 200
    assert "/gone?… is failing" in plain(overview.text)
    answers = {
        path: visitor.get(path) for path in ("/needs", "/email/messages", "/reports", "/webhooks/events", "/health")
    }
    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code != 200} == {}
    endpoints = visitor.get("/webhooks")
    assert (endpoints.status_code, "the log has it under the reference" in endpoints.text) == (500, True)


@pytest.mark.slow
def test_no_text_of_a_row_becomes_markup(full: FullShop, person: Callable[..., Visitor]) -> None:
    visitor, store = person("admin"), full.app.store
    pages = pages_of(full)
    usual = {element for path in pages for element in Shape(visitor.get(path).text).elements}
    for value in ["harmless", *sample(CORPUS, 5)]:
        for table, columns in FIELDS.items():
            for column in columns:
                with suppress(DBAPIError), store.engine.begin() as connection:
                    planted = text(f"UPDATE {getattr(store.sql, table)} SET {column} = :value")
                    connection.execute(planted, {"value": value[:250]})
        visitor.app.site.readings.forget()
        for path in pages:
            answer = visitor.get(path)
            assert answer.status_code in (200, 404), (path, value)
            shape = Shape(answer.text)
            if value == "harmless":
                usual |= shape.elements.keys()
            assert shape.elements.keys() - usual == set(), (path, value)
            assert [each for each in shape.addresses if not each.startswith(("/", "#"))] == [], (path, value)
