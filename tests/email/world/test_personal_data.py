"""One person's data: exported, and forgotten, with all that must outlive it."""

from __future__ import annotations

import io
import json
import os
import signal
import zipfile
from datetime import UTC, date, datetime, timedelta
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from effects import Effects, KeyUnavailable
from effects.app.retention import prune
from effects.operate.tables.audit import audit
from effects_email import (
    AddressInvalid,
    EmailNotFound,
    File,
    Invite,
    export_address,
    find_suppressions,
    forget_address,
    send_email,
    suppress,
    suppression_log,
)
from effects_email.admin import get_email, list_emails, requeue_email
from effects_email.events import IncomingEvent, take
from effects_email.message.address import address_digests
from effects_email.transport import url as transport_urls
from effects_email.transport.http_api.fields import reference
from tests.conftest import AppFactory
from tests.email.messages.conftest import KEYS, drain
from tests.email.messages.post import Post, verdict
from tests.support.manual_workers import row, rows
from tests.support.processes import Child
from tests.support.sampling import sample

ANN, BOB = "ann@example.com", "bob@example.com"
LATER = {"run_at": datetime.now(UTC) + timedelta(days=30)}


@pytest.fixture
def post() -> Any:
    post = Post()
    transport_urls.register("post", lambda parsed: post)
    yield post
    transport_urls._registered.pop("post")


@pytest.fixture
def mail(app_factory: AppFactory, post: Post) -> Effects:
    return app_factory(job_types=[], keys=KEYS, email_from="Shop <hello@shop.example>", smtp_url="post://there")


def send(app: Effects, key: str, to: Any = f"Ann <{ANN}>", **options: Any) -> str:
    return send_email(to=to, subject=f"About {key}", text=f"Words of {key}", key=key, effects=app, **options).message_id


def send_all(app: Effects) -> None:
    """Mail to Ann of each kind, to others, and what the world said."""
    send(app, "alone", attachments=[File(b"Ann's invoice", filename="invoice.txt")])
    send(app, "group", to=[BOB, f"Ann <{ANN}>"], cc=["eve@example.com"], bcc=["boss@example.com"], group=True)
    send(app, "bcc", to=[BOB], bcc=[ANN, "boss@example.com"], group=True)
    message_id = send(app, "upper", to="ANN@Example.com")
    send(app, "bobs", to=BOB)
    drain(app)
    send(app, "later", **LATER)
    for kind, provider_event_id in (("delivered", "e1"), ("complained", "e2")):
        take(
            app,
            [IncomingEvent(
                provider="postmark", provider_event_id=provider_event_id, kind=kind, code=None, provider_id="p",
                reference=reference(message_id), recipient=ANN, at=datetime.now(UTC),
            )],
        )  # fmt: skip
    suppress("bob@example.com", why="asked", effects=app)


def exported(app: Effects, address: Any = ANN) -> tuple[dict[str, Any], dict[str, bytes]]:
    file = io.BytesIO()
    export_address(address, file, actor="app:privacy", reason="asked for it", effects=app)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        files = {name: archive.read(name) for name in archive.namelist()}
    return json.loads(files.pop("index.json")), files


def everything(app: Effects) -> dict[str, list[dict[str, Any]]]:
    return {name: rows(app, name) for name in app.store.tables}


def text_of_everything(app: Effects) -> str:
    return str(everything(app)).lower()


def test_an_export_has_what_is_theirs_and_nothing_of_others(mail: Effects) -> None:
    send_all(mail)
    index, files = exported(mail, f"Ann <{ANN}>")
    messages = {message["key"]: message for message in index["messages"]}
    assert list(messages) == ["alone", "group", "bcc", "upper", "later"]
    assert {key: (message["as"], message["status"]) for key, message in messages.items()} == {
        "alone": ("to", "done"), "group": ("to", "done"), "bcc": ("bcc", "done"), "upper": ("to", "done"),
        "later": ("to", "intended"),
    }  # fmt: skip
    assert messages["alone"]["attachments"][0]["included"]
    parsed = {
        key: message_from_bytes(files[message["file"]], policy=policy.default) for key, message in messages.items()
    }
    assert [part.get_filename() for part in parsed["alone"].iter_attachments()] == ["invoice.txt"]
    assert parsed["group"]["To"] == f"{BOB}, Ann <{ANN}>"  # as it came to her
    assert [entry["kind"] for entry in index["events"]] == ["delivered", "complained"]
    assert [entry["kind"] for entry in messages["upper"]["events"]] == ["delivered", "complained"]
    assert [(held["scope"], held["reason"]) for held in index["suppressions"]] == [("all", "complaint")]
    assert [line["action"] for line in index["suppression_log"]] == ["suppressed"]
    assert "boss" not in json.dumps(index) + b"".join(files.values()).decode()
    assert index["address"] == ANN
    logged = row(mail, "audit_log", "action = 'export'")
    assert (logged["actor"], logged["reason"]) == ("app:privacy", "asked for it")
    assert ANN not in text_of_everything(mail)


def test_an_export_without_words_and_without_anything(mail: Effects, tmp_path: Path) -> None:
    (tmp_path / "gone.txt").write_text("x")
    send(mail, "gone", attachments=[tmp_path / "gone.txt"])
    (tmp_path / "gone.txt").write_text("changed")
    index, files = exported(mail)
    [message] = index["messages"]
    assert not message["attachments"][0]["included"]
    assert b"Words of gone" in files[message["file"]]
    drain(mail)
    mail.store.shift_clock(40 * 86_400.0)
    nobody, none = exported(mail, "nobody@example.com")
    assert (nobody["messages"], nobody["events"], none) == ([], [], {})
    with pytest.raises(AddressInvalid):
        export_address("no address", io.BytesIO(), actor="x", effects=mail)


@pytest.mark.parametrize("keys", [KEYS, None], ids=["sealed", "clear"])
def test_what_is_forgotten_is_nowhere(app_factory: AppFactory, post: Post, keys: str | None) -> None:
    mail = app_factory(job_types=[], keys=keys, email_from="Shop <hello@shop.example>", smtp_url="post://there")
    send_all(mail)
    forgotten = forget_address(f"Ann <{ANN}>", actor="app:privacy", reason="asked for it", effects=mail)
    assert (forgotten.messages, forgotten.cancelled, forgotten.files) == (5, 1, 1)
    assert (forgotten.events, forgotten.suppressions, forgotten.waiting) == (2, 1, ())
    index, _ = exported(mail)
    assert (index["messages"], index["events"], index["soft_failures"]) == ([], [], [])
    assert list_emails(mail, address=ANN).emails == []
    assert "ann@" not in text_of_everything(mail)
    assert "words of alone" not in text_of_everything(mail)
    for name in ("sent_emails", "email_recipients", "email_events", "email_files"):
        assert not any(digest in str(rows(mail, name)) for digest in address_digests(mail, ANN))
    alone = get_email(mail, "alone")
    assert (alone.state, alone.to, alone.subject, len(alone.bytes_sha256 or "")) == ("done", None, None, 64)
    later = get_email(mail, "later")
    assert later.state == "abandoned"
    assert audit(mail.store, mail.ledgers) == []
    # The others' mail is theirs.
    group = get_email(mail, "group")
    assert [(recipient.kind, recipient.address) for recipient in group.recipients] == [
        ("to", BOB), ("to", "forgotten@invalid"), ("cc", "eve@example.com"), ("bcc", "boss@example.com"),
    ]  # fmt: skip
    assert get_email(mail, "bobs").to == BOB
    bob, _ = exported(mail, BOB)
    assert [message["key"] for message in bob["messages"]] == ["group", "bcc", "bobs"]


def test_what_must_outlive_it_does(mail: Effects, post: Post) -> None:
    """The key: the same call makes no second message. The suppression: who asked for no mail gets none."""
    send_all(mail)
    forget_address(ANN, actor="app:privacy", reason="asked", effects=mail)
    sent = len(post.outgoing)
    assert (
        send(mail, "alone", attachments=[File(b"Ann's invoice", filename="invoice.txt")])
        == get_email(mail, "alone").message_id
    )
    [held] = find_suppressions(ANN, effects=mail)
    assert (held.address, held.reason) == (None, "complaint")
    assert len(suppression_log(ANN, effects=mail)) == 1
    assert send_email(to=ANN, subject="s", text="t", effects=mail).suppressed
    drain(mail)
    assert len(post.outgoing) == sent
    logged = row(mail, "audit_log", "action = 'forget'")
    assert (logged["actor"], logged["reason"], logged["subject"]) == (
        "app:privacy", "asked", address_digests(mail, ANN)[0],
    )  # fmt: skip
    with pytest.raises(EmailNotFound, match="is deleted"):
        requeue_email(mail, "alone", actor="x", confirm_done=True)
    mail.store.shift_clock(100 * 86_400.0)
    prune(mail)
    assert rows(mail, "sent_emails", "key <> 'x'") == []


def test_forgetting_again_finds_nothing(mail: Effects) -> None:
    send_all(mail)
    forget_address(ANN, actor="x", reason="asked", effects=mail)
    before = everything(mail)
    again = forget_address(ANN, actor="x", reason="asked", effects=mail)
    assert (again.messages, again.cancelled, again.files, again.events, again.waiting) == (0, 0, 0, 0, ())
    assert again.suppressions == 1
    after = everything(mail)
    assert {name for name in after if after[name] != before[name]} == {"audit_log"}


def test_an_unknown_message_stays_unknown(mail: Effects, post: Post) -> None:
    post.moves = [verdict("unknown")]
    send(mail, "held", on_unknown="hold")
    send(mail, "repeats", on_unknown="repeat_once")
    drain(mail)
    assert forget_address(ANN, actor="x", reason="asked", effects=mail).messages == 2
    assert [get_email(mail, key).state for key in ("held", "repeats")] == ["unknown", "unknown"]
    mail.store.shift_clock(3600.0)
    drain(mail)
    assert len(post.outgoing) == 2
    assert audit(mail.store, mail.ledgers) == []


def test_a_forgotten_guest_is_in_no_invitation(app_factory: AppFactory, post: Post) -> None:
    mail = app_factory(job_types=[], email_from="Shop <hello@shop.example>", smtp_url="post://there")
    party = Invite(uid="party@shop.example", summary="Party", start=date(2027, 3, 1), end=date(2027, 3, 2))
    guest = f'"Ann: a guest with a name that is folded somewhere" <{ANN.upper()}>'
    send(mail, "party", to=[BOB, guest], group=True, invite=party)
    drain(mail)
    forget_address(ANN, actor="x", reason="asked", effects=mail)
    assert "ann@" not in text_of_everything(mail)
    requeue_email(mail, "party", actor="x", confirm_done=True)  # the others' invitation is whole
    drain(mail)
    [attached] = message_from_bytes(post.outgoing[-1].data, policy=policy.default).iter_attachments()
    lines = attached.get_content().decode().replace("\r\n ", "").split("\r\n")
    assert [line.rpartition(":")[2] for line in lines if line.startswith("ATTENDEE")] == [BOB]


def test_a_message_to_a_group_that_waits_is_left_to_the_others(mail: Effects, post: Post) -> None:
    send(mail, "party", to=[BOB, ANN], group=True, **LATER)
    send(mail, "only", to=[ANN], group=True, **LATER)
    forgotten = forget_address(ANN, actor="x", reason="asked", effects=mail)
    assert (forgotten.waiting, forgotten.cancelled) == (("party",), 1)
    mail.store.shift_clock(31 * 86_400.0)
    drain(mail)
    [outgoing] = post.outgoing
    assert set(outgoing.recipients) == {BOB, ANN}
    assert forget_address(ANN, actor="x", reason="asked", effects=mail).waiting == ()
    assert "forgotten@invalid" in str(get_email(mail, "party").recipients)
    # Sent again by an operator, it goes to those who are left.
    requeue_email(mail, "party", actor="x", confirm_done=True)
    drain(mail)
    assert set(post.outgoing[-1].recipients) == {BOB}
    # And with the last of them the words go.
    forget_address(BOB, actor="x", reason="asked", effects=mail)
    assert row(mail, "sent_emails", "key = 'party'")["sealed"] is None


def test_a_message_that_is_being_sent_is_asked_to_stop_and_kept(mail: Effects, post: Post) -> None:
    during: list[Any] = []

    def decide(outgoing: Any) -> Any:
        during.append(forget_address(ANN, actor="x", reason="asked", effects=mail))
        return dict.fromkeys(outgoing.recipients, verdict("accepted"))

    post.decide = decide
    send(mail, "now")
    drain(mail)
    assert during[0].waiting == ("now",)
    assert (get_email(mail, "now").state, post.released) == ("abandoned", [])  # not yet released: it was prevented
    assert forget_address(ANN, actor="x", reason="asked", effects=mail).messages == 1


def test_a_missing_key_is_told_and_nothing_is_lost(app_factory: AppFactory, mail: Effects) -> None:
    send(mail, "group", to=[BOB, ANN], group=True)
    drain(mail)
    seal_key, digest_key = KEYS.split(",")
    for keys in (seal_key, digest_key.replace("digest", "other"), None):
        without = app_factory(job_types=[], keys=keys, email_from="a@shop.example", smtp_url="post://there")
        with pytest.raises(KeyUnavailable, match="digest"):
            forget_address(ANN, actor="x", reason="asked", effects=without)
        with pytest.raises(KeyUnavailable, match="digest"):
            export_address(ANN, io.BytesIO(), actor="x", effects=without)
    assert forget_address(ANN, actor="x", reason="asked", effects=mail).messages == 1


# -- crashes ---------------------------------------------------------------------------------------------------------


def _killed(url: str, statement: int) -> None:
    """Forget, and be killed before this statement."""
    app = Effects(url, keys=KEYS, email_from="a@shop.example", smtp_url="maildir:mail")
    count = 0

    def strike(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == statement:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", strike)
    forget_address(ANN, actor="x", reason="asked", effects=app)


def _is_whole(app: Effects, key: str) -> bool:
    """Whether a message is as it was; else it is wholly forgotten."""
    message, files = row(app, "sent_emails", f"key = '{key}'"), rows(app, "email_files", f"key = '{key}'")
    digests = address_digests(app, ANN)
    people = [message["recipient"], *(place["recipient"] for place in rows(app, "email_recipients", f"key = '{key}'"))]
    named = any(digest in people for digest in digests)
    if key in ("group", "bcc"):
        assert any(recipient.address == ANN for recipient in get_email(app, key).recipients) == named
    else:
        assert (message["sealed"] is not None) == named
        assert bool(files) == (named and key == "alone")
    if key == "later":
        assert (message["state"] == "intended") == named
    return named


@pytest.mark.slow
def test_a_kill_leaves_each_message_whole_or_forgotten(mail: Effects, database_url: str, tmp_path: Path) -> None:
    send_all(mail)
    keys = ["alone", "group", "bcc", "upper", "later"]
    whole = len(keys)
    for turn, statement in enumerate(sample(range(1, 60, 2), 7)):
        child = Child(_killed, (database_url, statement), {}, tmp_path / f"{turn}.log")
        assert child.wait(60) in (-signal.SIGKILL, 0), child.output
        child.close()
        left = sum(_is_whole(mail, key) for key in keys)
        assert left <= whole
        whole = left
        assert audit(mail.store, mail.ledgers) == []
    forget_address(ANN, actor="x", reason="asked", effects=mail)
    assert not any(_is_whole(mail, key) for key in keys)
    assert "ann@" not in text_of_everything(mail)
