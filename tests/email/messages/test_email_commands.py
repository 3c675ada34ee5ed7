"""`effects email` as an operator types it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from effects import Effects
from effects_email import send_templated_email
from tests.cli.conftest import Run
from tests.email.messages.conftest import CONTEXT, FILES, KEYS, write


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "emails", FILES)
    (tmp_path / "context.json").write_text(json.dumps(CONTEXT))
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "DATABASE_URL": "sqlite:///none.db", "EMAIL_TEMPLATES": "emails", "EMAIL_FROM": "Shop <hello@shop.example>",
        "SMTP_URL": "maildir:mail", "KEYS": KEYS,
    }.items():  # fmt: skip
        monkeypatch.setenv(f"EFFECTS_{name}", value)
    return tmp_path


def test_preview_shows_the_text_and_writes_the_message(run: Run, environment: Path) -> None:
    shown = run("email", "preview", "welcome", "--context", "context.json", url=None)
    assert shown.exit_code == 0
    assert "subject  Welcome, Ann!" in shown.out
    assert f"Hello Ann, confirm ({CONTEXT['link']})." in shown.out
    german = run("email", "preview", "welcome", "--context", "context.json", "--locale", "de-CH", url=None)
    assert "Willkommen, Ann!" in german.out
    written = run("email", "preview", "welcome", "--context", "context.json", "--eml", "out.eml", url=None)
    assert written.exit_code == 0
    assert (environment / "out.eml").read_bytes().startswith(b"From: Shop <hello@shop.example>\r\n")
    assert stat.S_IMODE((environment / "out.eml").stat().st_mode) == 0o600
    assert not (environment / "none.db").exists()


def test_a_preview_shows_inline_images(run: Run, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("click.launch", opened.append)
    write(environment / "emails", {
        "logo/subject.txt": "Logo", "logo/body.html": '<img src="cid:logo"><img src="cid:none"><p>cid:logo.</p>',
    })  # fmt: skip
    (environment / "logo.png").write_bytes(b"\x89PNG")
    answer = run("email", "preview", "logo", "--html", "--image", "logo=logo.png", "--json", url=None)
    [file] = opened
    html = Path(file).read_text()
    Path(file).unlink()
    assert answer.json["url"] == f"file://{file}"
    assert '<img src="data:image/png;base64,iVBORw==">' in html.replace("'", '"')
    assert "cid:none" in html
    run("email", "preview", "logo", "--eml", "out.eml", "--image", "logo=logo.png", url=None)
    assert b"Content-ID: <logo>" in (environment / "out.eml").read_bytes()
    for image, says in (
        ("logo", "give ID=FILE"),
        ("logo=gone.png", "cannot be read"),
        ("a b=logo.png", "a content_id has"),
    ):
        refused = run("email", "preview", "logo", "--image", image, url=None)
        assert (refused.exit_code, says in refused.err) == (2, True)


def test_a_preview_writes_through_no_link_and_reports_a_missing_folder(run: Run, environment: Path) -> None:
    (environment / "out.eml").symlink_to(environment / "planted")
    arguments = ("email", "preview", "welcome", "--context", "context.json", "--eml")
    assert run(*arguments, "out.eml", url=None).exit_code == 0
    assert not (environment / "planted").exists()
    refused = run(*arguments, "no/folder.eml", url=None)
    assert (refused.exit_code, refused.err) == (
        2, "error: Could not open file 'no/folder.eml': No such file or directory\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("preview nope", "there is no template 'nope'"), ("preview welcome", "'name' is missing in the context"),
        ("preview code --context emails/code/subject.txt", "--context is not JSON"),
        ("show nothing", "there is no message"), ("resend nothing", "there is no message"),
        ("test nobody", "to is no e-mail address"), ("test a@x.example --transport bulk",
        "EFFECTS_EMAIL_TRANSPORT_BULK"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_and_the_exit_code_is_two(run: Run, words: str, says: str) -> None:
    answer = run("email", *words.split())
    assert answer.exit_code == 2
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_a_context_that_is_nested_too_deeply_is_a_mistake_too(run: Run, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 100_000)
    answer = run("email", "preview", "code", "--context", str(tmp_path / "deep.json"))
    assert (answer.exit_code, answer.err) == (2, "error: --context is nested too deeply\n")


def test_templates_are_listed_and_linted(run: Run, environment: Path) -> None:
    listed = run("email", "templates", "list", "--json", url=None).json
    assert [(template["template"], template["locale"], template["parts"]) for template in listed] == [
        ("code", "default", "txt"), ("welcome", "default", "html"), ("welcome", "de", "txt"),
    ]  # fmt: skip
    assert run("email", "templates", "lint", url=None).exit_code == 0
    write(environment / "emails", {"bad/subject.txt": "{{", "bad/body.txt": "b"})
    broken = [
        template
        for template in run("email", "templates", "list", "--json", url=None).json
        if template["version"] is None
    ]
    assert [(template["template"], "line 1" in template["parts"]) for template in broken] == [("bad", True)]
    linted = run("email", "templates", "lint", url=None)
    assert (linted.exit_code, "bad/subject.txt, line 1" in linted.out) == (1, True)


@pytest.mark.slow
def test_a_message_is_sent_shown_and_resent(run: Run, environment: Path, database_url: str) -> None:
    app = Effects(database_url)
    send_templated_email("welcome", to="ann@example.com", context=CONTEXT, key="k", effects=app)
    app.dispose()
    assert run("work", "--drain").exit_code == 0
    shown = run("email", "show", "k", "--json").json
    assert (shown["state"], shown["to"], shown["subject"]) == ("done", "ann@example.com", "Welcome, Ann!")
    assert [email["key"] for email in run("email", "list", "Ann@Example.com", "--json").json] == ["k"]
    refused = run("retry", "k")
    assert (refused.exit_code, "--even-if-done" in refused.err) == (1, True)
    assert run("email", "resend", "k", "--even-if-done", "--reason", "lost").exit_code == 0
    assert run("work", "--drain").exit_code == 0
    files = [file.read_bytes() for file in (environment / "mail" / "new").iterdir()]
    assert len(files) == 2
    assert len({data.partition(b"Message-ID:")[2][:60] for data in files}) == 2


def test_a_transport_is_tried_past_the_queue(run: Run, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run("email", "test", "ann@example.com", "--json")
    assert (answer.exit_code, answer.json["result"]) == (0, "accepted")
    assert len(list((environment / "mail" / "new").iterdir())) == 1
    monkeypatch.setenv("EFFECTS_SMTP_URL", "smtp://localhost:1")
    answer = run("email", "test", "ann@example.com", "--json")
    assert (answer.exit_code, answer.json["result"], answer.json["stage"]) == (1, "transport_down", "connect")
    monkeypatch.setenv("EFFECTS_EMAIL_HOLD", "yes")
    assert "EFFECTS_EMAIL_HOLD" in run("email", "test", "ann@example.com").err


@pytest.mark.parametrize(
    ("variable", "value"),
    [("SMTP_URL", "ftp://x"), ("EMAIL_FROM", "nobody"), ("EMAIL_REDIRECT", "x@"), ("EMAIL_HOLD", "perhaps"),
     ("EMAIL_CONTENT_DAYS", "0"), ("EMAIL_CONTENT_DAYS", "many"), ("EMAIL_TRANSPORT_A-B", "smtp://localhost")],
)  # fmt: skip
def test_a_wrong_setting_ends_the_worker_before_it_claims(
    run: Run, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"EFFECTS_{variable}", value)
    answer = run("work", "--drain")
    assert answer.exit_code == 2
    assert "Traceback" not in answer.err
    assert (f"EFFECTS_{variable}" in answer.err) or "mail transport" in answer.err
