"""Rendering: a template version and a context → subject, HTML and text. Compiled once a version.

Where a template has no text, its HTML is converted to readable text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html.parser import HTMLParser
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

_BREAKS = {"br": 1, "p": 2, "div": 1, "h1": 2, "h2": 2, "h3": 2, "h4": 2, "h5": 2, "h6": 2, "ul": 1, "ol": 1, "li": 1,
           "tr": 1, "table": 1, "blockquote": 2, "hr": 2, "section": 1, "article": 1, "header": 1, "footer": 1,
           "pre": 2}  # fmt: skip
_FRAMES = {"blockquote", "table"}  # whose lines are laid out when they end
_EMPTY = {"br", "hr", "img", "input", "meta", "link", "col", "wbr"}
_SILENT = {"head", "script", "style", "title", "template"}
_SPACE = re.compile(r"[ \t\r\n\f\v]+")  # not the no-break space
_NO_SECTION = re.compile(r"<!\[(?![A-Za-z])")  # at which the parser gives up
_HIDDEN = re.compile(r"(?:^|;)\s*display\s*:\s*none\b", re.IGNORECASE)
_AT_RULE = re.compile(r"@[^@{};]*(?:;|\{(?:[^{}]*\{[^{}]*\})*[^{}]*\})")
_STYLE, _STYLE_END = re.compile(r"<style[^<>]*>", re.IGNORECASE), re.compile(r"</style", re.IGNORECASE)
_ROOT = re.compile(r":root\s*\{[^{}]*\}")
_END_OF_HEAD = re.compile(r"</head>", re.IGNORECASE)
_ROW_CHARS_MAX = 78  # of a table's line; a wider table is written cell by cell
_GAPS = re.compile(r"\n{3,}")
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


class _Frame:
    """A quotation or a table that has begun; `start` and `cell` are places in what was written."""

    def __init__(self, tag: str, start: int) -> None:
        self.tag, self.start, self.cell = tag, start, start
        self.rows: list[list[str]] = []
        self.has_header = False

    def is_data(self) -> bool:
        """Whether it shows a table; others only place things on the page."""
        return self.has_header and not any("\n" in cell for row in self.rows for cell in row)


def _columns(rows: list[list[str]]) -> str:
    """The rows with their cells under each other."""
    widths: dict[int, int] = {}
    for row in rows:
        for place, cell in enumerate(row):
            widths[place] = max(widths.get(place, 0), len(cell))
    if sum(widths.values()) + 2 * (len(widths) - 1) > _ROW_CHARS_MAX:
        return _records(rows[0], rows[1:])
    lines = ["  ".join(cell.ljust(widths[place]) for place, cell in enumerate(row)).rstrip() for row in rows]
    if lines and len(lines) > 1:
        lines.insert(1, "  ".join("-" * width for width in widths.values()))
    return "\n".join(lines)


def _records(heads: list[str], rows: list[list[str]]) -> str:
    """The rows of a wide table, each as lines of its own: `Item: Teapot`, whose length is that of its cells."""
    named = [[(heads[place] if place < len(heads) else "", cell) for place, cell in enumerate(row)] for row in rows]
    records = ("\n".join(f"{head}: {cell}" if head else cell for head, cell in cells if cell) for cells in named)
    return "\n\n".join(filter(None, records)) or "  ".join(heads)


class _Reader(HTMLParser):
    """Collects words and line breaks. A link is its text and, in brackets, where it goes.

    Args:
        skips_hidden: leave out elements that are styled `display: none`, such as a preheader.
    """

    def __init__(self, *, skips_hidden: bool) -> None:
        super().__init__(convert_charrefs=True)
        self._skips_hidden = skips_hidden
        self._hidden = ""  # the name of the hidden element that has begun
        self.hidden_depth = 0  # elements of its name that are open within it, itself included
        self._out: list[str] = []
        self._silent = 0
        self._links: list[tuple[str, int]] = []
        self._lists: list[int] = []  # 0 for bullets, else the number of the next item
        self._owed = 0  # line breaks, before the next word
        self._space = False  # owed before the next word
        self._verbatim = 0  # within so many <pre>
        self._frames: list[_Frame] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if not self._is_hidden(tag, attributes):
            self._begin(tag, attributes)

    def _begin(self, tag: str, attributes: Mapping[str, str | None]) -> None:
        if tag in _SILENT or tag == "body":  # which may begin where the end of head was left out, as HTML allows
            self._silent = 0 if tag == "body" else self._silent + 1
        elif tag == "a":
            self._links.append((attributes.get("href") or "", len(self._out)))
        elif tag == "img" and attributes.get("alt"):
            self.handle_data(attributes["alt"] or "")
        elif tag in ("ul", "ol"):
            self._lists.append(1 if tag == "ol" else 0)
        elif tag in ("td", "th"):
            self._space = True
            self._begin_cell(header=tag == "th")
        elif tag == "pre":
            self._verbatim += 1
        if tag == "br":
            self._owed += 1  # each counts
        elif tag in _BREAKS:
            self._owed = max(self._owed, _BREAKS[tag])
        if tag in _FRAMES:
            self._begin_frame(tag)
        elif tag == "tr" and self._frames:
            self._frames[-1].rows.append([])
        elif tag == "li":
            self._bullet()
        elif tag == "hr":
            self._write("-" * 20)
            self._owed = max(self._owed, 2)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in ("br", "hr", "img"):
            self.handle_endtag(tag)

    def _is_hidden(self, tag: str, attributes: Mapping[str, str | None]) -> bool:
        """Whether it belongs to a hidden element, or is one that can hold words."""
        if self.hidden_depth:
            self.hidden_depth += tag == self._hidden
        elif self._skips_hidden and tag not in _EMPTY and _HIDDEN.search(attributes.get("style") or ""):
            self._hidden, self.hidden_depth = tag, 1
        return self.hidden_depth > 0

    def handle_endtag(self, tag: str) -> None:
        if self.hidden_depth:
            self.hidden_depth -= tag == self._hidden
        else:
            self._end(tag)

    def _end(self, tag: str) -> None:
        if tag in _SILENT:
            self._silent = max(0, self._silent - 1)
        elif tag == "a" and self._links:
            self._close_link(*self._links.pop())
        elif tag in ("ul", "ol") and self._lists:
            self._lists.pop()
        elif tag == "pre":
            self._verbatim = max(0, self._verbatim - 1)
        elif tag in _FRAMES and self._frames and self._frames[-1].tag == tag:
            self._end_frame(self._frames.pop())
        elif tag in ("td", "th"):
            self._end_cell()
        if tag in _BREAKS and tag != "br":
            self._owed = max(self._owed, _BREAKS[tag])

    def handle_data(self, data: str) -> None:
        if self._silent or self.hidden_depth or not data:
            return
        if self._verbatim:
            self._write(data)
            return
        words = _SPACE.sub(" ", data)
        if words[0] == " ":
            self._space = True
        if words.strip(" "):
            self._write(words.strip(" "))
            self._space = words[-1] == " "

    def _begin_frame(self, tag: str) -> None:
        if self._out:
            self._out.append("\n" * self._owed)
        self._owed, self._space = 0, False
        self._frames.append(_Frame(tag, len(self._out)))

    def _end_frame(self, frame: _Frame) -> None:
        """Lay out its lines: quoted, or in columns. What was written before it stays."""
        words = "".join(self._out[frame.start :]).strip("\n")
        if frame.tag == "blockquote" and words:
            words = "\n".join(f"> {line}".rstrip() for line in words.split("\n"))
        elif frame.is_data():
            words = _columns(frame.rows)
            self._owed = 2
        if words:
            self._out[frame.start :] = [words]

    def _begin_cell(self, *, header: bool) -> None:
        if self._frames and self._frames[-1].rows:
            frame = self._frames[-1]
            frame.has_header |= header
            frame.cell = len(self._out)

    def _end_cell(self) -> None:
        if self._frames and self._frames[-1].rows:
            frame = self._frames[-1]
            frame.rows[-1].append("".join(self._out[frame.cell :]).strip())

    def _bullet(self) -> None:
        number = self._lists[-1] if self._lists else 0
        self._write(f"{'  ' * max(0, len(self._lists) - 1)}{f'{number}.' if number else '-'}")
        self._space = True
        if number:
            self._lists[-1] += 1

    def _close_link(self, target: str, start: int) -> None:
        shown = "".join(self._out[start:]).strip()
        if target.startswith(("http://", "https://")) and shown.rstrip("/") != target.rstrip("/"):
            self._space = True
            self._write(f"({target})" if shown else target)
        elif target.startswith("mailto:") and shown != target[7:]:
            self._space = True
            self._write(f"({target[7:]})")

    def _write(self, words: str) -> None:
        if self._out:
            self._out.append("\n" * self._owed if self._owed else " " if self._space else "")
        self._out.append(words)
        self._owed, self._space = 0, False

    def text(self) -> str:
        return "".join(self._out)


def _with_whole_tags(html: str) -> str:
    """What begins a tag, a comment or a section and does not end is text: the parser would look for the end of each."""
    for end, beginning in (("-->", "<!--"), ("]>", "<!["), (">", "<")):
        head, last, tail = html.rpartition(end)
        html = f"{head}{last}{tail.replace(beginning, f'&lt;{beginning[1:]}')}"
    return _NO_SECTION.sub("&lt;![", html)


def text_of(html: str) -> str:
    """The words of an HTML page, with its paragraphs, lists, tables, quotations and links.

    Ends with a line break if it has any words.
    """
    whole = _with_whole_tags(html)
    reader = _read(whole, skips_hidden=True)
    if reader.hidden_depth:  # its end is missing, and all that follows would be
        reader = _read(whole, skips_hidden=False)
    lines = "\n".join(line.rstrip() for line in reader.text().split("\n"))
    text = _GAPS.sub("\n\n", lines).strip("\n")
    return f"{text}\n" if text else ""


def _read(html: str, *, skips_hidden: bool) -> _Reader:
    reader = _Reader(skips_hidden=skips_hidden)
    reader.feed(html)
    reader.close()
    return reader


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
