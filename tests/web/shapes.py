"""What a page is made of, whatever its texts say."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser


class Shape(HTMLParser):
    """The elements of a page with the names of their attributes, and every address in it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag, tuple(sorted(name for name, _ in attrs))] += 1
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src", "action")]
