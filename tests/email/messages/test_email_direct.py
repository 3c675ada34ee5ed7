"""Messages without a template, and files that are given as bytes."""

from __future__ import annotations

from email import message_from_bytes, policy
from typing import Any

import pytest
from django.utils.safestring import SafeString
from sqlalchemy.orm import Session

from effects import Effects, IdempotencyConflict
from effects.extend.arguments import DAY_SECONDS
from effects.worker import Worker
from effects_email import (
    AttachmentInvalid,
    EmailInvalid,
    EmailReceipt,
    File,
    TemplateError,
    send_email,
    send_templated_email,
)
from effects_email.admin import get_email, requeue_email
from effects_email.retention import forget_contents
from effects_email.wiring import sealed_columns
from tests.email.messages.conftest import CONTEXT, KEYS, MakeShop
from tests.email.messages.post import Post

PDF = b"%PDF-1.7\r\n" + bytes(range(256)) * 300
WORDS: dict[str, Any] = {"to": "Ann <ann@example.com>", "subject": "Your order", "text": "It is on its way.\n"}


def send(shop: Effects, **changes: Any) -> EmailReceipt:
    return send_email(**{**WORDS, **changes}, effects=shop)


def stored_files(shop: Effects) -> list[tuple[bytes | None, bytes | None]]:
    with shop.store.read() as connection:
        rows = connection.exec_driver_sql("SELECT content, sealed FROM effects_email_files ORDER BY id")
        return [(row[0], row[1]) for row in rows]


def test_a_message_in_the_callers_own_words_is_sent(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(templates=None)
    receipt = send(shop, html="<style>p { color: red }</style><p>It is on its way.</p>", event_id="order:1")
    Worker(shop).drain()
    [data] = post.bytes
    message = message_from_bytes(data, policy=policy.default)
    assert (message["Subject"], message["To"]) == ("Your order", "Ann <ann@example.com>")
    bodies = {part.get_content_type(): part.get_content() for part in message.walk() if not part.is_multipart()}
    assert bodies["text/plain"].split() == ["It", "is", "on", "its", "way."]
    assert 'style="color: red' in bodies["text/html"]
    record = get_email(shop, receipt.key)
    assert (record.state, record.template, receipt.key.split(":")[0]) == ("done", "no.template", "no.template")


def test_texts_of_a_subclass_are_words_as_any(make_shop: MakeShop, post: Post) -> None:
    """What `render_to_string` of Django returns is a SafeString."""
    shop = make_shop()
    safe: dict[str, Any] = {name: SafeString(text) for name, text in WORDS.items()}
    options: dict[str, Any] = {"headers": {"X-Order": SafeString("7")}, "event_id": SafeString("order:1")}
    receipt = send(shop, **safe, html=SafeString("<p>It is on its way.</p>"), **options)
    assert send(shop, html="<p>It is on its way.</p>", headers={"X-Order": "7"}, event_id="order:1").existing
    Worker(shop).drain()
    assert get_email(shop, receipt.key).state == "done"
    assert b"X-Order: 7" in post.bytes[0]


def test_one_address_is_a_list_of_one_and_a_person_stands_once(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(templates=None)
    send(
        shop, to=["Ann <ann@example.com>", "ann@EXAMPLE.com"], cc="Bob <bob@example.com>", group=True,
        bcc=["bob@example.com", "ann@example.com", "cat@example.com"], reply_to="help@shop.example",
    )  # fmt: skip
    Worker(shop).drain()
    [data] = post.bytes
    message = message_from_bytes(data, policy=policy.default)
    shown = [str(message[name]) for name in ("To", "Cc", "Reply-To")]
    assert shown == ["Ann <ann@example.com>", "Bob <bob@example.com>", "help@shop.example"]
    [outgoing] = post.outgoing
    assert sorted(outgoing.recipients) == ["ann@example.com", "bob@example.com", "cat@example.com"]


def test_the_text_is_made_from_the_html(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()
    send(shop, text=None, html="<p>Hello <b>Ann</b></p>")
    Worker(shop).drain()
    assert b"Hello Ann" in post.bytes[0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": None}, "none of text, html and markdown"),
        ({"subject": ""}, "the subject has 0 characters"),
        ({"subject": None}, "subject"),
        ({"text": 5}, "text"),
        ({"text": "x" * 3_000_000}, "3,000,000 bytes"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
        ({"to": ["ann@example.com"]}, "group=True"),
        ({"key": "a\nb"}, "key"),
    ],
)
def test_a_mistake_is_an_error_of_the_call(make_shop: MakeShop, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EmailInvalid, match=reason):
        send(make_shop(), **changes)


def test_the_same_call_again_is_the_first_message_and_other_words_are_a_conflict(make_shop: MakeShop) -> None:
    shop = make_shop()
    first = send(shop, event_id="order:1", attachments=[File(PDF, filename="a.pdf")])
    again = send(shop, event_id="order:1", attachments=[File(PDF, filename="a.pdf")])
    assert (again.existing, again.message_id) == (True, first.message_id)
    assert len(stored_files(shop)) == 1
    for changes in ({"text": "No."}, {"subject": "Other"}, {"attachments": [File(PDF + b"x", filename="a.pdf")]}):
        with pytest.raises(IdempotencyConflict):
            send(shop, **{"event_id": "order:1", "attachments": [File(PDF, filename="a.pdf")], **changes})
    assert send_templated_email(
        "welcome", to="ann@example.com", context=CONTEXT, event_id="order:1", effects=shop
    ).key != first.key  # fmt: skip


def test_a_message_without_a_template_is_not_rendered_again(make_shop: MakeShop) -> None:
    shop = make_shop()
    receipt = send(shop)
    Worker(shop).drain()
    with pytest.raises(TemplateError, match="has no template"):
        requeue_email(shop, receipt.key, actor="test", render_again=True, confirm_done=True)
    requeue_email(shop, receipt.key, actor="test", confirm_done=True)


# -- files as bytes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [KEYS, ""], ids=["sealed", "clear"])
def test_bytes_are_attached_and_kept_with_the_message(make_shop: MakeShop, post: Post, keys: str) -> None:
    shop = make_shop(keys=keys)
    receipt = send(
        shop, html='<img src="cid:logo">',
        attachments=[File(PDF, filename="invoice.pdf"), File(b"\x89PNG", filename="l.png", content_id="logo")],
    )  # fmt: skip
    assert {sealed is not None for _, sealed in stored_files(shop)} == {bool(keys)}
    assert all(PDF not in bytes(content or sealed or b"") or not keys for content, sealed in stored_files(shop))
    Worker(shop).drain()
    message = message_from_bytes(post.bytes[0], policy=policy.default)
    files = {part.get_filename(): part.get_content() for part in message.walk() if part.get_filename()}
    assert files == {"invoice.pdf": PDF, "l.png": b"\x89PNG"}
    requeue_email(shop, receipt.key, actor="test", confirm_done=True)
    Worker(shop).drain()
    assert post.bytes[1].count(b"JVBERi0xLjc") == 1
    shop.store.shift_clock(10 * DAY_SECONDS)
    assert forget_contents(shop.store, keep_seconds=7 * DAY_SECONDS, dry_run=False, go_on=lambda: True) == 1
    assert stored_files(shop) == []


def test_files_that_can_be_iterated_once_are_attached_and_digested(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()

    def send_as(content: bytes) -> None:
        files = (File(content, filename=name) for name in ["a.pdf", "b.pdf"])
        send(shop, key="invoice:7", attachments=files)  # type: ignore[arg-type]

    send_as(PDF)
    send_as(PDF)
    with pytest.raises(IdempotencyConflict):
        send_as(b"another")
    Worker(shop).drain()
    [sent] = post.bytes
    assert sent.count(b"JVBERi0xLjc") == 2


def test_a_rollback_leaves_no_file(make_shop: MakeShop) -> None:
    shop = make_shop()
    with Session(shop.engine) as session:
        send(shop, attachments=[File(PDF, filename="a.pdf")], session=session)
        session.rollback()
    assert stored_files(shop) == []


def test_a_file_that_was_deleted_is_missed_and_never_left_out(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop()
    receipt = send(shop, attachments=[File(PDF, filename="a.pdf")])
    with shop.store.begin() as connection:
        connection.exec_driver_sql("DELETE FROM effects_email_files")
    Worker(shop).drain()
    assert post.bytes == []
    assert get_email(shop, receipt.key).state == "intended"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (File(PDF), "bytes need a name"),
        (File(PDF, filename="a/b.pdf"), "no path"),
        (File(b"x" * 8_000_000, filename="a.bin"), "in base64"),
        (File(bytearray(PDF), filename="a.pdf"), "give a path, bytes"),  # type: ignore[arg-type]
    ],
)
def test_wrong_bytes_are_an_error_of_the_call(make_shop: MakeShop, file: File, reason: str) -> None:
    with pytest.raises(AttachmentInvalid, match=reason):
        send(make_shop(), attachments=[file])


def test_bytes_are_in_no_repr() -> None:
    assert repr(File(b"secret", filename="a.txt")) == "File(<6 bytes>, filename='a.txt')"


def test_sealed_files_are_counted_and_rotated() -> None:
    assert "email_files" in {column.table for column in sealed_columns()}
