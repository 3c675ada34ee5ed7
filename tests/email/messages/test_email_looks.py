"""What a message looks like: buttons, the sender's brand, preheaders, prices, styles, and the text made of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from effects_email import TemplateError
from effects_email.commands.templates import STARTERS
from effects_email.templates.folder import Brand, TemplateFolder, without_template
from effects_email.templates.gallery import cases_of, lint
from effects_email.templates.markdown import html_of
from effects_email.templates.plain_text import text_of
from effects_email.templates.rendering import Rendered, Renderer
from tests.cli.conftest import Run
from tests.email.messages.conftest import write

STARTER_NAMES = (
    "endpoint-disabled", "endpoint-failing", "invitation", "password-reset", "receipt", "report-ready", "welcome",
)  # fmt: skip


def _rendered(folder: Path, files: dict[str, str], locale: str | None = None, **context: Any) -> Rendered:
    write(folder, {"mail/subject.txt": "s", **files})
    return Renderer().render(TemplateFolder(folder).find("mail", locale), context)


@pytest.mark.parametrize(
    ("source", "is_button"),
    [
        ("[Pay *now*](https://a.example/x){.button}", True),
        ("[Pay](https://a.example/x) {.button}", False),
        ("[Pay](https://a.example/x)x{.button}", False),
        (r"[Pay](https://a.example/x)\{.button}", False),
        ("Pay {.button}", False),
        ("`[Pay](https://a.example/x){.button}`", False),
    ],
)
def test_a_link_with_the_mark_right_behind_it_is_a_button(source: str, is_button: bool) -> None:
    html = html_of(source)
    assert ('class="button"' in html, "{.button}" in html) == (is_button, not is_button)


def test_of_two_links_the_marked_one_is_the_button() -> None:
    html = html_of("[a](https://a.example) [b](https://b.example){.button}")
    assert re.findall(r'<a href="https://(.)\.example"( class="button")?>', html) == [
        ("a", ""),
        ("b", ' class="button"'),
    ]


def test_a_value_makes_no_button(tmp_path: Path) -> None:
    html = _rendered(tmp_path, {"mail/body.md": "[Pay](https://a.example){{ v }}"}, v="{.button}").html or ""
    assert 'class="button"' not in html


def test_a_cell_of_numbers_is_not_broken() -> None:
    html = html_of("| Item | Price |\n|:--|--:|\n| Tea | 24.00 € |\n")
    assert html.count('style="text-align:right;white-space:nowrap"') == 2
    assert html.count('style="text-align:left"') == 2


def test_the_brand_is_of_the_folder_and_over_it_of_the_template(tmp_path: Path) -> None:
    files = {
        "template.toml": 'language = "en-GB"\nsender = "Shop <a@shop.example>"\n[brand]\nname = "The <Shop>"\n'
        'color = "#ffd43b"\nfooter = "One Street\\nTown"\n',
        "mail/template.toml": '[brand]\nlogo = "https://shop.example/logo.png"\n',
        "mail/body.md": "[Go](https://a.example){.button}",
    }
    rendered = _rendered(tmp_path, files)
    html = rendered.html or ""
    assert '<html lang="en-GB"' in html
    assert re.search(r'<img [^>]*src="https://shop\.example/logo\.png"', html)
    assert 'alt="The &lt;Shop&gt;"' in html or 'alt="The <Shop>"' in html
    assert re.search(r'class="button"[^>]*color: #000000;[^>]*background-color: #ffd43b', html)
    assert rendered.text.endswith("One Street\nTown\n")
    assert TemplateFolder(tmp_path).find("mail").declared.sender == "Shop <a@shop.example>"


def test_a_changed_brand_is_another_version(tmp_path: Path) -> None:
    write(tmp_path, {"mail/subject.txt": "s", "mail/body.md": "x"})
    before = TemplateFolder(tmp_path).find("mail").version
    write(tmp_path, {"template.toml": '[brand]\nname = "Shop"\n'})
    assert TemplateFolder(tmp_path).find("mail").version != before


@pytest.mark.parametrize(
    "wrong",
    [
        'color = "red"', 'color = "#ffd43b; } body { display: none"', 'logo = "javascript:alert(1)"',
        'logo = "https://a.example/\\" onerror=\\"x"', 'logo = "logo.png"', 'colour = "#ffffff"',
    ],
)  # fmt: skip
def test_a_brand_that_cannot_be_is_refused(tmp_path: Path, wrong: str) -> None:
    write(tmp_path, {"mail/subject.txt": "s", "mail/body.md": "x", "template.toml": f"[brand]\n{wrong}\n"})
    with pytest.raises(TemplateError, match=r"template\.toml of the folder: .*brand"):
        TemplateFolder(tmp_path).find("mail")


@pytest.mark.parametrize(("color", "ink"), [("#000000", "#ffffff"), ("#ffd43b", "#000000"), ("#0b57d0", "#ffffff")])
def test_the_words_of_a_button_can_be_read(color: str, ink: str) -> None:
    assert Brand(color=color).ink == ink


def test_a_preheader_is_in_the_page_and_not_in_the_text(tmp_path: Path) -> None:
    files = {"mail/body.md": "Hello", "mail/preheader.txt": "Paid:\n {{ total }}\n"}
    rendered = _rendered(tmp_path, files, total="<12 €>")
    assert "Paid: &lt;12 €&gt;" in (rendered.html or "")
    assert rendered.text == "Hello\n"


def test_a_preheader_without_markdown_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=r"preheader\.txt is for body\.md"):
        _rendered(tmp_path, {"mail/body.html": "<p>x</p>", "mail/preheader.txt": "x"})


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ('<div style="color: #fff; display:none">pre<div>in</div>er</div><p>Hello</p>', "Hello\n"),
        ('<p>a<span style="DISPLAY : none !important">x</span>b</p>', "ab\n"),
        ('<p>a<img style="display:none" alt="x">b</p>', "axb\n"),
        ('<div style="display:none-ish">a</div>', "a\n"),
        ('<div style="display:none">pre<p>its end is missing</p>', "pre\n\nits end is missing\n"),
    ],
)
def test_hidden_words_are_not_in_the_text(html: str, text: str) -> None:
    assert text_of(html) == text


def test_a_table_in_the_text_is_as_long_as_its_cells() -> None:
    """A thousand rows beside one long cell were a thousand lines of its width."""
    cells = "".join(f"<tr><td>{number}</td><td>x</td></tr>" for number in range(1000))
    text = text_of(f"<table><tr><th>No</th><th>Words</th></tr><tr><td>0</td><td>{'w' * 5000}</td></tr>{cells}</table>")
    assert text.startswith(f"No: 0\nWords: {'w' * 5000}\n\nNo: 0\nWords: x\n")
    assert len(text) < 40_000
    assert text_of("<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>") == "a  b\n-  -\n1  2\n"


def test_rules_that_cannot_be_inlined_are_kept() -> None:
    page = (
        "<html><head><style>:root { color-scheme: light dark } a { color: red } a:hover { color: blue } "
        "@media (prefers-color-scheme: dark) { :root { --x: 1 } a { color: #fff } }</style></head>"
        '<body><a href="https://a.example">x</a></body></html>'
    )
    html = Renderer().take(without_template(), "s", None, page).html or ""
    assert re.search(r'<a href="https://a\.example" style="color: red;">', html)
    styles = " ".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "a:hover { color: blue; }" in styles
    assert ":root { color-scheme: light dark }" in styles
    assert styles.count("--x: 1") == 1
    assert "color: red" not in styles


# -- the starters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STARTER_NAMES)
def test_each_starter_renders_with_a_button_a_preheader_and_no_finding(name: str) -> None:
    folder = TemplateFolder(Path(str(STARTERS)))
    version = folder.find(name)
    [case, *_] = cases_of(folder, version).values()
    rendered = Renderer().render(version, case)
    assert 'class="button"' in (rendered.html or "")
    assert 'class="preheader"' in (rendered.html or "")
    assert len(rendered.html or "") < 20_000
    assert [finding for finding in lint(folder) if finding.template == name] == []


def test_starters_are_written_into_a_folder_and_what_is_there_stays(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "emails"
    write(folder, {"welcome/subject.txt": "ours", "welcome/body.md": "ours"})
    assert "receipt" in run("email", "templates", "start", str(folder), "receipt", "welcome").out
    assert {path.name for path in folder.iterdir()} == {"receipt", "welcome"}
    assert (folder / "welcome" / "body.md").read_text() == "ours"
    run("email", "templates", "start", str(folder))
    assert {path.name for path in folder.iterdir()} == set(STARTER_NAMES)
    refused = run("email", "templates", "start", str(folder), "reciept")
    assert (refused.exit_code, "'receipt'" in refused.err) == (2, True)
