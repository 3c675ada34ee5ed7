"""Long texts on which a regular expression may take the square of their length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

# Python's own parser has no public name.
from re import _constants as kinds  # type: ignore[attr-defined]  # isort: skip
from re import _parser as parser  # type: ignore[attr-defined]  # isort: skip

OFTEN_HOSTILE = ' \n@.,<"\\a1'
NEVER_MATCHED = "\0"
_OF_CATEGORY = {
    kinds.CATEGORY_DIGIT: "1", kinds.CATEGORY_SPACE: " ", kinds.CATEGORY_WORD: "a", kinds.CATEGORY_NOT_DIGIT: "a",
    kinds.CATEGORY_NOT_SPACE: "a", kinds.CATEGORY_NOT_WORD: "!",
}  # fmt: skip


class Attack(NamedTuple):
    """The beginning of what a pattern matches, then one of its letters again and again, then what it cannot match."""

    beginning: str
    letter: str

    def text(self, length: int) -> str:
        return self.beginning + self.letter * length + NEVER_MATCHED


def attacks(pattern: re.Pattern[Any]) -> list[Attack]:
    nodes = parser.parse(pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1"))
    example = "".join(_example(nodes))[:40]
    letters = list(dict.fromkeys([*example, *_letters(nodes), *OFTEN_HOSTILE]))[:16]
    beginnings = [example[:end] for end in range(len(example) + 1)]
    return [Attack(beginning, letter) for beginning in dict.fromkeys([*beginnings, *letters]) for letter in letters]


def _example(nodes: Any) -> Iterator[str]:
    """A short text that the pattern matches, roughly: what looks around is left out."""
    for kind, value in nodes:
        if kind is kinds.LITERAL:
            yield chr(value)
        elif kind is kinds.IN:
            yield next(_of_class(value), "")
        elif kind in (kinds.ANY, kinds.NOT_LITERAL):
            yield "x"
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
            yield from list(_example(value[2])) * max(1, min(value[0], 3))
        elif kind is kinds.SUBPATTERN:
            yield from _example(value[3])
        elif kind is kinds.BRANCH:
            yield from _example(value[1][0])


def _letters(nodes: Any) -> Iterator[str]:
    """One of each literal and class that stands anywhere in the pattern."""
    for kind, value in nodes:
        if kind is kinds.LITERAL:
            yield chr(value)
        elif kind is kinds.IN:
            yield from _of_class(value)
        elif kind in (kinds.MAX_REPEAT, kinds.MIN_REPEAT, kinds.POSSESSIVE_REPEAT):
            yield from _letters(value[2])
        elif kind is kinds.SUBPATTERN:
            yield from _letters(value[3])
        elif kind is kinds.BRANCH:
            for branch in value[1]:
                yield from _letters(branch)


def _of_class(items: Any) -> Iterator[str]:
    """Some of a class, `[a-z0-9.]`; of one that is negated, letters that it has not left out."""
    if items[0][0] is kinds.NEGATE:
        left_out = "".join(_of_class(items[1:])) if items[1:] else ""
        yield from (letter for letter in "xX1-" if letter not in left_out)
        return
    for kind, value in items:
        if kind is kinds.LITERAL:
            yield chr(value)
        elif kind is kinds.RANGE:
            yield chr(value[0])
        elif kind is kinds.CATEGORY:
            yield _OF_CATEGORY.get(value, "a")
