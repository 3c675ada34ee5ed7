"""Templates: which one, in which language, which version; what is wrong with one is said with its place."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from effects import ConfigurationError, Effects
from effects_email import EmailInvalid, RenderingFailed, TemplateError, TemplateNotFound, preview_email
from effects_email.templates import folder as templates_module
from effects_email.templates.folder import TemplateFolder, Version, locale_chain
from effects_email.templates.gallery import lint
from effects_email.templates.plain_text import text_of
from effects_email.templates.rendering import Renderer
from tests.email.messages.conftest import CONTEXT, FILES, write

Say = Callable[..., Any]


@pytest.fixture
def say(tmp_path: Path) -> Say:
    """`say({"mail/subject.txt": …}, name=…)`: the template `mail` of these files."""
    folder = tmp_path / "said"

    def render(files: dict[str, str], /, **context: Any) -> Any:
        write(folder, {"mail/subject.txt": "s", **files})
        return Renderer().render(TemplateFolder(folder).find("mail"), context)

    return render


@pytest.mark.parametrize(
    ("requested", "chosen"),
    [
        (None, None), ("de", "de"), ("DE", "de"), ("de-AT", "de-AT"), ("de_at", "de-AT"), ("de-CH", "de"),
        ("de-Latn-AT", "de"), ("fr", None), ("fr-CA", None), ("pt-BR", "pt_br"), ("pt", None),
    ],
)  # fmt: skip
def test_exact_then_language_then_default(tmp_path: Path, requested: str | None, chosen: str | None) -> None:
    names = ["mail", "mail.de", "mail.de-AT", "mail.pt_br", "deep/mail", "deep/mail.de"]
    write(tmp_path, {f"{name}/{part}": name for name in names for part in ("subject.txt", "body.txt")})
    write(tmp_path, {f"{name}/subject.txt": name for name in ("mail.de/inner", "_parts/mail", ".git/mail")})  # are none
    folder = TemplateFolder(tmp_path)
    for _ in range(2):  # the second comes from memory
        version = folder.find("mail", requested)
        assert version.locale == chosen
        assert Renderer().render(version, {}).subject == (f"mail.{chosen}" if chosen else "mail")
    assert folder.find("deep/mail", "de-DE").locale == "de"
    assert folder.names() == [
        ("deep/mail", None), ("deep/mail", "de"), ("mail", None), ("mail", "de"), ("mail", "de-AT"), ("mail", "pt_br"),
    ]  # fmt: skip


def test_the_chain() -> None:
    assert locale_chain("zh_Hant-TW") == ["zh-hant-tw", "zh-hant", "zh", None]
    for wrong in ("", "d", "../de", "de/..", "de-", "x" * 50, "de AT"):
        with pytest.raises(TemplateNotFound, match="give a language"):
            locale_chain(wrong)


@pytest.mark.parametrize(
    "name", ["", "nope", "../secret", "/etc", "welcome/", "welcome/subject.txt", "Welcome", "a b", ".", "_layout",
    "x" * 200,
             "welcome.de", "welcome\0", "welcome\n"],
)  # fmt: skip
def test_a_name_finds_a_template_or_nothing(tmp_path: Path, name: str) -> None:
    write(tmp_path / "emails", FILES)
    write(tmp_path, {"secret/subject.txt": "s", "secret/body.txt": "b"})
    with pytest.raises(TemplateNotFound):
        TemplateFolder(tmp_path / "emails").find(name)


def test_a_version_is_the_text_of_all_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates_module, "LOOK_AGAIN_SECONDS", 0.0)
    write(tmp_path, FILES)
    folder = TemplateFolder(tmp_path)
    first = folder.find("welcome")
    assert folder.find("welcome") is first
    write(tmp_path, {"unrelated/subject.txt": "s", "unrelated/body.txt": "b", "code/subject.txt": "Another"})
    assert folder.find("welcome").version == first.version
    seen = {first.version}
    for number, path in enumerate(
        ["_layout.html", "welcome/body.html", "welcome/subject.txt", "welcome/template.toml"]
    ):
        write(tmp_path, {path: f"{FILES.get(path, '')}\n" + " " * (number + 1)})
        seen.add(folder.find("welcome").version)
    assert len(seen) == 5
    assert folder.find("welcome", "de").version not in seen
    write(tmp_path, FILES)
    (tmp_path / "welcome/template.toml").unlink()
    assert folder.find("welcome").version == first.version
    assert TemplateFolder(tmp_path).find("welcome").version == first.version


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deployed(TemplateFolder):
        def _marks(self, version: Version) -> tuple[object, ...]:
            if "Deployed" not in (tmp_path / "code/subject.txt").read_text():
                write(tmp_path, {"code/subject.txt": "Deployed meanwhile"})
            return super()._marks(version)

    monkeypatch.setattr(templates_module, "LOOK_AGAIN_SECONDS", 0.0)
    write(tmp_path, FILES)
    folder = Deployed(tmp_path)
    folder.find("code")
    assert folder.find("code").sources["code/subject.txt"] == "Deployed meanwhile"


def test_what_browsers_ask_for_fills_no_memory(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    folder = TemplateFolder(tmp_path)
    for number in range(templates_module.CACHED_MAX):
        folder.find("welcome", f"xx-a{number:04}")
    assert len(folder._versions) <= templates_module.CACHED_MAX
    with pytest.raises(TemplateNotFound, match="give a language"):
        folder.find("welcome", "de" + "-at" * 12)


def test_an_editors_byte_order_mark_is_no_word_of_a_template(tmp_path: Path) -> None:
    write(tmp_path, {**FILES, "code/subject.txt": "\ufeffCode", "code/template.toml": "\ufeffcategory = 'codes'"})
    version = TemplateFolder(tmp_path).find("code")
    assert (version.sources["code/subject.txt"], version.declared.category) == ("Code", "codes")


def test_a_folder_is_not_read_for_every_message(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    folder, renderer = TemplateFolder(tmp_path), Renderer()
    version = folder.find("welcome", "de-AT")
    renderer.render(version, CONTEXT)
    compiled = renderer._templates(version)
    began = time.monotonic()
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if time.monotonic() - began < templates_module.LOOK_AGAIN_SECONDS / 2:
        assert folder.find("welcome", "de-AT") is version
    assert renderer._templates(version) is compiled


def test_a_package_has_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "shop_of_tests", {"__init__.py": "", **{f"emails/{path}": text for path, text in FILES.items()}})
    write(tmp_path / "shop_of_tests/emails", {"__init__.py": ""})
    monkeypatch.syspath_prepend(str(tmp_path))
    folder = TemplateFolder("package:shop_of_tests.emails")
    assert Renderer().render(folder.find("code"), {"code": 7}).text == "7\n"
    assert ("welcome", "de") in folder.names()
    with pytest.raises(ConfigurationError, match="no_such_package"):
        TemplateFolder("package:no_such_package.emails")
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        TemplateFolder(tmp_path / "nowhere")


WRONG: list[tuple[dict[str, str], dict[str, Any], type[Exception], str]] = [
    (
        {"mail/body.txt": "a\n{{ name }}"},
        {},
        RenderingFailed,
        "mail/body.txt, line 2: 'name' is missing in the context",
    ),
    (
        {"mail/subject.txt": "{{ user.name }}", "mail/body.txt": "b"},
        {"user": {}},
        RenderingFailed,
        "mail/subject.txt, line 1: 'name' is missing",
    ),
    (
        {"mail/body.txt": "{{ user[key] }}"},
        {"user": {}, "key": "secret-value"},
        RenderingFailed,
        "mail/body.txt, line 1: something is missing in the context",
    ),
    ({"mail/body.txt": "{{ 1 + name }}"}, {"name": "secret-value"}, RenderingFailed, "line 1: TypeError"),
    ({"mail/body.txt": "{{ name|int|nope }}"}, {}, TemplateError, "mail/body.txt, line 1: No filter named 'nope'"),
    ({"mail/body.txt": "{% if %}"}, {}, TemplateError, "mail/body.txt, line 1"),
    ({"mail/body.txt": "{{ ''.__class__.__mro__ }}"}, {}, RenderingFailed, "line 1: the sandbox forbids"),
    ({"mail/body.txt": "{{ items.append(1) }}"}, {"items": []}, RenderingFailed, "line 1: the sandbox forbids"),
    ({"mail/body.txt": "{% include '../../secret' %}"}, {}, TemplateError, "leaves the folder"),
    ({"mail/body.txt": "{% include '/etc/passwd' %}"}, {}, TemplateError, "leaves the folder"),
    ({"mail/body.txt": "{% include 'nowhere.txt' %}"}, {}, TemplateError, "there is no file nowhere.txt"),
    ({"mail/body.txt": "x", "mail/template.toml": "expires_seconds = inf"}, {}, TemplateError, "expires_seconds"),
    ({"mail/body.txt": "{% include '" + "x" * 300 + "' %}"}, {}, TemplateError, "cannot be read: File name too long"),
    ({"mail/body.txt": "{% include which %}"}, {"which": "a"}, TemplateError, "includes by a variable"),
    ({"mail/body.html": "{% include '_a.txt' %}", "_a.txt": "{{ name }}"}, {}, TemplateError, "would not be escaped"),
    ({}, {}, TemplateError, "has none of body.html, body.md and body.txt"),
    ({"mail/body.txt": "b", "mail/template.toml": "categorie = 'x'"}, {}, TemplateError, "unknown field `categorie`"),
    ({"mail/body.txt": "b", "mail/template.toml": "category ="}, {}, TemplateError, "template.toml"),
    ({"mail/body.txt": "b", "mail/template.toml": "on_unknown = 'x'"}, {}, TemplateError, "on_unknown"),
    ({"mail/body.txt": "b", "mail/subject.txt": " \n "}, {}, EmailInvalid, "the subject has 0 characters"),
    ({"mail/body.txt": "{{ 'x' * 3000000 }}"}, {}, EmailInvalid, "body.txt has 3,000,000 bytes"),
    ({"mail/body.txt": "{{ name }}"}, {"name": "\ud800"}, RenderingFailed, "half of a surrogate pair"),
]


@pytest.mark.parametrize(("files", "context", "kind", "says"), WRONG, ids=[case[3][-30:] for case in WRONG])
def test_a_template_error_is_named_with_its_place(
    say: Say, files: dict[str, str], context: dict[str, Any], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind) as caught:
        say(files, **context)
    assert says in str(caught.value)
    assert "secret-value" not in str(caught.value)


# Data that would be something else than data, if anything went wrong.
INERT = [
    "{{ 7 * 7 }}", "{% raw %}", "{# x #}", "{{ config }}", "{% include '_layout.html' %}", "${7*7}", "<%= 7 %>",
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg onload=alert(1)>', "' onclick='x", "</style>",
    "<!-- -->", "&lt;", "&amp;", "]]>", "javascript:alert(1)", "\u2028", "a\x00b", "%0d%0aBcc: x", "=?utf-8?q?x?=",
    "{{ ''.__class__ }}", "{{ lipsum.__globals__ }}", "{{ self.__init__ }}", "{% for x in range(9) %}x{% endfor %}",
]  # fmt: skip


@pytest.mark.parametrize("data", INERT)
def test_data_is_never_a_template_and_never_html(say: Say, data: str) -> None:
    rendered = say({"mail/body.html": "<p title='{{ x }}'>{{ x }}</p>", "mail/body.txt": "{{ x }}"}, x=data)
    assert rendered.text == data
    assert rendered.html == f"<p title='{escape(data)}'>{escape(data)}</p>"


def test_css_is_inlined_and_other_rules_are_kept(say: Say) -> None:
    html = "<html><head><style>p { color: red } @media print { p { color: black } }</style></head><body><p>x</p></body>"
    rendered = say({"mail/body.html": html})
    assert '<p style="color: red' in rendered.html
    assert "@media print" in rendered.html
    assert rendered.text == "x\n"


def test_a_subject_is_always_one_line(say: Say) -> None:
    rendered = say(
        {"mail/subject.txt": "Hi {{ x }}\n\n you\n", "mail/body.txt": "b"}, x="a\r\nBcc: b\x00\t c\u2028d\x85e"
    )
    assert rendered.subject == "Hi a Bcc: b c d e you"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("", ""), ("<p>a</p>", "a\n"), ("<p>a <b>b</b>\n c</p><p>d</p>", "a b c\n\nd\n"), ("a<br>b<br/>c<br><br>d",
        "a\nb\nc\n\nd\n"),
        ("<ul><li>a<li>b</ul>", "- a\n- b\n"), ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b\n"),
        ("<a href='https://x.example/'>x</a>", "x (https://x.example/)\n"),
        ("<a href='https://x.example'>https://x.example/</a>", "https://x.example/\n"),
        ("<a href='https://x.example'></a>", "https://x.example\n"), ("<a href='#top'>top</a>", "top\n"),
        ("<a href='mailto:a@b.example'>write</a>", "write (a@b.example)\n"),
        ("<img alt='Logo' src=x>text", "Logotext\n"),
        ("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td></tr></table>", "a b\nc\n"),
        ("<style>p{}</style><script>x</script><title>t</title>a", "a\n"), ("a&nbsp;b &lt;c&gt; &amp;amp;",
        "a\u00a0b <c> &amp;\n"),
        ("<p>a</p>\n\n\n<hr>\n<p>b</p>", "a\n\n--------------------\n\nb\n"), ("<p>unclosed <b>tags",
        "unclosed tags\n"),
        ("<head><title>t</title><body><p>the end of head was left out</p>", "the end of head was left out\n"),
        ("</p></a></ul>a", "a\n"), ("<!-- c -->a<![CDATA[x]]>", "a\n"),
    ],
)  # fmt: skip
def test_html_is_read_as_text(html: str, text: str) -> None:
    assert text_of(html) == text


def test_lint_finds_what_would_fail_or_look_wrong(tmp_path: Path) -> None:
    write(tmp_path, FILES)
    assert lint(TemplateFolder(tmp_path)) == []
    write(tmp_path, {
        "bad/subject.txt": "{% if %}", "bad/body.txt": "b", "empty/subject.txt": "s",
        "news/subject.txt": "{{ a }}",
        "news/body.html": "<img src=x><script></script>{{ a|safe }}<link rel=stylesheet>",
        "news.de/subject.txt": "{{ a }}{{ b }}", "news.de/body.txt": "x", "news/template.toml": "sender = 'nobody'",
    })  # fmt: skip
    findings = [(finding.template, finding.locale, finding.problem) for finding in lint(TemplateFolder(tmp_path))]
    words = " ".join(problem for _, _, problem in findings)
    for expected in ("bad/subject.txt, line 1", "none of body.html", "no alt text", "scripts, forms", "escaping",
    "style sheet",
                     "sender is no e-mail address", "uses b, which the default"):  # fmt: skip
        assert expected in words
    assert {name for name, _, _ in findings} == {"bad", "empty", "news"}


def test_a_preview_writes_nothing_and_needs_no_database(templates: Path, tmp_path: Path) -> None:
    write(templates, {"welcome/template.toml": 'category = "news"\n'})  # no address for unsubscribing is set
    app = Effects(f"sqlite:///{tmp_path / 'not-there.db'}", templates=templates)
    preview = preview_email("welcome", context=CONTEXT, locale="de-CH", effects=app)
    app.dispose()
    assert (preview.locale, preview.source.subject, preview.source.text) == (
        "de", "Willkommen, Ann!", f"Hallo Ann: {CONTEXT['link']}\n",
    )  # fmt: skip
    assert preview.eml.startswith(b"From: sender@example.com\r\nTo: you@example.com\r\n")
    assert not (tmp_path / "not-there.db").exists()
