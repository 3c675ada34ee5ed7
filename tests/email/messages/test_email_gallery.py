"""The gallery: every template in every language as files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.email.messages.conftest import CONTEXT, FILES, run, write

__all__ = ["run"]
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(tmp_path / "emails", FILES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EFFECTS_EMAIL_TEMPLATES", "emails")
    return tmp_path


def test_a_gallery_shows_every_template(run: Run, environment: Path) -> None:
    write(environment / "emails", {
        "welcome/previews.json": json.dumps({"Ann": CONTEXT, "<Bob>": {"name": "<b>Bob</b>", "link": "https://x.example"}}),
        "note/subject.txt": "{{ a.b }}", "note/body.md": "# {{ a.b }}\n\n[go]({{ a.url }}) ![logo](cid:logo)",
        "deep/note/subject.txt": "s", "deep/note/body.txt": "<t>",
    })  # fmt: skip
    (environment / "logo.png").write_bytes(PNG)
    answer = run("email", "gallery", "out", "--image", "logo=logo.png", url=None)
    assert answer.exit_code == 0, answer.out + answer.err
    names = {path.name for path in (environment / "out").iterdir()}
    assert names == {
        "index.html", "welcome.default.1.html", "welcome.default.1.txt", "welcome.default.2.html",
        "welcome.default.2.txt", "welcome.default.3.html", "welcome.default.3.txt", "welcome.de.1.txt",
        "welcome.de.2.txt", "welcome.de.3.txt", "code.default.1.txt", "note.default.1.html", "note.default.1.txt",
        "deep.note.default.1.txt",
    }  # fmt: skip
    index = (environment / "out" / "index.html").read_text()
    for name in names - {"index.html"}:
        assert f'href="{name}"' in index
    assert "&lt;Bob&gt;: Welcome, &lt;b&gt;Bob&lt;/b&gt;!" in index
    assert "&lt;t&gt;" in index
    assert 'sandbox=""' in index
    assert "Hello Ann" in (environment / "out" / "welcome.default.1.txt").read_text()
    note = (environment / "out" / "note.default.1.html").read_text()
    assert "‹a.b›</h1>" in note
    assert 'href="https://example.invalid/"' in note
    assert 'src="data:image/png;base64,' in note
    assert stat.S_IMODE((environment / "out" / "index.html").stat().st_mode) == 0o600
    assert run("email", "gallery", "out", url=None).exit_code == 0  # again, over the first


def test_what_cannot_be_shown_is_in_it_with_the_reason(run: Run, environment: Path) -> None:
    write(environment / "emails", {"bad/subject.txt": "{% if %}", "bad/body.txt": "x"})
    write(environment / "emails", {"code/previews.json": '{"empty": {}}', "welcome/previews.json": "[]"})
    answer = run("email", "gallery", "out", "--json", url=None)
    assert answer.exit_code == 1
    problems = {page["template"]: page["problem"] for page in json.loads(answer.out)["pages"] if page["problem"]}
    assert problems.keys() == {"bad", "code", "welcome"}
    assert "'code' is missing in the context" in problems["code"]
    assert "&#39;code&#39; is missing" in (environment / "out" / "index.html").read_text()


def test_no_templates(run: Run, environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment / "none").mkdir()
    monkeypatch.setenv("EFFECTS_EMAIL_TEMPLATES", "none")
    assert run("email", "gallery", "out", url=None).exit_code == 0
    assert "There are none." in (environment / "out" / "index.html").read_text()
