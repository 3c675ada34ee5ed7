"""Rendering: a template version and a context → subject, HTML and text. Compiled once a version.

Where a template has no text, its HTML is converted to readable text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import css_inline
import msgspec
from jinja2 import (
    BaseLoader,
    DictLoader,
    Environment,
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    UndefinedError,
    meta,
)  # fmt: skip
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from effects_email.errors import EmailInvalid, RenderingFailed, TemplateError
from effects_email.message.address import one_line
from effects_email.templates import markdown
from effects_email.templates.folder import LAYOUT_FILE, PREHEADER, SUBJECT, Version
from effects_email.templates.plain_text import text_of

_AT_RULE = re.compile(r"@[^@{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")
_STYLE, _STYLE_END = re.compile(r"<style[^<>]*>", re.IGNORECASE), re.compile(r"</style", re.IGNORECASE)
_ROOT = re.compile(r":root\s*\{[^{}]*\}")
_END_OF_HEAD = re.compile(r"</head>", re.IGNORECASE)
SUBJECT_CHARS_MAX = 1000
COMPILED_MAX = 500  # versions kept; each has a few kilobytes
BODY_BYTES_MAX = 2 * 1024 * 1024
NESTED_MAX = 500
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9]*)")
_FOREIGN = re.compile(r"<(?:svg|math)", re.IGNORECASE)  # in which every element nests
_NEVER_NESTED = frozenset(  # without content, or ended by the next one
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr", "p", "li",
     "dt", "dd", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup", "option", "optgroup")
)  # fmt: skip
_LAYOUT_VARIABLES = {
    "content",
    "subject",
    "locale",
    "language",
    "preheader",
    "brand",
}  # what a page around Markdown is given
_NAME_OF_UNDEFINED = re.compile(r"'(\w+)' is undefined|has no attribute '(\w+)'")


class Rendered(msgspec.Struct, frozen=True):
    """The rendered texts of a message."""

    subject: str
    text: str
    html: str | None

    def __repr__(self) -> str:
        return "Rendered()"


class Renderer:
    """Renders versions and keeps them compiled. May be used by many threads.

    Jinja2 in its sandbox, which takes nothing from a template that its author should have; a name that is missing is
    an error and never an empty space; what goes into HTML is escaped. The sandbox is a second wall: templates are the
    developer's, and data never becomes one.
    """

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str | None, str], dict[str, Template]] = {}
        self._inliner = css_inline.CSSInliner(
            load_remote_stylesheets=False, keep_style_tags=True, remove_inlined_selectors=True
        )

    def render(self, version: Version, context: Mapping[str, Any]) -> Rendered:
        """
        Raises:
            RenderingFailed: a variable is missing, or a filter or an expression failed; names the file and the line.
            EmailInvalid: the subject is empty or over 1,000 characters, or a body over 2 MiB.
            TemplateError: a file is no Jinja2.
        """
        templates = self._templates(version)
        rendered = {
            name: _render(version, name, partial(templates[name].render, context))
            for name in templates
            if name not in ("body.md", PREHEADER, LAYOUT_FILE)
        }
        subject, text, html = rendered[SUBJECT], rendered.get("body.txt"), rendered.get("body.html")
        if "body.md" in templates:
            values = markdown.Values()
            source = _render(version, "body.md", partial(markdown.source_of, templates["body.md"], context, values))
            content = _render(version, "body.md", partial(markdown.html_of, source, values))
            preheader = (
                _render(version, PREHEADER, partial(templates[PREHEADER].render, context))
                if PREHEADER in templates
                else ""
            )
            html = self._page(version, content, subject, context, preheader)
        return self.take(version, subject, text, html)

    def take_markdown(self, version: Version, subject: str, text: str | None, source: str) -> Rendered:
        """A message of Markdown that is no template.

        Args:
            version: holds the page around it.

        Raises:
            EmailInvalid, RenderingFailed: as `render`; a link that leads where none may is an EmailInvalid.
        """
        _check_size(version, "markdown", source)
        try:
            content = markdown.html_of(source)
        except markdown.LinkRefused as error:
            raise EmailInvalid(f"markdown: {error}") from None
        return self.take(version, subject, text, self._page(version, content, subject, {}))

    def take(self, version: Version, subject: str, text: str | None, html: str | None) -> Rendered:
        """A message of these words: the styles of its HTML inlined, and a text made of that if it has no other.

        Raises:
            EmailInvalid, RenderingFailed: as `render`.
        """
        for name, body in (("txt", text), ("html", html)):
            _check_size(version, f"body.{name}", body or "")
        if html is not None and _depth(html) > NESTED_MAX:
            raise RenderingFailed(f"template {version.name!r}: its HTML is nested more than {NESTED_MAX} deep")
        if html is not None and ("<style" in html or "<STYLE" in html):
            html = self._inlined(version, html)
        return Rendered(_subject(version, subject), text_of(html or "") if text is None else text, html)

    def compile(self, version: Version) -> None:
        """
        Raises:
            TemplateError: a file is no Jinja2.
        """
        self._templates(version)

    def _page(
        self, version: Version, content: str, subject: str, context: Mapping[str, Any], preheader: str = ""
    ) -> str:
        """The whole HTML of a Markdown body."""
        declared = version.declared
        frame = {
            **context, "content": Markup(content), "subject": one_line(subject),  # noqa: S704 - of our reader
            "locale": version.locale, "language": version.locale or declared.language, "brand": declared.brand,
            "preheader": one_line(preheader),
        }  # fmt: skip
        return _render(version, LAYOUT_FILE, partial(self._templates(version)[LAYOUT_FILE].render, frame))

    def _inlined(self, version: Version, html: str) -> str:
        try:
            return _with_roots(self._inliner.inline(html), html)
        except css_inline.InlineError as error:  # its text may quote the page
            raise RenderingFailed(
                f"template {version.name!r}: the styles of its HTML cannot be inlined ({type(error).__name__})"
            ) from None

    def _templates(self, version: Version) -> dict[str, Template]:
        """Its parts, and the page around its Markdown."""
        key = (version.name, version.locale, version.version)
        compiled = self._compiled.get(key)
        if compiled is None:
            names = [*version.parts, *(name for name in (LAYOUT_FILE,) if name in version.sources)]
            compiled = {name: _compile(version, name) for name in names}
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            self._compiled[key] = compiled
        return compiled


def _with_roots(inlined: str, html: str) -> str:
    """With the `:root` rules, among which a mail program looks whether a message knows the dark."""
    roots = "\n".join(root for style in _styles(html) for root in _ROOT.findall(_AT_RULE.sub("", style)))
    return _END_OF_HEAD.sub(lambda end: f"<style>{roots}</style>{end[0]}", inlined, count=1) if roots else inlined


def _styles(html: str) -> Iterator[str]:
    """The style sheets of a page."""
    begin = _STYLE.search(html)
    while begin is not None and (end := _STYLE_END.search(html, begin.end())) is not None:
        yield html[begin.end() : end.start()]
        begin = _STYLE.search(html, end.end())


def _environment(version: Version, name: str) -> ImmutableSandboxedEnvironment:
    loader: BaseLoader = DictLoader(version.sources)
    if name.endswith(".md"):
        return markdown.environment(loader)
    return ImmutableSandboxedEnvironment(
        loader=loader,
        undefined=StrictUndefined,
        autoescape=lambda name: name is not None and name.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        cache_size=-1,
    )


def _compile(version: Version, name: str) -> Template:
    try:
        return _environment(version, name).get_template(_path(version, name))
    except TemplateSyntaxError as error:
        raise TemplateError(f"template {version.name!r}: {error.name}, line {error.lineno}: {error.message}") from None


def _path(version: Version, name: str) -> str:
    return name if name == LAYOUT_FILE else version.path(name)


def _render(version: Version, name: str, render: Callable[[], str]) -> str:
    try:
        rendered = render()
        rendered.encode()
    except UndefinedError as error:
        raise RenderingFailed(f"{_where(version, name, error)}: {_missing(version, error)}") from None
    except SecurityError as error:
        raise RenderingFailed(f"{_where(version, name, error)}: the sandbox forbids this expression") from None
    except UnicodeEncodeError as error:
        raise RenderingFailed(
            f"{_where(version, name, error)}: a value holds half of a surrogate pair, which UTF-8 cannot carry"
        ) from None
    except markdown.LinkRefused as error:
        raise RenderingFailed(f"{_where(version, name, error)}: {error}") from None
    except Exception as error:  # a filter's; its text may quote a value
        raise RenderingFailed(f"{_where(version, name, error)}: {type(error).__name__}") from None
    return rendered


def _depth(html: str) -> int:
    """How deep its elements are nested. The inliner calls itself at each level, and some 10,000 end the process."""
    ignored = frozenset[str]() if _FOREIGN.search(html) else _NEVER_NESTED
    depth = deepest = 0
    for slash, name in _TAG.findall(html):
        if name.lower() not in ignored:
            depth = max(0, depth + (-1 if slash else 1))
            deepest = max(deepest, depth)
    return deepest


def _check_size(version: Version, part: str, text: str) -> None:
    """
    Raises:
        EmailInvalid: too long, or no text that UTF-8 carries.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise EmailInvalid(f"{part} holds half of a surrogate pair, which UTF-8 cannot carry") from None
    if size > BODY_BYTES_MAX:
        raise EmailInvalid(f"template {version.name!r}: {part} has {size:,} bytes and the limit is {BODY_BYTES_MAX:,}")


def _missing(version: Version, error: UndefinedError) -> str:
    """The name that is missing, where it is one that the template itself writes: any other may be a value."""
    name_match = _NAME_OF_UNDEFINED.search(error.message or "")
    name = (name_match[1] or name_match[2]) if name_match else None
    if name is not None and any(re.search(rf"\b{name}\b", source) for source in version.sources.values()):
        return f"{name!r} is missing in the context"
    return "something is missing in the context"


def _where(version: Version, name: str, error: BaseException) -> str:
    """The innermost place in a template of ours that the error passed."""
    place = _path(version, name)
    trace: TracebackType | None = error.__traceback__
    line = 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>" or trace.tb_frame.f_globals.get("__jinja_template__"):
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"template {version.name!r}: {place}" + (f", line {line}" if line else "")


def _subject(version: Version, rendered: str) -> str:
    subject = one_line(rendered)
    if not subject or len(subject) > SUBJECT_CHARS_MAX:
        raise EmailInvalid(
            f"template {version.name!r}: the subject has {len(subject)} characters; it must have 1 to "
            f"{SUBJECT_CHARS_MAX}"
        )
    return subject


def variables_of(version: Version) -> set[str]:
    """What a template takes from its context, by the names at the top."""
    environment = Environment(autoescape=True)  # reads, never renders
    names: set[str] = set()
    for path, source in version.sources.items():
        if not path.endswith(".toml"):
            own = _LAYOUT_VARIABLES if path == LAYOUT_FILE else set()
            names |= meta.find_undeclared_variables(environment.parse(source)) - own
    return names
