"""What is kept of a message and for how long; sealed, rotated, forgotten; sent again as it was or rendered again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import text

from effects import Effects, JobStateError
from effects.app.retention import prune
from effects.keys.encryption import generate_key
from effects.operate.tables.audit import audit
from effects.operate.tables.dead_letters import DeadFilters, list_dead
from effects.operate.tables.rotate import count_keys, rotate
from effects.store.db.sql import Window
from effects.store.effects import requeue as resolution
from effects_email import EmailNotFound, EmailReceipt, RenderingFailed
from effects_email.admin import get_email, key_of_job, list_emails, requeue_email
from effects_email.tables import lists, retention
from tests.email.messages.conftest import CONTEXT, KEYS, MakeShop, drain, write
from tests.email.messages.post import Post, verdict
from tests.support.manual_workers import row, rows, run_sql

Send: TypeAlias = Callable[..., EmailReceipt]
DAY = 86_400.0


def kept(app: Effects) -> bool:
    email = row(app, "sent_emails")
    return email["sealed"] is not None or email["content"] is not None


# -- retention -------------------------------------------------------------------------------------------------------


def test_the_content_of_a_message_is_deleted_after_a_week_and_its_row_stays(
    shop: Effects, send: Send, post: Post
) -> None:
    receipt = send(key="k")
    drain(shop)
    shop.store.shift_clock(6.9 * DAY)
    assert prune(shop).packages == {}
    assert kept(shop)
    shop.store.shift_clock(0.2 * DAY)
    assert prune(shop, dry_run=True).packages == {"email.send": 1}
    assert kept(shop)
    assert prune(shop).packages == {"email.send": 1}
    assert not kept(shop)
    email = get_email(shop, "k")
    assert (email.to, email.subject, email.state, email.message_id) == (None, None, "done", receipt.message_id)
    assert len(email.bytes_sha256 or "") == 64
    assert send(key="k").existing
    shop.store.shift_clock(84 * DAY)
    prune(shop)
    assert rows(shop, "sent_emails") == []
    assert audit(shop.store, shop.ledgers) == []


def test_messages_of_a_clock_that_was_ahead_do_not_keep_the_content_behind_them(
    shop: Effects, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAGE", 1)
    first = send(key="a")
    send(key="b")
    drain(shop)
    year = shop.store.sql.after("365 * 86400")
    run_sql(shop, f"UPDATE effects_sent_emails SET created_at = {year} WHERE job_id = {first.job_id}")
    shop.store.shift_clock(7.1 * DAY)
    assert prune(shop).packages == {"email.send": 2}


@pytest.mark.parametrize("kind", ["refused_message", "unknown"])
def test_an_unresolved_message_keeps_its_content(shop: Effects, send: Send, post: Post, kind: Any) -> None:
    post.moves = [verdict(kind)]
    send(on_unknown="hold")
    drain(shop)
    shop.store.shift_clock(30 * DAY)
    assert prune(shop).packages == {}
    [dead_letter] = list_dead(shop.store, shop.ledgers, DeadFilters())
    if kind == "unknown":
        resolution.resolve_unknown(shop.store, shop.job_types, shop.ledgers, dead_letter.id, "give-up", actor="ann")
    else:
        resolution.ignore(shop.store, shop.ledgers, dead_letter.id, actor="ann", reason="seen")
    assert prune(shop).packages == {"email.send": 1}
    assert not kept(shop)


@pytest.mark.slow
def test_a_message_still_to_be_sent_keeps_its_content(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("config")]
    send()
    for _ in range(3):
        drain(shop)
        shop.store.shift_clock(10 * DAY)
        assert prune(shop).packages == {}
    assert kept(shop)


def test_many_pages_of_content_are_deleted(make_shop: MakeShop, post: Post) -> None:
    app = make_shop(email_content_days=1.0)
    columns = "template, template_version, transport, message_id, digest, recipient"
    values = "'t', 'v', 'default', 'm', 'd', 'r'"
    date = "0" if app.engine.dialect.name == "sqlite" else "now()"
    statement = (
        f"INSERT INTO effects_sent_emails (key, job_id, state, content, date, {columns}) "
        f"VALUES (:key, :id, 'done', :content, {date}, {values})"
    )
    with app.store.begin() as connection:
        many = [{"key": f"k{number}", "id": number + 1, "content": b"x"} for number in range(1203)]
        connection.execute(text(statement), many)
    app.store.shift_clock(2 * DAY)
    assert prune(app).packages == {"email.send": 1203}
    assert all(email["content"] is None for email in rows(app, "sent_emails"))


# -- sealing ---------------------------------------------------------------------------------------------------------


def test_content_is_sealed_and_its_key_can_be_changed(make_shop: MakeShop, send: Send, post: Post) -> None:
    send()
    newer = make_shop(keys=f"k2={generate_key()},{KEYS}")
    assert [(count.place, count.key_id, count.values) for count in count_keys(newer.store)] == [
        ("sent_emails", "k1", 1)
    ]
    assert rotate(newer.store, newer.keys, actor="ann").rotated == 1
    assert [(count.place, count.key_id) for count in count_keys(newer.store)] == [("sent_emails", "k2")]
    assert drain(newer) == {"succeeded": 1}
    assert post.sent_to() == [("ann@example.com",)]


@pytest.mark.slow
def test_content_of_another_row_does_not_open(shop: Effects, send: Send, post: Post) -> None:
    send(key="one", to="one@example.com")
    send(key="two", to="two@example.com")
    run_sql(shop, "UPDATE effects_sent_emails SET sealed = (SELECT sealed FROM effects_sent_emails WHERE key = 'one')")
    assert drain(shop) == {"succeeded": 1, "dead": 1}
    assert post.sent_to() == [("one@example.com",)]
    assert [entry["error_code"] for entry in rows(shop, "job_history", "status = 'dead'")] == ["payload_invalid"]


# -- looking up ------------------------------------------------------------------------------------------------------


def test_a_message_is_found_by_its_key_message_id_and_job(shop: Effects, send: Send) -> None:
    receipt = send(event_id="e")
    emails = [get_email(shop, name) for name in (receipt.key, receipt.message_id, f"<{receipt.message_id}>",
                                                str(receipt.job_id))]  # fmt: skip
    assert len({email.key for email in emails}) == 1
    assert (emails[0].to, emails[0].subject) == ("ann@example.com", "Welcome, Ann!")
    assert "ann@" not in repr(emails[0])
    with pytest.raises(EmailNotFound, match="'nothing'"):
        get_email(shop, "nothing")


def test_messages_are_listed_a_page_at_a_time(shop: Effects, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """By every filter, newest first; by status a page also ends where it has searched enough."""
    newest_first = [send(key=f"k{number}").key for number in range(5)][::-1]
    send(key="other", to="bob@example.com")
    run_sql(shop, "UPDATE effects_sent_emails SET state = 'done' WHERE key IN ('k1', 'k2')")

    def pages(limit: int = 2, **filters: Any) -> tuple[list[str], list[bool]]:
        keys: list[str] = []
        more: list[bool] = []
        before: str | None = None
        while True:
            page = list_emails(shop, before=before, limit=limit, **filters)
            keys += [email.key for email in page.emails]
            before = page.next_before
            if before is None:
                return keys, more
            more.append(page.more)

    assert pages() == (["other", *newest_first], [True, True])
    assert pages(address="ANN@EXAMPLE.com") == (newest_first, [True, True])
    assert pages(address="ann@example.com", status="done") == (["k2", "k1"], [])
    assert pages(key="k3") == pages(key="k3", address="ann@example.com", status="intended") == (["k3"], [])
    assert pages(key="k3", address="bob@example.com") == ([], [])
    assert pages(window=Window(newer=3600.0)) == pages()
    assert pages(window=Window(older=3600.0)) == ([], [])
    assert pages(status="done") == (["k2", "k1"], [])
    monkeypatch.setattr(lists, "SPAN", 2)
    lists._page.cache_clear()
    lists._last_searched.cache_clear()
    assert pages(status="done", limit=5) == (["k2", "k1"], [False, False, False])
    with pytest.raises(EmailNotFound, match="'nothing'"):
        list_emails(shop, before="nothing")


# -- again -----------------------------------------------------------------------------------------------------------


def refused(shop: Effects, send: Send, post: Post) -> EmailReceipt:
    post.moves = [verdict("refused_message"), verdict("accepted")]
    receipt = send(key="k")
    assert drain(shop) == {"dead": 1}
    return receipt


def test_requeue_sends_the_same_bytes(shop: Effects, send: Send, post: Post, templates: Path) -> None:
    refused(shop, send, post)
    write(templates, {"welcome/subject.txt": "New, {{ name }}"})
    successor = requeue_email(shop, "k", actor="ann", reason="mended")
    assert drain(shop) == {"succeeded": 1}
    assert len(post.outgoing) == 2
    assert len(set(post.bytes)) == 1
    assert (get_email(shop, "k").job_id, get_email(shop, "k").state) == (successor.job_id, "done")
    assert audit(shop.store, shop.ledgers) == []


def test_a_message_is_found_by_each_of_its_jobs(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("refused_message"), verdict("refused_message"), verdict("accepted")]
    first = send(key="k")
    drain(shop)
    second = requeue_email(shop, "k", actor="ann")
    drain(shop)
    third = requeue_email(shop, str(first.job_id), actor="ann")
    drain(shop)
    jobs = (first.job_id, second.job_id, third.job_id)
    assert [key_of_job(shop, job) for job in jobs] == ["k", "k", "k"]
    assert [get_email(shop, str(job)).job_id for job in jobs] == [third.job_id] * 3
    with pytest.raises(EmailNotFound):
        key_of_job(shop, third.job_id + 1)
    run_sql(shop, "UPDATE effects_job_history SET requeued_from = id WHERE id = :id", id=third.job_id)  # from outside
    assert key_of_job(shop, third.job_id) == "k"


def test_rendering_again_uses_the_newest_template_and_a_new_message_id(
    make_shop: MakeShop, send: Send, shop: Effects, post: Post, templates: Path
) -> None:
    first = refused(shop, send, post)
    write(templates, {"welcome/subject.txt": "New, {{ name }}"})
    fresh = make_shop()
    requeue_email(fresh, "k", actor="ann", render_again=True)
    assert drain(fresh) == {"succeeded": 1}
    old, new = post.outgoing
    assert (old.source.subject, new.source.subject) == ("Welcome, Ann!", "New, Ann")
    assert new.source.date >= old.source.date
    assert new.recipients == old.recipients
    email = get_email(fresh, "k")
    assert email.message_id == new.message_id != first.message_id
    assert email.template_version != ""
    assert send(key="k").existing


def test_a_template_that_asks_for_more_by_now_is_an_error_and_changes_nothing(
    make_shop: MakeShop, send: Send, shop: Effects, post: Post, templates: Path
) -> None:
    refused(shop, send, post)
    before = row(shop, "sent_emails")
    write(templates, {"welcome/subject.txt": "{{ surname }}"})
    with pytest.raises(RenderingFailed, match="'surname' is missing"):
        requeue_email(make_shop(), "k", actor="ann", render_again=True)
    assert row(shop, "sent_emails") == before
    assert rows(shop, "jobs") == []


@pytest.mark.slow
def test_a_done_or_unknown_message_is_requeued_only_with_an_override(shop: Effects, send: Send, post: Post) -> None:
    post.moves = [verdict("accepted"), verdict("unknown"), verdict("accepted")]
    send(key="done")
    drain(shop)
    send("code", context={"code": 1}, key="perhaps")
    drain(shop)
    with pytest.raises(JobStateError, match="only --even-if-done"):
        requeue_email(shop, "done", actor="ann")
    with pytest.raises(JobStateError, match="may have happened"):
        requeue_email(shop, "perhaps", actor="ann")
    requeue_email(shop, "done", actor="ann", confirm_done=True)
    requeue_email(shop, "perhaps", actor="ann", confirm_unknown=True)
    assert drain(shop) == {"succeeded": 2}
    assert len(post.outgoing) == 4
    by_key = {}
    for outgoing in post.outgoing:
        by_key.setdefault(outgoing.source.subject, set()).add((outgoing.message_id, outgoing.key, outgoing.data))
    assert {subject: len(variants) for subject, variants in by_key.items()} == {"Welcome, Ann!": 2, "Your code": 1}


@pytest.mark.slow
def test_a_group_is_requeued_for_missing_recipients_or_for_all(shop: Effects, send: Send, post: Post) -> None:
    group = {"to": ["a@x.example", "b@x.example"], "group": True, "key": "g"}
    post.moves = [
        {"a@x.example": verdict("accepted"), "b@x.example": verdict("retry")}, verdict("refused_message"),
        verdict("accepted"), verdict("accepted"),
    ]  # fmt: skip
    send(**group)
    drain(shop)
    shop.store.shift_clock(100)
    drain(shop)
    assert get_email(shop, "g").state == "done"  # a has it
    assert [(recipient.address, recipient.outcome) for recipient in get_email(shop, "g").recipients] == [
        ("a@x.example", "accepted"), ("b@x.example", "refused_message"),
    ]  # fmt: skip
    requeue_email(shop, "g", actor="ann", confirm_done=True)
    drain(shop)
    assert post.sent_to() == [("a@x.example", "b@x.example"), ("b@x.example",), ("a@x.example", "b@x.example")]


def test_a_message_without_content_cannot_be_sent_again(shop: Effects, send: Send, post: Post) -> None:
    send(key="k")
    drain(shop)
    shop.store.shift_clock(8 * DAY)
    prune(shop)
    with pytest.raises(EmailNotFound, match="is deleted"):
        requeue_email(shop, "k", actor="ann", confirm_done=True)


def test_versions_and_languages_are_on_record(shop: Effects, send: Send) -> None:
    send(key="a")
    send(key="b", locale="de-AT")
    versions = {email["key"]: (email["locale"], email["template_version"]) for email in rows(shop, "sent_emails")}
    assert (versions["a"][0], versions["b"][0]) == (None, "de")
    assert all(re.fullmatch("[0-9a-f]{16}", version) for _, version in versions.values())
    assert versions["a"][1] != versions["b"][1]
    assert CONTEXT["name"] not in str(versions)
