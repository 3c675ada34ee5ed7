"""Nothing personal where machines and other people read: addresses, names, words and files of a message."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from effects import Effects, EffectsError, IdempotencyConflict
from effects.app.retention import prune
from effects_email import NewEmail, send_templated_email, send_templated_emails
from effects_email.admin import get_email
from tests.cli.conftest import effects as command
from tests.email.messages.conftest import MakeShop, drain
from tests.email.messages.post import Post, verdict
from tests.support.log_lines import LogLines, log_lines

CANARY = "canary"
ADDRESS = f"{CANARY}-local@x.example"
CONTEXT = {"name": f"{CANARY}-name", "link": f"https://x.example/{CANARY}-token"}
ENDS = ["accepted", "retry", "throttle", "config", "transport_down", "refused_message", "unknown", "refused_recipient"]


@pytest.fixture
def log() -> Iterator[LogLines]:
    with log_lines() as collected:
        yield collected


def live_through_everything(app: Effects, post: Post) -> None:
    """Every verdict, each with a reply that quotes the address; a group; the end of every retry."""
    post.moves = [verdict(kind, text=f"no such user <{ADDRESS}> here, {ADDRESS}: sorry", suppress="hard" if kind ==
                          "refused_recipient" else None) for kind in ENDS]  # type: ignore[arg-type]  # fmt: skip
    for number, _ in enumerate(ENDS):
        options: dict[str, Any] = (
            {"to": ADDRESS} if number % 2 else {"to": [ADDRESS], "cc": [f"2{ADDRESS}"], "group": True}
        )
        send_templated_emails([NewEmail("welcome", context=CONTEXT, event_id=f"e{number}", **options)], effects=app)
        drain(app)
        app.store.shift_clock(400)
    for _ in range(3):
        drain(app)
        app.store.shift_clock(100_000)


@pytest.mark.slow
def test_logs_keys_attempts_and_commands_show_no_address(
    make_shop: MakeShop, post: Post, log: LogLines, database_url: str
) -> None:
    app = make_shop()
    live_through_everything(app, post)
    assert len(post.outgoing) >= len(ENDS)
    assert len(log.lines) > 20
    assert CANARY not in "\n".join(log.lines)
    with app.store.read() as connection:
        for name, table in app.store.tables.items():
            records = [dict(record._mapping) for record in connection.execute(table.select())]
            assert CANARY not in str(records), name
    shown = [
        command("--database-url", database_url, *words.split())
        for words in ("jobs list --json", "dead list --json", "status --json", "metrics", "doctor", "why e1",
                      "limits list --json", "dead list")
    ]  # fmt: skip
    assert all(CANARY not in answer.out + answer.err for answer in shown)
    assert any("email.send" in answer.out for answer in shown)


@pytest.mark.slow
def test_the_database_files_contain_no_address(make_shop: MakeShop, post: Post, tmp_path: Path) -> None:
    app = make_shop()
    if app.store.is_postgresql:
        pytest.skip("its files are the server's")
    live_through_everything(app, post)
    app.dispose()
    for file in tmp_path.glob("effects.db*"):
        assert CANARY.encode() not in file.read_bytes(), file.name


def test_without_keys_deleted_content_is_gone(make_shop: MakeShop, post: Post, tmp_path: Path) -> None:
    app = make_shop(keys="")
    send_templated_email("welcome", to=ADDRESS, context=CONTEXT, effects=app)
    assert drain(app) == {"succeeded": 1}
    assert get_email(app, "1").to == ADDRESS
    app.store.shift_clock(8 * 86_400)
    prune(app)
    assert get_email(app, "1").to is None
    app.dispose()
    if not app.store.is_postgresql:
        with sqlite3.connect(tmp_path / "effects.db") as connection:
            assert CANARY not in "\n".join(connection.iterdump())


def test_errors_and_reprs_show_no_address(make_shop: MakeShop, post: Post) -> None:
    app = make_shop()
    texts = []
    good: dict[str, Any] = {"to": ADDRESS, "context": CONTEXT, "key": "k"}
    send_templated_email("welcome", effects=app, **good)
    wrong: list[dict[str, Any]] = [
        {"to": f"{ADDRESS} {CANARY}"}, {"to": [ADDRESS]}, {"context": {"name": f"{CANARY}"}},
        {"headers": {"X-A": f"\n{CANARY}"}},
        {"context": {**CONTEXT, "name": "x" * 1000 + CANARY}}, {"context": {**CONTEXT, "name": object()}},
        {"sender": CANARY},
        {"context": {**CONTEXT, "name": "other"}},
    ]  # fmt: skip
    for mistake in wrong:
        with pytest.raises(EffectsError) as caught:
            send_templated_email("welcome", effects=app, **{**good, **mistake})
        texts.append(str(caught.value))
        assert caught.value.__cause__ is None
    assert isinstance(caught.value, IdempotencyConflict)
    drain(app)
    job_type: Any = app.job_types.get("email.send")
    texts += [
        repr(NewEmail("welcome", **good)),
        repr(post.outgoing[0].source),
        repr(get_email(app, "k")),
        repr(job_type),
    ]
    assert CANARY not in json.dumps(texts)
