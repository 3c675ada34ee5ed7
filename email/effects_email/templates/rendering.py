"""Rendering: a template version and a context → subject, HTML and text. Compiled once a version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import css_inline
import msgspec
from jinja2 import BaseLoader, DictLoader, StrictUndefined, Template, TemplateSyntaxError, UndefinedError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from effects_email.errors import EmailInvalid, RenderingFailed, TemplateError
from effects_email.message.address import one_line
from effects_email.templates.folder import Part, Version
from effects_email.templates.text import text_of

SUBJECT_CHARS_MAX = 1000
COMPILED_MAX = 500  # versions kept; each has a few kilobytes
BODY_BYTES_MAX = 2 * 1024 * 1024
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
        self._compiled: dict[tuple[str, str | None, str], dict[Part, Template]] = {}
        self._inliner = css_inline.CSSInliner(load_remote_stylesheets=False, keep_at_rules=True)

    def render(self, version: Version, context: Mapping[str, Any]) -> Rendered:
        """
        Raises:
            RenderingFailed: a variable is missing, or a filter or an expression failed; names the file and the line.
            EmailInvalid: the subject is empty or over 1,000 characters, or a body over 2 MiB.
            TemplateError: a file is no Jinja2.
        """
        templates = self._templates(version)
        rendered = {part: _render(version, part, template, context) for part, template in templates.items()}
        return self.take(version, rendered["subject.txt"], rendered.get("body.txt"), rendered.get("body.html"))

    def take(self, version: Version, subject: str, text: str | None, html: str | None) -> Rendered:
        """A message of these words: the styles of its HTML inlined, and a text made of that if it has no other.

        Raises:
            EmailInvalid, RenderingFailed: as `render`.
        """
        for name, body in (("txt", text), ("html", html)):
            _check_size(version, f"body.{name}", body or "")
        if html is not None and ("<style" in html or "<STYLE" in html):
            html = self._inlined(version, html)
        return Rendered(_subject(version, subject), text_of(html or "") if text is None else text, html)

    def compile(self, version: Version) -> None:
        """
        Raises:
            TemplateError: a file is no Jinja2.
        """
        self._templates(version)

    def _inlined(self, version: Version, html: str) -> str:
        try:
            return self._inliner.inline(html)
        except css_inline.InlineError as error:  # its text may quote the page
            raise RenderingFailed(
                f"template {version.name!r}: the styles of {version.path('body.html')} cannot be inlined "
                f"({type(error).__name__})"
            ) from None

    def _templates(self, version: Version) -> dict[Part, Template]:
        key = (version.name, version.locale, version.version)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = {part: _compile(version, part, _environment(version)) for part in version.parts}
            if len(self._compiled) >= COMPILED_MAX:
                self._compiled.clear()
            self._compiled[key] = compiled
        return compiled


def _environment(version: Version) -> ImmutableSandboxedEnvironment:
    loader: BaseLoader = DictLoader(version.sources)
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


def _compile(version: Version, part: Part, environment: ImmutableSandboxedEnvironment) -> Template:
    try:
        return environment.get_template(version.path(part))
    except TemplateSyntaxError as error:
        raise TemplateError(f"template {version.name!r}: {error.name}, line {error.lineno}: {error.message}") from None


def _render(version: Version, part: Part, template: Template, context: Mapping[str, Any]) -> str:
    try:
        rendered = template.render(context)
        rendered.encode()
    except UndefinedError as error:
        raise RenderingFailed(f"{_where(version, part, error)}: {_missing(version, error)}") from None
    except SecurityError as error:
        raise RenderingFailed(f"{_where(version, part, error)}: the sandbox forbids this expression") from None
    except UnicodeEncodeError as error:
        raise RenderingFailed(
            f"{_where(version, part, error)}: a value holds half of a surrogate pair, which UTF-8 cannot carry"
        ) from None
    except Exception as error:  # a filter's; its text may quote a value
        raise RenderingFailed(f"{_where(version, part, error)}: {type(error).__name__}") from None
    return rendered


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


def _where(version: Version, part: Part, error: BaseException) -> str:
    """The innermost place in a template of ours that the error passed."""
    place = version.path(part)
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
