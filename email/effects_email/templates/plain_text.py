"""The words of an HTML page, for a message that has no text of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html.parser import HTMLParser

_BREAKS = {"br": 1, "p": 2, "div": 1, "h1": 2, "h2": 2, "h3": 2, "h4": 2, "h5": 2, "h6": 2, "ul": 1, "ol": 1, "li": 1,
           "tr": 1, "table": 1, "blockquote": 2, "hr": 2, "section": 1, "article": 1, "header": 1, "footer": 1,
           "pre": 2}  # fmt: skip
_FRAMES = {"blockquote", "table"}  # whose lines are laid out when they end
_EMPTY = {"br", "hr", "img", "input", "meta", "link", "col", "wbr"}
_SILENT = {"head", "script", "style", "title", "template"}
_SPACE = re.compile(r"[ \t\r\n\f\v]+")  # not the no-break space
_NO_SECTION = re.compile(r"<!\[(?![A-Za-z])")  # at which the parser gives up
_HIDDEN = re.compile(r"(?:^|;)\s*display\s*:\s*none\s*(?:[;!]|$)", re.IGNORECASE)
_ROW_CHARS_MAX = 78  # of a table's line; a wider table is written cell by cell
_GAPS = re.compile(r"\n{3,}")


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
