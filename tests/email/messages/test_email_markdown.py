"""Markdown bodies: what a template writes is markup, what a value holds never is."""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from effects import IdempotencyConflict
from effects.worker import Worker
from effects_email import EmailInvalid, RenderingFailed, TemplateError, escape_markdown, send_email
from effects_email.templates.folder import TemplateFolder
from effects_email.templates.gallery import lint, variables_of
from effects_email.templates.markdown import html_of
from effects_email.templates.plain_text import text_of
from effects_email.templates.rendering import Rendered, Renderer
from tests.email.messages.conftest import MakeShop, write
from tests.email.messages.post import Post

HOSTILE = [
    "**bold** _it_ ~~gone~~ `code`", "[x](http://evil.example)", "![x](http://evil.example/pixel.png)",
    "<script>alert(1)</script>", "</p><a href='http://evil.example'>x</a>", "<http://evil.example>",
    "\n\n# heading\n\n- item\n\n---\n\n    code", "\n> quote\n\n| a | b |\n|---|---|\n| c | d |\n",
    "[ref]: http://evil.example\n\n[ref]", "]( http://evil.example)", "\\", "&lt;b&gt; &#60; &amp;", '" onclick="x',
    "{{ 7 * 7 }} {% raw %}", "\ue000\ue010-\ue010\ue001", "```\nx\n```", "javascript:alert(1)", "", "\u202eabc", "a\rb",
]  # fmt: skip
# Every place that a value can stand in.
PLACES = (
    "# {{ v }}\n\n{{ v }} *{{ v }}* **{{ v }}** ~~{{ v }}~~ `{{ v }}` <{{ v }}> \\{{ v }} &{{ v }};\n\n- {{ v }}\n"
    "{{ v }}\n\n1. {{ v }}\n\n> {{ v }}\n\n    {{ v }}\n\n```{{ v }}\n{{ v }}\n```\n\n| {{ v }} | b |\n|---|---|\n"
    "| {{ v }} | {{ v }} |\n\n[{{ v }}](https://shop.example/{{ v }}?q={{ v }}#{{ v }} \"{{ v }}\")\n\n"
    "![{{ v }}](cid:logo '{{ v }}')\n\n{{ v|upper }} {{ v|e }} {{ v|urlize }} {{ '**' ~ v ~ '**' }}\n\n"
    "{% set block %}{{ v }}{% endset %}{{ block|safe }}{% filter lower %}{{ v }}{% endfilter %}"
)  # fmt: skip


class Shape(HTMLParser):
    """The tags of a page, and where they lead."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.names: set[str] = set()
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":  # a line break in a value
            self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.targets += [value or "" for name, value in attrs if name in ("href", "src")]


def rendered(folder: Path, body: str, files: dict[str, str] | None = None, /, **context: Any) -> Rendered:
    write(folder, {"mail/subject.txt": "s", "mail/body.md": body, **(files or {})})
    return Renderer().render(TemplateFolder(folder).find("mail"), context)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The HTML of PLACES with a value in each."""
    folder = write(tmp_path_factory.mktemp("places"), {"mail/subject.txt": "s", "mail/body.md": PLACES})
    version, renderer = TemplateFolder(folder).find("mail"), Renderer()
    return lambda value: renderer.render(version, {"v": value}).html


def test_no_value_becomes_markup(places: Any) -> None:
    plain = Shape(places("plain"))
    assert plain.targets == ["https://shop.example/plain?q=plain#plain", "cid:logo"]
    for value in HOSTILE:
        page = places(value)
        shape = Shape(page)
        assert shape.tags == plain.tags, value
        assert shape.names == plain.names
        assert [target.partition("/")[0] for target in shape.targets] == ["https:", "cid:logo"]
        assert shape.targets[0].startswith("https://shop.example/")
        assert shape.targets[0].count("?") == shape.targets[0].count("#") == 1
        assert "\ue000" not in page or "\ue000" in value


@pytest.mark.slow
@given(st.text(alphabet=st.sampled_from("*_[]()<>`~#|\\!&;:/.-+=\"'{}% \n\r\tabA1\ue000\ue001\ue010"), max_size=40))
@example("\n\n")
def test_no_value_of_any_letters_becomes_markup(places: Any, value: str) -> None:
    assert Shape(places(value)).tags == Shape(places("plain")).tags


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=60))
@example("    1. x\n- y\n# z")
@example("![x](http://evil.example) <b> &amp; \\")
def test_escaped_words_are_shown_as_they_are(text: str) -> None:
    html = html_of(f"a {escape_markdown(text)} b")
    assert Shape(html).tags == ["p"]
    assert " ".join(text_of(html).split()) == " ".join(f"a {text} b".split())


@pytest.mark.parametrize(
    "target",
    [
        "{{ 'javascript:alert(1)' }}", "javascript:alert(1)", "JaVaScRiPt&colon;alert(1)", "java{{ v }}:x",
        "data:text/html,x", "/orders", "#part", "//evil.example", "vbscript:x", "file:///etc/passwd", "https:///x",
        "https://[x", "x",
        "https://shop.example{{ v }}", "https://shop.example{{ v }}/x", "https://a{{ v }}{{ v }}?x", "{{ v }}", "",
    ],
)  # fmt: skip
def test_a_link_that_leads_elsewhere_is_an_error_of_the_call(tmp_path: Path, target: str) -> None:
    for body in (f"[x]({target})", f"[x]\n\n[x]: {target or '<>'}"):
        with pytest.raises(RenderingFailed, match=r"template 'mail': mail/body\.md: a link (leads|names|has)"):
            rendered(tmp_path, body, v="\x01javascript:x")
    with pytest.raises(RenderingFailed, match="an image"):
        rendered(tmp_path, f"![x]({target})", v="x")


def test_links_and_images_that_may_be(tmp_path: Path) -> None:
    body = (
        "[a]({{ url }}) [b](https://{{ tenant }}.shop.example:{{ port }}/{{ tenant }}) [c](mailto:{{ to }})\n"
        "[d](tel:+491234) <https://shop.example/ä> ![e](cid:logo) ![f]({{ url }})"
    )
    html = rendered(
        tmp_path, body, url="https://müller.example/a b?c=d&e", tenant="t/x", port=8080, to="a@b.example"
    ).html
    assert Shape(html or "").targets == [
        "https://xn--mller-kva.example/a%20b?c=d&e", "https://t%2Fx.shop.example:8080/t%2Fx", "mailto:a%40b.example",
        "tel:+491234", "https://shop.example/%C3%A4", "cid:logo", "https://xn--mller-kva.example/a%20b?c=d&e",
    ]  # fmt: skip


def test_macros_and_parts_of_other_files_are_markdown(tmp_path: Path) -> None:
    parts = {
        "_parts.md": "{% macro button(url, label) %}**[{{ label }}]({{ url }})**{% endmacro %}",
        "_foot.md": "*{{ v }}*",
    }
    body = (
        "{% from '_parts.md' import button %}{{ button('https://a.example/', v)|safe }} "
        "{{ button('https://a.example/', v) }} {% include '_foot.md' %}"
    )
    html = rendered(tmp_path, body, parts, v="*x*").html or ""
    assert '<strong><a href="https://a.example/"' in html
    assert "**[*x*](https://a.example/)**" in html  # without |safe it is text
    assert re.search(r"<em>\*x\*</em>", html)


def test_the_page_around_it_is_light_and_dark_and_its_styles_are_inlined(tmp_path: Path) -> None:
    html = rendered(tmp_path, "# Hi {{ name }}\n\n| a | b |\n|---|--:|\n| 1 | 2 |\n", name="<Ann>").html or ""
    assert "<h1 style=" in html
    assert "Hi &lt;Ann&gt;</h1>" in html
    assert "@media (prefers-color-scheme: dark)" in html
    assert 'name="viewport"' in html
    assert "<title>s</title>" in html
    assert '<html lang="en"' in html
    assert html.count("<table") == 1  # the template's own
    write(tmp_path, {"mail.de/subject.txt": "s", "mail.de/body.md": "x"})
    assert '<html lang="de"' in (Renderer().render(TemplateFolder(tmp_path).find("mail", "de"), {}).html or "")


def test_an_app_has_a_page_of_its_own(tmp_path: Path) -> None:
    page = {"_markdown.html": "{% include '_head.html' %}<main>{{ content }}</main><p>{{ subject }} {{ name }}</p>"}
    first = TemplateFolder(write(tmp_path / "a", {"mail/subject.txt": "s", "mail/body.md": "*{{ name }}*"})).find(
        "mail"
    )
    own = rendered(tmp_path / "a", "*{{ name }}*", {**page, "_head.html": "<i>{{ name }}</i>"}, name="<A>")
    assert own.html == "<i>&lt;A&gt;</i><main><p><em>&lt;A&gt;</em></p>\n</main><p>s &lt;A&gt;</p>"
    assert own.text == "<A>\n\n<A>\n\ns <A>\n"
    second = TemplateFolder(tmp_path / "a").find("mail")
    assert second.version != first.version
    assert variables_of(second) == variables_of(first) == {"name"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"mail/body.html": "x"}, "both body.html and body.md"),
        ({"mail/body.md": "{% include 'mail/subject.txt' %}"}, "would not be escaped"),
        ({"mail/body.md": "{% if %}"}, r"mail/body\.md, line 1"),
        ({"mail/body.md": "a\n{{ gone }}"}, r"mail/body\.md, line 2: 'gone' is missing"),
        ({"mail/body.md": "{{ ''.__class__ }}"}, "the sandbox forbids"),
        ({"_markdown.html": "{{ gone }}"}, r"_markdown\.html, line 1: 'gone' is missing"),
        ({"mail/body.md": "{% filter truncate(40, true) %}{{ 1 }}{{ 2 }}{{ 3 }}{% endfilter %}"}, "a filter was"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        rendered(tmp_path, "x", files)


def test_lint_looks_at_markdown(tmp_path: Path) -> None:
    write(tmp_path, {"mail/subject.txt": "s", "mail/body.md": "<b>x</b> {{ y|safe }}", "ok/subject.txt": "s"})
    write(tmp_path, {"ok/body.md": "<https://shop.example/> 1 < 2 > 0 {{ y }}"})
    assert [(finding.template, finding.problem) for finding in lint(TemplateFolder(tmp_path))] == [
        ("mail", "mail/body.md: HTML within Markdown is shown as text")
    ]


def test_the_text_reads_well() -> None:
    source = (
        "# Your order\n\nSee [it](https://shop.example/o/1) or <https://shop.example/>.\n\n| Item | Price |\n"
        "|---|--:|\n| Tea, green | 4 € |\n| Pot | 20 € |\n\n"
        "> Be quick.\n>\n> - one\n\n1. First\n   - nested\n2. Second\n\n"
        "```\nif x:\n    y()\n```\n\n---\n\nBye"
    )
    assert text_of(html_of(source)) == (
        "Your order\n\nSee it (https://shop.example/o/1) or https://shop.example/.\n\nItem        Price\n"
        "----------  -----\nTea, green  4 €\nPot         20 €\n\n> Be quick.\n>\n> - one\n\n1. First\n  - nested\n"
        "2. Second\n\nif x:\n    y()\n\n--------------------\n\nBye\n"
    )
    layout = "<table><tr><td>a</td><td><table><tr><th>h</th></tr><tr><td>1</td></tr></table></td></tr></table>"
    assert text_of(layout) == "a\nh\n-\n1\n"
    assert text_of("a<blockquote></blockquote>b<table></table>c</table></td></blockquote>d") == "a\n\nb\n\nc\n\nd\n"


def test_markdown_without_a_template(make_shop: MakeShop, post: Post) -> None:
    shop = make_shop(templates=None)
    words: dict[str, Any] = {
        "to": "Ann <ann@example.com>",
        "subject": "Hello",
        "markdown": "*Hi* <b>",
        "event_id": "a:1",
    }
    receipt = send_email(**words, effects=shop)
    assert send_email(**words, effects=shop).existing
    with pytest.raises(IdempotencyConflict):
        send_email(**{**words, "markdown": "other"}, effects=shop)
    with pytest.raises(EmailInvalid, match="markdown: a link leads to none of"):
        send_email(**{**words, "markdown": "[x](javascript:y)"}, effects=shop)
    with pytest.raises(EmailInvalid, match="both html and markdown"):
        send_email(**words, html="x", effects=shop)
    Worker(shop).drain()
    [data] = post.bytes
    message = message_from_bytes(data, policy=policy.default)
    bodies = {part.get_content_type(): part.get_content() for part in message.walk() if not part.is_multipart()}
    assert bodies["text/plain"].strip() == "Hi <b>"
    assert "<em>Hi</em> &lt;b&gt;" in bodies["text/html"]
    assert "prefers-color-scheme" in bodies["text/html"]
    assert not receipt.existing


def test_markdown_in_the_apps_own_page(make_shop: MakeShop, templates: Path, post: Post) -> None:
    shop = make_shop()
    write(templates, {"_markdown.html": "<main>{{ content }}</main>"})
    send_email(to="ann@example.com", subject="Hello", markdown="x", text="my text", effects=shop)
    Worker(shop).drain()
    message = message_from_bytes(post.bytes[0], policy=policy.default)
    bodies = [part.get_content().strip().replace("\r", "") for part in message.walk() if not part.is_multipart()]
    assert bodies == ["my text", "<main><p>x</p>\n</main>"]
