"""Markdown bodies: `body.md`, and `send_email(markdown=…)`. CommonMark with tables and ~~strikethrough~~, without HTML.

A value of the context is text and never Markdown. What a template puts out, `{{ name }}`, is a token of private-use
characters while the Markdown is read, and becomes the value afterwards, escaped: no value can close a tag, begin a link
or make a word bold. In a link's target a value is percent-encoded, unless it is the target's beginning; where each
link leads is looked at when its values are in it.

`[Pay now](https://…){.button}` is a link of the class `button`, which our page shows as one. Cells of a column that is
aligned to the right, such as prices, are not broken into lines.
"""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import jinja2
from jinja2.runtime import Context, new_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markdown_it import MarkdownIt
from markdown_it.common.normalize_url import normalizeLink
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup

LINK_SCHEMES = ("https", "http", "mailto", "tel")
IMAGE_SCHEMES = ("https", "http", "cid")
NESTED_MAX = 20
_BEGIN, _END = "\ue000", "\ue001"
_HEX = str.maketrans("0123456789abcdef", "".join(chr(0xE010 + digit) for digit in range(16)))
_TAG = re.compile(r"(<[^<>]*>)")  # the reader writes no other < or >
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_BUTTON = "{.button}"
_RIGHT = "text-align:right"  # as the reader styles a cell
_VALUES = "effects values"  # among the globals of a rendering; no variable of a template can be called so


class LinkRefused(ValueError):
    """A link or an image leads where none of a mail may; the text says what is wrong and quotes no value."""


class Source(str):
    """Text that is Markdown itself: what `|safe` gives."""

    __slots__ = ()


class Values:
    """The values that one rendering puts out, each under a token."""

    def __init__(self) -> None:
        self._mark = _BEGIN + secrets.token_hex(8).translate(
            _HEX
        )  # guessed by no value: text of `|safe` may be a user's
        self._values: list[str] = []
        self._targets: dict[int, str] = {}  # of samples, which stand for values
        self._token = re.compile(f"{self._mark}-([\ue010-\ue01f]+){_END}")

    def hold(self, value: object) -> str:
        """The token of a value."""
        text = value.unescape() if isinstance(value, Markup) else str(value)
        if target := getattr(type(value), "__target__", None):
            self._targets[len(self._values)] = target
        self._values.append(self.fill(text, lambda held: held))  # of what was captured with tokens in it
        return f"{self._mark}-{f'{len(self._values) - 1:x}'.translate(_HEX)}{_END}"

    def fill(self, text: str, form: Callable[[str], str]) -> str:
        """The text with its values, each in the form that is right at its place.

        Raises:
            LinkRefused: a filter has cut a value.
        """
        if self._mark not in text:
            return text
        filled = self._token.sub(lambda match: form(self._values[_number(match[1])]), text)
        if self._mark in filled:
            raise LinkRefused("a filter was applied to text that holds values; apply it to the values")
        return filled

    def split(self, text: str) -> list[str | int]:
        """Its texts and, in between, the numbers of the values."""
        return [_number(piece) if place % 2 else piece for place, piece in enumerate(self._token.split(text))]

    def __getitem__(self, number: int) -> str:
        return self._values[number]

    def target(self, number: int) -> str:
        """A value as the beginning of a link's target."""
        return self._targets.get(number, self._values[number].strip())


def _number(digits: str) -> int:
    return int("".join(f"{ord(digit) - 0xE010:x}" for digit in digits), 16)


# -- the template ----------------------------------------------------------------------------------------------------


def environment(loader: jinja2.BaseLoader) -> ImmutableSandboxedEnvironment:
    """For files of Markdown: every output is a value, but what was marked by `|safe`."""
    markdown = ImmutableSandboxedEnvironment(
        loader=loader, undefined=jinja2.StrictUndefined, autoescape=False, finalize=_finalize, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True, auto_reload=False, cache_size=-1,
    )  # fmt: skip
    markdown.filters["safe"] = Source
    return markdown


@jinja2.pass_context
def _finalize(context: Context, value: object) -> str:
    if isinstance(value, Source):
        return str(value)
    values: Values = context.parent[_VALUES]
    return values.hold(value)


def source_of(template: jinja2.Template, context: Mapping[str, Any], values: Values) -> str:
    """The Markdown of a template of `environment`, with tokens for the values that it puts out."""
    shared = {**template.globals, _VALUES: values}  # as globals, which macros of another file have too
    frame = new_context(template.environment, template.name, template.blocks, dict(context), False, shared)
    try:
        return "".join(template.root_render_func(frame))
    except Exception:
        template.environment.handle_exception()


def escape_markdown(text: str) -> str:
    """Text as Markdown that shows it as it is: for a user's words within `send_email(markdown=…)`.

    Args:
        text: any text; runs of white space and line breaks become one space. Not for code spans, which know no escapes.
    """
    return _PUNCTUATION.sub(r"\\\1", " ".join(text.split()))


# -- its HTML --------------------------------------------------------------------------------------------------------


def html_of(source: str, values: Values | None = None) -> str:
    """The HTML of Markdown, without a page around it.

    Args:
        values: those whose tokens it holds.

    Raises:
        LinkRefused: a link or an image leads elsewhere than LINK_SCHEMES and IMAGE_SCHEMES allow.
    """
    values = values or Values()
    tokens = _reader.parse(source)
    for token in _with_targets(tokens):
        name = "href" if token.type == "link_open" else "src"
        token.attrSet(name, _target(str(token.attrGet(name) or ""), values, image=token.type == "image"))
    for token in tokens:
        if token.attrGet("style") == _RIGHT:
            token.attrSet("style", f"{_RIGHT};white-space:nowrap")
    rendered = _reader.renderer.render(tokens, _reader.options, {})
    pieces = _TAG.split(rendered)
    return "".join(values.fill(piece, _in_tag if place % 2 else _in_text) for place, piece in enumerate(pieces))


def _new_reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False, "maxNesting": NESTED_MAX}).enable(["table", "strikethrough"])
    # Looked at in `_target`, with the values in them: here every target is kept as it is written.
    reader.normalizeLink = lambda url: url  # type: ignore[method-assign]
    reader.validateLink = lambda url: True  # type: ignore[method-assign]
    reader.inline.ruler.after("link", "button", _read_button)
    return reader


def _read_button(state: StateInline, silent: bool) -> bool:
    """`{.button}` right behind a link gives that its class."""
    is_behind = not state.pending and bool(state.tokens) and state.tokens[-1].type == "link_close"
    if silent or not is_behind or not state.src.startswith(_BUTTON, state.pos):
        return False
    level = state.tokens[-1].level
    link = next(token for token in reversed(state.tokens) if token.type == "link_open" and token.level == level)
    link.attrSet("class", "button")
    state.pos += len(_BUTTON)
    return True


_reader = _new_reader()


def _with_targets(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        if token.type in ("link_open", "image"):
            yield token
        yield from _with_targets(token.children or ())


def _in_text(value: str) -> str:
    return html.escape(value).replace("\r\n", "\n").replace("\n", "<br>")


def _in_tag(value: str) -> str:
    return html.escape(" ".join(value.split()))


def _target(written: str, values: Values, *, image: bool) -> str:
    """
    Raises:
        LinkRefused: see `html_of`.
    """
    what, schemes = ("an image", IMAGE_SCHEMES) if image else ("a link", LINK_SCHEMES)
    target = ""
    for place, piece in enumerate(values.split(written)):
        if isinstance(piece, str):
            if place and piece[:1] in ("", "/", "?", "#") and _continues_host(values, written, place):
                raise LinkRefused(f"{what} has a value at the end of its host, which a value may not choose")
            target += piece
        else:
            target += values.target(piece) if place == 1 and not target else quote(values[piece], safe="")
    scheme = _SCHEME.match(target)
    if scheme is None or scheme[0][:-1].lower() not in schemes:
        allowed = ", ".join(f"{name}:" for name in schemes)
        raise LinkRefused(f"{what} leads to none of {allowed} (a mail has no address that others are relative to)")
    if scheme[0].lower() in ("http:", "https:") and not _has_host(target):
        raise LinkRefused(f"{what} names no host")
    return normalizeLink(target)


def _continues_host(values: Values, written: str, place: int) -> bool:
    """Whether the value before this place ends a host that the template begins: `https://shop.example{{ x }}`."""
    before = "".join(piece if isinstance(piece, str) else "\0" for piece in values.split(written)[:place])
    scheme = _SCHEME.match(before)
    if scheme is None or not before[scheme.end() :].startswith("//"):
        return False
    host = before[scheme.end() + 2 :]
    return not any(letter in host for letter in "/?#") and host.rstrip("\0")[-1:] not in ("", ":")


def _has_host(target: str) -> bool:
    try:
        return bool(urlsplit(target).hostname)
    except ValueError:
        return False
