"""What is wrong with templates, found before they are sent; and a gallery of them as files: an index, and each template
in each language with each of its sample contexts.

The contexts are the cases of the template's `previews.json`, or names in place of values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from jinja2 import DictLoader, Environment

from effects import ConfigurationError, Effects, EffectsError
from effects_email.errors import AddressInvalid, TemplateError
from effects_email.message.address import parse_mailbox
from effects_email.message.attachments import File, data_of, describe, inline_images
from effects_email.settings import check_transport_name
from effects_email.state import EmailState, state_of
from effects_email.templates.folder import TemplateFolder, Version
from effects_email.templates.rendering import Renderer, variables_of

_IMAGE_WITHOUT_ALT = re.compile(r"<img\b(?![^>]*\balt=)[^>]*>", re.IGNORECASE)
_REMOTE_STYLE = re.compile(r"<link\b[^>]*\bstylesheet\b", re.IGNORECASE)
_SCRIPT = re.compile(r"<(script|form|iframe)\b", re.IGNORECASE)
_TAG_IN_MARKDOWN = re.compile(r"<(?:/?[A-Za-z][A-Za-z0-9-]*(?:\s[^<>]*)?/?>|!--)")
_UNESCAPED = re.compile(r"\|\s*safe\b|\bautoescape\s+false\b")
CASES_FILE = "previews.json"
NAMES = "names"  # the case that every template has
INDEX = "index.html"
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Templates of {{ place }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem;
  color-scheme: light dark; }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: 1rem;
  list-style: none; padding: 0; }
li { border: 1px solid; border-radius: .5rem; padding: .75rem; overflow-wrap: anywhere; }
iframe { width: 100%; height: 20rem; border: 0; background: #fff; }
pre { height: 20rem; overflow: auto; white-space: pre-wrap; margin: 0; }
.problem { font-weight: bold; }
</style>
</head>
<body>
<h1>Templates of {{ place }}</h1>
{% if not pages %}<p>There are none.</p>{% endif %}
{% for name, variants in pages | groupby("template") %}
<h2 id="{{ name }}">{{ name }}</h2>
<ul>
{% for page in variants %}
<li>
<p>{{ page.locale or "default" }}, {{ page.case }}{% if page.subject is not none %}: {{ page.subject }}{% endif %}</p>
{% if page.problem %}<p class="problem">{{ page.problem }}</p>{% endif %}
{% if page.html_file %}<iframe sandbox="" loading="lazy" title="{{ name }}" src="{{ page.html_file }}"></iframe>
{% elif page.text is not none %}<pre>{{ page.text }}</pre>{% endif %}
<p>{% if page.html_file %}<a href="{{ page.html_file }}">HTML</a>{% endif %}
{% if page.text_file %}<a href="{{ page.text_file }}">text</a>{% endif %}</p>
</li>
{% endfor %}
</ul>
{% endfor %}
</body>
</html>
"""


class LintFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong."""

    template: str
    locale: str | None
    problem: str


def lint(folder: TemplateFolder) -> list[LintFinding]:
    """Every template in every language: can it be compiled, do its languages use the same variables, is its HTML fit
    for a mail program.
    """
    findings: list[LintFinding] = []
    variables: dict[str, dict[str | None, set[str]]] = {}
    for name, locale in folder.names():
        try:
            version = folder.find(name, locale)
            Renderer().compile(version)
        except ConfigurationError as error:
            findings.append(LintFinding(name, locale, str(error)))
            continue
        findings += [LintFinding(name, locale, problem) for problem in _problems(version)]
        variables.setdefault(name, {})[locale] = variables_of(version)
    return findings + [finding for name, by_locale in variables.items() for finding in _uneven(name, by_locale)]


def _problems(version: Version) -> Iterator[str]:
    for path, source in sorted(version.sources.items()):
        if path.endswith(".html"):
            if _IMAGE_WITHOUT_ALT.search(source):
                yield f"{path}: an image has no alt text, which is what many readers see"
            if _REMOTE_STYLE.search(source):
                yield f"{path}: a linked style sheet is not loaded; put it into <style>"
            if _SCRIPT.search(source):
                yield f"{path}: scripts, forms and frames do not work in mail"
            if _UNESCAPED.search(source):
                yield f"{path}: escaping is switched off; what is shown there must never come from people"
        elif path.endswith(".md") and _TAG_IN_MARKDOWN.search(source):
            yield f"{path}: HTML within Markdown is shown as text"
    if version.declared.sender is not None:
        try:
            parse_mailbox(version.declared.sender, where="sender")
        except AddressInvalid as error:
            yield f"template.toml: {error}"
    if version.declared.transport is not None:
        try:
            check_transport_name(version.declared.transport)
        except ConfigurationError as error:
            yield f"template.toml: {error}"


def _uneven(name: str, by_locale: dict[str | None, set[str]]) -> Iterator[LintFinding]:
    """A variable that one language has and the default has not: callers would forget it."""
    default = by_locale.get(None)
    for locale, used in by_locale.items():
        if default is not None and (extra := used - default):
            yield LintFinding(name, locale, f"uses {', '.join(sorted(extra))}, which the default language does not")


class Placeholder:
    """Shows the name of a variable in place of its value, however a template goes into it."""

    __target__ = "https://example.invalid/"  # in its place where a link of Markdown begins with it

    def __init__(self, path: str) -> None:
        self._path = path

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("_"):
            raise AttributeError(name)
        return Placeholder(f"{self._path}.{name}")

    def __getitem__(self, name: object) -> Placeholder:
        return Placeholder(f"{self._path}.{name}")

    def __iter__(self) -> Iterator[Placeholder]:
        return iter([Placeholder(f"{self._path}.1"), Placeholder(f"{self._path}.2")])

    def __len__(self) -> int:
        return 2

    def __str__(self) -> str:
        return f"‹{self._path}›"


def cases_of(folder: TemplateFolder, version: Version) -> dict[str, Mapping[str, Any]]:
    """Case → context. The first are those of `previews.json` beside the template: `{"paid": {"total": "12 €"}}`.

    Raises:
        TemplateError: the file is no JSON object of objects.
    """
    cases: dict[str, Mapping[str, Any]] = {}
    file = folder.root.joinpath(version.name, CASES_FILE)
    if file.is_file():
        try:
            cases.update(msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, Any]]))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise TemplateError(f"template {version.name!r}: {CASES_FILE}: {error}") from None
    cases.setdefault(NAMES, {name: Placeholder(name) for name in sorted(variables_of(version))})
    return cases


class GalleryPage(msgspec.Struct, frozen=True, kw_only=True):
    """A template in one language with one context. `problem`: why it cannot be shown; the files are None then."""

    template: str
    locale: str | None
    case: str
    subject: str | None = None
    text: str | None = None
    text_file: str | None = None
    html_file: str | None = None
    problem: str | None = None


def gallery_of(app: Effects, images: Sequence[File] = ()) -> tuple[list[GalleryPage], dict[str, str]]:
    """Every template in every language, shown with each case of its `previews.json` and with its variables' names.

    Args:
        images: inline images that templates show by `cid:`; paths.

    Returns:
        The pages; and the files by their names, `index.html` among them.

    Raises:
        ConfigurationError: no folder of templates is set, or it is not there.
        AttachmentInvalid: an image cannot be read.
    """
    state = state_of(app)
    attachments = describe(app, images)
    contents = {attachment.sha256: data_of(app, attachment) for attachment in attachments}
    pages: list[GalleryPage] = []
    files: dict[str, str] = {}
    for name, locale in state.folder.names():
        for page, html in _pages(state, name, locale):
            pages.append(page)
            if page.text_file is not None:
                files[page.text_file] = page.text or ""
            if page.html_file is not None:
                files[page.html_file] = inline_images(html or "", attachments, contents)
    index = Environment(autoescape=True, loader=DictLoader({INDEX: _PAGE}), trim_blocks=True).get_template(INDEX)
    files[INDEX] = index.render(pages=pages, place=state.folder.place)
    return pages, files


def _pages(state: EmailState, name: str, locale: str | None) -> Iterator[tuple[GalleryPage, str | None]]:
    """The pages of a template in one language, each with its HTML."""
    try:
        version = state.folder.find(name, locale)
        cases = cases_of(state.folder, version)
    except EffectsError as error:
        yield GalleryPage(template=name, locale=locale, case="-", problem=str(error)), None
        return
    for number, (case, context) in enumerate(cases.items(), 1):
        try:
            rendered = state.renderer.render(version, context)
        except EffectsError as error:
            yield GalleryPage(template=name, locale=locale, case=case, problem=str(error)), None
            continue
        stem = f"{name.replace('/', '.')}.{locale or 'default'}.{number}"
        page = GalleryPage(
            template=name, locale=locale, case=case, subject=rendered.subject, text=rendered.text,
            text_file=f"{stem}.txt", html_file=f"{stem}.html" if rendered.html is not None else None,
        )  # fmt: skip
        yield page, rendered.html
