"""A message is written in the caller's transaction, once for each key, and everything wrong is an error at the call."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import pytest
from sqlalchemy.orm import Session

from effects import ConfigurationError, Effects, IdempotencyConflict, JobNotFound, cancel
from effects.operate.tables.audit import audit
from effects_email import (
    AddressInvalid,
    AttachmentInvalid,
    EmailInvalid,
    EmailReceipt,
    File,
    NewEmail,
    email_key,
    send_templated_email,
    send_templated_emails,
    suppress,
)
from effects_email.message.source import Address
from tests.email.messages.conftest import CONTEXT, MakeShop, drain, write
from tests.email.messages.post import Post
from tests.support.commands import command
from tests.support.manual_workers import row, rows, run_sql
from tests.webhooks.conftest import statements

Send: TypeAlias = Callable[..., EmailReceipt]


def test_one_call_writes_the_message_and_its_job(shop: Effects, send: Send) -> None:
    receipt = send(event_id="signup:1", category=None)
    job, message = row(shop, "jobs"), row(shop, "sent_emails")
    assert (receipt.existing, receipt.suppressed, receipt.job_id) == (False, False, job["id"])
    assert (job["job_type"], job["queue"], job["limit_key"]) == ("email.send", "emails", "email:default")
    assert job["idempotency_key"] == message["key"] == receipt.key
    assert message["message_id"] == receipt.message_id
    assert (message["template"], message["state"], message["job_id"]) == ("welcome", "intended", job["id"])
    assert len(message["template_version"]) == 16
    assert "ann" not in str(job).lower()
    assert audit(shop.store, shop.ledgers) == []


@pytest.mark.parametrize(
    ("to", "postgresql", "sqlite"),
    [("ann@example.com", 1, 3), ("bob@example.com", 7, 8)],
    ids=["plain", "suppressed"],
)
def test_a_message_is_one_statement_and_a_suppressed_address_is_looked_up(
    shop: Effects, send: Send, to: str, postgresql: int, sqlite: int
) -> None:
    """On SQLite, with no round trips to save, the id and the two rows are written by one each."""
    suppress("bob@example.com", effects=shop)
    send(event_id="signup:0")
    with statements(shop) as seen:
        assert send(event_id="signup:1", to=to).suppressed is (to == "bob@example.com")
    work = [statement for statement in seen if not statement.startswith("BEGIN") and "NOTIFY" not in statement]
    assert len(work) == (postgresql if shop.store.is_postgresql else sqlite), work


def test_the_same_key_is_the_first_message(shop: Effects, send: Send) -> None:
    first = send(event_id="signup:1")
    again = send(event_id="signup:1", to="Ann@EXAMPLE.com")
    assert again.existing
    assert (again.job_id, again.key, again.message_id) == (first.job_id, first.key, first.message_id)
    assert len(rows(shop, "jobs")) == len(rows(shop, "sent_emails")) == 1


def test_a_derived_key_is_found_by_its_parts(shop: Effects, send: Send) -> None:
    receipt = send(event_id="signup:2")
    send(event_id="signup:20")
    for name in (receipt.key, "welcome:signup:2", "signup:2"):
        assert command(shop, "why", name).out.startswith(f"{receipt.key} (email.send) is queued"), name
    for name in ("welcome:signup:2", "signup:2"):
        with pytest.raises(JobNotFound, match=re.escape(f"no effect with key {name!r}; is it {receipt.key!r}?")):
            cancel(key=name, actor="app:shop", effects=shop)
    with pytest.raises(JobNotFound, match=r"no effect with key 'code:signup:2'$"):
        cancel(key="code:signup:2", actor="app:shop", effects=shop)


def test_a_message_is_cancelled_by_its_key(shop: Effects, send: Send) -> None:
    receipt = send(event_id="signup:1", run_at=datetime.now(UTC) + timedelta(days=1))
    assert email_key("welcome", to="Ann@EXAMPLE.com", event_id="signup:1", effects=shop) == receipt.key
    assert cancel(key=receipt.key, actor="app:shop", effects=shop).prevented
    assert drain(shop) == {}
    assert (row(shop, "sent_emails")["state"], row(shop, "sent_emails")["outcome"]) == ("abandoned", "cancelled")
    with pytest.raises(JobNotFound):  # names that operators use are no keys
        cancel(key="signup:1", actor="app:shop", effects=shop)


def test_the_key_of_a_group_is_that_of_all_its_recipients(shop: Effects, send: Send) -> None:
    receipt = send(event_id="signup:1", to=["a@example.com", "b@example.com"], group=True, category=None)
    recipients = ["b@example.com", "a@example.com"]
    assert email_key("welcome", to=recipients, event_id="signup:1", effects=shop) == receipt.key
    with pytest.raises(EmailInvalid, match="event_id"):
        email_key("welcome", to=recipients, event_id="", effects=shop)


@pytest.fixture
def shop(make_shop: MakeShop) -> Effects:
    """With a second transport."""
    return make_shop(email_transports={"bulk": "post://there"})


@pytest.mark.parametrize(
    "difference",
    [{"to": "bob@example.com"}, {"event_id": "signup:2"}, {"template": "code", "context": {"code": 1}}],
    ids=["recipient", "event", "template"],
)
def test_another_recipient_event_or_template_is_another_message(send: Send, difference: dict[str, Any]) -> None:
    first = send(event_id="signup:1")
    second = send(**{"event_id": "signup:1", **difference})
    assert not second.existing
    assert second.key != first.key


def test_without_a_key_every_call_is_a_message(shop: Effects, send: Send) -> None:
    assert not send().existing
    assert not send().existing
    assert len({email["key"] for email in rows(shop, "sent_emails")}) == 2


@pytest.mark.parametrize(
    "difference",
    [
        {"context": {**CONTEXT, "name": "Bob"}}, {"to": "bob@example.com"}, {"locale": "de"}, {"headers": {"X-A": "1"}},
        {"category": "news", "headers": {"List-Unsubscribe": "<https://x.example>"}}, {"transport": "bulk"},
    ],
    ids=lambda difference: next(iter(difference)),
)  # fmt: skip
def test_the_same_key_with_other_content_is_refused(shop: Effects, send: Send, difference: dict[str, Any]) -> None:
    first = send(key="k")
    with pytest.raises(IdempotencyConflict, match=f"'k' belongs to job {first.job_id}") as caught:
        send(key="k", **difference)
    assert caught.value.job_id == first.job_id
    assert len(rows(shop, "jobs")) == 1


def test_a_newer_template_causes_no_conflict_on_a_repeated_call(make_shop: MakeShop, templates: Any) -> None:
    first = send_templated_email("welcome", to="a@x.example", context=CONTEXT, key="k", effects=make_shop())
    write(templates, {"welcome/subject.txt": "Quite another subject, {{ name }}"})
    again = send_templated_email("welcome", to="a@x.example", context=CONTEXT, key="k", effects=make_shop())
    assert again.existing
    assert again.message_id == first.message_id


def test_it_is_the_callers_transaction(shop: Effects) -> None:
    def write_one(session: Session) -> None:
        send_templated_email("welcome", to="a@x.example", context=CONTEXT, session=session, effects=shop)

    with Session(shop.engine) as session:
        write_one(session)
        session.rollback()
        write_one(session)
        with session.begin_nested() as savepoint:
            write_one(session)
            savepoint.rollback()
        assert rows(shop, "jobs") == []
        session.commit()
    assert len(rows(shop, "jobs")) == len(rows(shop, "sent_emails")) == 1


def test_only_one_of_many_concurrent_calls_with_one_key_writes(shop: Effects) -> None:
    start, receipts = threading.Barrier(6), []

    def call() -> None:
        start.wait(20)
        receipts.append(send_templated_email("welcome", to="a@x.example", context=CONTEXT, key="k", effects=shop))

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(receipts) == 6
    assert sum(not receipt.existing for receipt in receipts) == 1
    assert len({(receipt.job_id, receipt.message_id) for receipt in receipts}) == 1
    assert len(rows(shop, "jobs")) == 1


def test_a_batch_takes_each_key_once_and_gives_receipts_in_order(shop: Effects) -> None:
    emails = [NewEmail("welcome", to=f"u{n % 3}@x.example", context=CONTEXT, event_id="e") for n in range(7)]
    receipts = send_templated_emails(emails, effects=shop)
    assert [receipt.existing for receipt in receipts] == [False] * 3 + [True] * 4
    assert [receipt.key for receipt in receipts] == [receipts[n % 3].key for n in range(7)]
    assert len(rows(shop, "jobs")) == 3


def test_a_conflict_in_a_batch_leaves_nothing_of_it(shop: Effects, send: Send) -> None:
    send(key="taken")
    emails = [NewEmail("welcome", to="b@x.example", context=CONTEXT, key=key) for key in ("free", "taken")]
    with pytest.raises(IdempotencyConflict):
        send_templated_emails(emails, effects=shop)
    assert len(rows(shop, "sent_emails")) == 1


def test_when_and_until(shop: Effects, send: Send) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    send("code", context={"code": 7}, run_at=later)
    job, message = row(shop, "jobs"), row(shop, "sent_emails")
    as_time = shop.store.tables["sent_emails"].c.date.type
    dialect = shop.engine.dialect
    date = as_time.process_result_value(message["date"], dialect)
    until = as_time.process_result_value(job["expires_at"], dialect)
    assert date == later.replace(microsecond=0)
    assert until == date + timedelta(seconds=600)
    assert job["on_unknown"] == "hold"


def test_an_expired_message_is_not_sent(shop: Effects, send: Send, post: Post) -> None:
    send(expires_at=datetime.now(UTC) + timedelta(hours=1))
    shop.store.shift_clock(3700)
    assert drain(shop) == {"cancelled": 1}
    assert post.outgoing == []
    assert (row(shop, "sent_emails")["state"], row(shop, "sent_emails")["outcome"]) == ("abandoned", "expired")


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"to": "ann"}, AddressInvalid, "to is no e-mail address: An email address must have an @-sign"),
    ({"to": "Ann: sales <ann@x.example>"}, AddressInvalid, "to is no e-mail address: give one, as Ann"),
    ({"to": "a@x.example, Bob <b@x.example>"}, AddressInvalid, "to is no e-mail address: give one, as Ann"),
    ({"to": "Ann <ann@x.example>, b@x.example"}, AddressInvalid, "to is no e-mail address"),
    ({"to": "Ann <ann>"}, AddressInvalid, "to is no e-mail address: An email address must have an @-sign"),
    ({"to": "a@x.example\r\nBcc: b@x.example"}, AddressInvalid, "to is no e-mail address"),
    ({"to": "a@x.example, b@x.example"}, AddressInvalid, "to is no e-mail address"),
    ({"to": "a@@" + "," * 300_000}, AddressInvalid, "to is no e-mail address: it has 300003 characters, more than"),
    ({"to": f"{'a' * 1_001}@x.example"}, AddressInvalid, "to is no e-mail address: it has 1011 characters, more than"),
    ({"to": f"Ann <{'a' * 900}@x.example>"}, AddressInvalid, "to is no e-mail address: The email address is too long"),
    ({"to": None}, EmailInvalid, "to is None; give an address"),
    ({"to": Address(None, "x.example")}, AddressInvalid, "to: its local is None; give a text"),
    ({"to": []}, EmailInvalid, "to is a list: give group=True"),
    ({"to": [], "group": True}, EmailInvalid, "to, cc and bcc are empty"),
    ({"to": [f"u{n}@x.example" for n in range(101)], "group": True}, EmailInvalid, "at most 100 recipients"),
    ({"cc": ["b@x.example"]}, EmailInvalid, "cc is for a message to a group"),
    ({"to": ["a@x.example"], "group": True, "bcc": b"b@x.example"}, EmailInvalid, "bcc is a bytes; give a list"),
    ({"to": ["a@x.example"], "group": True, "category": "news"}, EmailInvalid, "a message to a group has no category"),
    ({"context": []}, EmailInvalid, "context is a list; give a dict"),
    ({"context": {"name": object()}}, EmailInvalid, "context.name: object has no JSON form"),
    ({"context": {**CONTEXT, "more": "x" * 300_000}}, EmailInvalid, "as JSON, and the limit is 262,144"),
    ({"context": {**CONTEXT, "name": "\ud800"}}, EmailInvalid, "context.name: half of a surrogate pair"),
    ({"context": {**CONTEXT, "name": "x" * 2000}}, EmailInvalid, "the subject has 2010 characters"),
    ({"headers": {"Bcc": "b@x.example"}}, EmailInvalid, "headers: Bcc is not for the caller to set"),
    ({"headers": {"X-A": "a\r\nBcc: b@x.example"}}, EmailInvalid, "X-A holds a line break"),
    ({"headers": {"X-A\r\nBcc": "b"}}, EmailInvalid, "headers: a name has letters"),
    ({"headers": {"X-A": ""}}, EmailInvalid, "X-A has 0 characters"),
    ({"headers": {"X-A": 5}}, EmailInvalid, "the value of X-A is an int"),
    ({"headers": {"X-A": "1", "x-a": "2"}}, EmailInvalid, "a name is given twice"),
    ({"headers": {"References": "ü"}}, EmailInvalid, "References must be ASCII"),
    ({"key": ""}, EmailInvalid, "the key"),
    ({"key": "a\nb"}, EmailInvalid, "printable"),
    ({"event_id": "x" * 300}, EmailInvalid, "1 to 255"),
    ({"category": "a\nb"}, EmailInvalid, "category must have 1 to 100 printable"),
    ({"run_at": datetime(2030, 1, 1)}, EmailInvalid, "run_at has no time zone"),  # noqa: DTZ001
    ({"expires_at": datetime(2030, 1, 1)}, EmailInvalid, "expires_at has no time zone"),  # noqa: DTZ001
    ({"on_unknown": "guess"}, EmailInvalid, "on_unknown is 'guess'"),
    ({"attachments": ["nowhere.pdf"]}, AttachmentInvalid, "'nowhere.pdf' cannot be read"),
    ({"attachments": ["https://x.example/a.pdf"]}, AttachmentInvalid, "give a path, or storage:"),
    ({"attachments": [b"%PDF"]}, AttachmentInvalid, "bytes need a name: File(data, filename='invoice.pdf')"),
    ({"attachments": [bytearray(b"%PDF")]}, AttachmentInvalid, "is given as a bytearray; give a path, bytes,"),
    ({"attachments": [memoryview(b"%PDF")]}, AttachmentInvalid, "is given as a memoryview; give a path, bytes,"),
    ({"attachments": [io.BytesIO(b"%PDF")]}, AttachmentInvalid, "is given as a BytesIO; give a path, bytes,"),
    ({"attachments": [None]}, AttachmentInvalid, "is given as None"),
    ({"attachments": [("a.pdf", b"%PDF")]}, AttachmentInvalid, "is given as a tuple"),
    ({"attachments": "a.pdf"}, AttachmentInvalid, "attachments is a str; give a list of paths or Files"),
    ({"attachments": File("a.pdf")}, AttachmentInvalid, "attachments is a File; give a list"),
    ({"attachments": b"%PDF"}, AttachmentInvalid, "attachments is a bytes; give a list"),
    ({"attachments": 7}, AttachmentInvalid, "attachments is an int; give a list"),
    ({"attachments": [File("a", filename=b"a.pdf")]}, AttachmentInvalid, "filename is a bytes; give a text"),
    ({"attachments": [File("a", content_type=1)]}, AttachmentInvalid, "content_type is an int; give a text"),
    ({"attachments": [File("a", content_id=1)]}, AttachmentInvalid, "content_id is an int; give a text"),
    ({"attachments": [File("a", filename="../b")]}, AttachmentInvalid, "no path and no control character"),
]


@pytest.mark.parametrize(
    ("wrong_options", "kind", "says"), WRONG, ids=[f"{n}-{next(iter(case[0]))}" for n, case in enumerate(WRONG)]
)
def test_an_invalid_argument_is_an_error_at_the_call(
    make_shop: MakeShop, database_url: str, wrong_options: dict[str, Any], kind: type[Exception], says: str
) -> None:
    app = make_shop()
    options = {"to": "ann@x.example", "context": CONTEXT, **wrong_options}
    with pytest.raises(kind) as caught:
        send_templated_email("welcome", effects=app, **options)
    assert says in str(caught.value)
    assert "@x.example" not in str(caught.value)
    assert rows(app, "jobs") == rows(app, "sent_emails") == []


def test_a_sender_and_templates_must_be_set(make_shop: MakeShop) -> None:
    with pytest.raises(ConfigurationError, match="set EFFECTS_EMAIL_FROM"):
        send_templated_email("welcome", to="a@x.example", context=CONTEXT, effects=make_shop(email_from=None))
    with pytest.raises(ConfigurationError, match="EFFECTS_EMAIL_TEMPLATES is not set"):
        send_templated_email("welcome", to="a@x.example", context=CONTEXT, effects=make_shop(templates=None))


def test_a_domain_that_an_operator_limits_has_a_key_of_its_own(shop: Effects, send: Send) -> None:
    run_sql(shop, "INSERT INTO effects_limits (limit_key) VALUES ('email:default')")
    run_sql(
        shop,
        "INSERT INTO effects_limits (limit_key, parent_key) VALUES ('email:default:slow.example', 'email:default')",
    )
    send(to="a@slow.example")
    send(to="a@quick.example")
    assert [job["limit_key"] for job in rows(shop, "jobs")] == ["email:default:slow.example", "email:default"]
