"""From the call to the provider and back: answers that get lost, events that bring them, and who is not written to."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from effects import Effects
from effects.operate.tables.audit import audit
from effects.worker import Worker
from effects_email import EmailInvalid, EmailReceipt, send_templated_email
from effects_email.admin import get_email
from effects_email.classify import UNKNOWN_AFTER_SECONDS
from effects_email.events import events_of
from effects_email.receiver import EventReceiver
from effects_email.suppression import find_suppressions, suppress, suppression_log
from effects_email.transport.http_api.fields import reference
from effects_email.unsubscribe import wsgi_app
from tests.conftest import AppFactory
from tests.email.world.conftest import KEYS
from tests.email.world.stand_ins import TOKEN, Postbox, PostmarkBox, ResendBox, answer, receiver
from tests.peers.http import Receiver
from tests.support.basic_auth import PASSWORD, with_password
from tests.support.manual_workers import row, rows, run_sql
from tests.support.web_clients import wsgi_client

ANN = "ann@example.org"
Send: TypeAlias = Callable[..., EmailReceipt]


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    for name in ("welcome", "news"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "subject.txt").write_text(f"The {name}")
        (tmp_path / name / "body.txt").write_text("Hello {{ name }}.\n")
    (tmp_path / "news" / "template.toml").write_text('category = "news"\n')
    return tmp_path


class Shop:
    """An app whose mail goes to a provider's stand-in."""

    def __init__(self, app: Effects, box: Postbox, peer: Receiver) -> None:
        self.app, self.box, self.peer = app, box, peer

    def send(self, template: str = "welcome", **options: Any) -> EmailReceipt:
        arguments = {"to": ANN, "context": {"name": "Ann"}, "effects": self.app, **options}
        return send_templated_email(template, **arguments)

    def drain(self, after_seconds: float = 0.0) -> dict[str, int]:
        self.app.store.shift_clock(after_seconds)
        return dict(Worker(self.app).drain(30).counts)

    @property
    def posts(self) -> int:
        return sum(request.method == "POST" for request in self.peer.requests)

    def event(self, record: str, receipt: EmailReceipt, **further: Any) -> int:
        """Postmark tells of a message."""
        document = {
            "RecordType": record, "MessageID": "pm-1", "Recipient": ANN, "DeliveredAt": "2026-11-21T13:28:10Z",
            "Metadata": {"effects-message": reference(receipt.message_id)}, **further,
        }  # fmt: skip
        receiver = EventReceiver("postmark", secrets=PASSWORD, effects=self.app)
        return receiver.take(with_password(), json.dumps(document).encode())


def opened(app_factory: AppFactory, templates: Path, scheme: str, box: Postbox) -> Iterator[Shop]:
    with receiver(box.serve) as peer:
        url = f"{scheme}://{TOKEN}@?origin=http://127.0.0.1:{peer.port}"
        app = app_factory(
            job_types=[], keys=KEYS, templates=templates, email_from="Shop <hello@shop.example>", smtp_url=url,
            unsubscribe_url="http://localhost:1/unsubscribe",
        )  # fmt: skip
        yield Shop(app, box, peer)


@pytest.fixture
def resend(app_factory: AppFactory, templates: Path) -> Iterator[Shop]:
    yield from opened(app_factory, templates, "resend", ResendBox())


@pytest.fixture
def postmark(app_factory: AppFactory, templates: Path) -> Iterator[Shop]:
    yield from opened(app_factory, templates, "postmark", PostmarkBox())


NOT_YET = answer(200, TotalCount=0, Messages=[])  # the search lags behind


# -- lost answers ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_lost_answer_is_requested_again_with_the_same_key(resend: Shop) -> None:
    resend.box.lose = 2
    resend.send()
    assert resend.drain() == {"unknown": 1}
    assert row(resend.app, "sent_emails")["state"] == "unknown"
    assert resend.drain(100) == {"unknown": 1}
    assert resend.drain(400) == {"succeeded": 1}
    assert (resend.posts, len(resend.box.messages)) == (3, 1)
    sent = row(resend.app, "sent_emails")
    assert (sent["state"], sent["provider_id"] is not None) == ("done", True)
    assert audit(resend.app.store, resend.app.ledgers) == []


@pytest.mark.slow
def test_the_providers_rate_is_the_limit_until_an_operator_changes_it(resend: Shop, postmark: Shop) -> None:
    Worker(postmark.app).drain(30)
    assert rows(postmark.app, "limits") == []
    Worker(resend.app).drain(30)
    [limit] = rows(resend.app, "limits")
    assert (limit["limit_key"], limit["rate_tokens"], limit["rate_period_seconds"]) == ("email:default", 2, 1)
    run_sql(resend.app, "UPDATE effects_limits SET rate_tokens = 100")
    Worker(resend.app).drain(30)
    assert [rate_limit["rate_tokens"] for rate_limit in rows(resend.app, "limits")] == [100]


def test_a_lost_answer_is_found_by_the_search(postmark: Shop) -> None:
    postmark.box.lose = 1
    postmark.send()
    assert postmark.drain() == {"succeeded": 1}
    assert (postmark.posts, len(postmark.box.messages)) == (1, 1)
    assert audit(postmark.app.store, postmark.app.ledgers) == []


def lose_and_lag(shop: Shop, **options: Any) -> EmailReceipt:
    """The message was taken, the answer is lost, and the search does not know it yet."""
    shop.box.lose = 1
    receipt = shop.send(**options)
    find = shop.box.find
    shop.box.find = lambda request: NOT_YET  # type: ignore[method-assign]
    shop.drain()
    assert row(shop.app, "sent_emails")["state"] == "unknown"
    assert find is not None
    return receipt


@pytest.mark.slow
def test_after_an_event_the_next_try_sends_nothing(postmark: Shop) -> None:
    receipt = lose_and_lag(postmark)
    assert postmark.event("Delivery", receipt) == 204
    assert row(postmark.app, "sent_emails")["state"] == "unknown"  # its job looks for itself
    assert postmark.drain(UNKNOWN_AFTER_SECONDS * 1.3) == {"succeeded": 1}
    assert (postmark.posts, len(postmark.box.messages)) == (1, 1)
    assert row(postmark.app, "sent_emails")["state"] == "done"
    assert [event.kind for event in events_of(receipt.message_id, effects=postmark.app)] == ["delivered"]
    assert [event.code for event in get_email(postmark.app, receipt.key).events] == ["Delivery"]
    assert audit(postmark.app.store, postmark.app.ledgers) == []


def test_a_bounce_proves_that_an_unknown_message_was_sent(postmark: Shop) -> None:
    receipt = lose_and_lag(postmark)
    assert postmark.event("Bounce", receipt, Type="HardBounce", ID=7, Email=ANN) == 204
    assert postmark.drain(UNKNOWN_AFTER_SECONDS * 1.3) == {"succeeded": 1}
    assert (postmark.posts, row(postmark.app, "sent_emails")["state"]) == (1, "done")


@pytest.mark.slow
def test_an_event_resolves_a_held_message(postmark: Shop) -> None:
    receipt = lose_and_lag(postmark, on_unknown="hold")
    postmark.drain(UNKNOWN_AFTER_SECONDS * 1.3)  # it is asked for once more
    [job] = rows(postmark.app, "job_history")
    assert (job["status"], job["error_code"]) == ("dead", "unknown")
    other_receipt = postmark.send(event_id="2")
    assert postmark.event("Delivery", other_receipt, MessageID="pm-2") == 204  # to the same person
    assert [job_action["action"] for job_action in rows(postmark.app, "job_actions")] == []
    for _ in range(2):
        assert postmark.event("Delivery", receipt) == 204
    [action] = rows(postmark.app, "job_actions")
    assert (action["job_id"], action["action"], action["actor"]) == (job["id"], "mark_done", "postmark")
    states = {email["message_id"]: email["state"] for email in rows(postmark.app, "sent_emails")}
    assert states[receipt.message_id] == "done"
    assert audit(postmark.app.store, postmark.app.ledgers) == []


@pytest.mark.slow
def test_an_event_of_a_failure_resolves_nothing(postmark: Shop) -> None:
    receipt = lose_and_lag(postmark, on_unknown="hold")
    postmark.drain(UNKNOWN_AFTER_SECONDS * 1.3)  # it is asked for once more
    assert postmark.event("Bounce", receipt, Type="Blocked", ID=7, Email=ANN) == 204
    assert row(postmark.app, "sent_emails")["state"] == "unknown"
    assert rows(postmark.app, "job_actions") == []


# -- who is not written to ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_provider_that_refuses_an_address_ends_mail_to_it(postmark: Shop) -> None:
    assert isinstance(postmark.box, PostmarkBox)
    postmark.box.inactive = {ANN}
    postmark.send()
    assert postmark.drain() == {"dead": 1}
    [suppression] = find_suppressions(ANN, effects=postmark.app)
    assert (suppression.reason, suppression.why) == ("hard_bounce", "postmark_406")
    assert postmark.send(event_id="2").suppressed
    assert postmark.drain() == {"cancelled": 1}
    assert postmark.posts == 1


@pytest.mark.slow
def test_a_complaint_ends_mail_that_already_waits(postmark: Shop) -> None:
    first = postmark.send()
    postmark.drain()
    postmark.send(event_id="2")
    assert postmark.event("SpamComplaint", first, Email=ANN, ID=1) == 204
    assert postmark.drain() == {"cancelled": 1}
    assert (postmark.posts, row(postmark.app, "sent_emails", "outcome = 'suppressed'")["state"]) == (1, "abandoned")


def test_a_mandatory_notice_is_sent_and_its_reason_recorded(postmark: Shop) -> None:
    suppress(ANN, reason="complaint", effects=postmark.app)
    why = "change of terms, § 9"
    receipt = postmark.send(despite_suppression=why, key="terms")
    assert not receipt.suppressed
    assert postmark.send(despite_suppression=why, key="terms").existing
    assert postmark.drain() == {"succeeded": 1}
    assert [message["To"] for message in postmark.box.messages] == [ANN]
    log = suppression_log(ANN, effects=postmark.app)
    assert [(entry.action, entry.why) for entry in log] == [("overridden", why), ("suppressed", None)]
    assert postmark.send(event_id="3").suppressed
    for wrong in ("", "x" * 1001, "a\nb"):
        with pytest.raises(EmailInvalid, match="despite_suppression"):
            postmark.send(despite_suppression=wrong)


@pytest.mark.slow
def test_the_link_in_a_message_ends_its_category_and_no_other(postmark: Shop) -> None:
    postmark.send("news")
    postmark.drain()
    headers = {header["Name"]: header["Value"] for header in postmark.box.messages[0]["Headers"]}
    assert headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    link = headers["List-Unsubscribe"].strip("<>")
    with wsgi_client(wsgi_app(effects=postmark.app)) as web_client:
        assert web_client(
            "POST", link.removeprefix("http://localhost:1"), content=b"List-Unsubscribe=One-Click"
        ).is_success
    assert postmark.send("news", event_id="2").suppressed
    assert not postmark.send("welcome").suppressed
    assert postmark.drain() == {"cancelled": 1, "succeeded": 1}
    assert postmark.posts == 2


def test_a_transactional_message_has_no_such_header(postmark: Shop) -> None:
    postmark.send()
    postmark.drain()
    assert "List-Unsubscribe" not in {header["Name"] for header in postmark.box.messages[0]["Headers"]}
