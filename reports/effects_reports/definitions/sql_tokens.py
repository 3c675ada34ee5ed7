r"""SQL text as pieces: its code, what stands in quotes, and what the server takes as it is; and the placeholders in it.

The rules are those of PostgreSQL's lexer (its manual, section 4.1), which DuckDB shares: `''` and `""` inside quotes,
backslashes in `E'…'`, `$tag$ … $tag$`, comments within comments, a text continued on the next line. SQLite's names in
brackets and backticks are quoted too, where they hold nothing that begins a text or a comment elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Literal, NamedTuple, TypeAlias

from effects_reports.errors import DefinitionInvalid

Sign: TypeAlias = Literal[":", "$"]  # of a placeholder: SQLAlchemy's, and DuckDB's

_WORD = "A-Za-z0-9_$\\x80-\\U0010ffff"  # of a name of PostgreSQL's
_GAP = r"[ \t\f\v]*[\r\n](?:[ \t\f\v\r\n]|--[^\r\n]*[\r\n])*"  # between two texts that are one
_ESCAPED = r"(?:[^'\\]|\\(?:.|\Z)|'')*+"
_OPENING = re.compile(
    rf"""
    (?P<quoted>
        (?<![{_WORD}])[eE]'{_ESCAPED}(?:'{_GAP}'{_ESCAPED})*+(?:'|\Z)
      | '(?:[^']|'')*+(?:'|\Z)
      | "(?:[^"]|"")*+(?:"|\Z)
      | `[\w\ :%.]*`
      | (?<![{_WORD})\]"'])\[[^\W\d][\w\ :%.]*\]
    )
    | (?P<line>--[^\r\n]*)
    | (?P<comment>/\*)
    | (?<![{_WORD}])(?P<dollar>\$(?:[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_\x80-\U0010ffff]*)?\$)
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")


class _Piece(NamedTuple):
    """A piece of a text. `verbatim`: a comment or a dollar-quoted text. `start`: where it begins."""

    kind: Literal["code", "quoted", "verbatim"]
    text: str
    start: int


def split_sql(sql: str) -> Iterator[_Piece]:
    """The pieces, which joined are the text."""
    place = 0
    while (match := _OPENING.search(sql, place)) is not None:
        if match.start() > place:
            yield _Piece("code", sql[place : match.start()], place)
        place = _end(sql, match)
        yield _Piece("quoted" if match.lastgroup == "quoted" else "verbatim", sql[match.start() : place], match.start())
    if place < len(sql):
        yield _Piece("code", sql[place:], place)


def _end(sql: str, opening: re.Match[str]) -> int:
    if opening.lastgroup == "dollar":
        closing = sql.find(opening.group(), opening.end())
        return len(sql) if closing < 0 else closing + len(opening.group())
    if opening.lastgroup != "comment":
        return opening.end()
    depth = 0
    for edge in _COMMENT_EDGE.finditer(sql, opening.start()):
        depth += 1 if edge.group() == "/*" else -1
        if not depth:
            return edge.end()
    return len(sql)


class Named(NamedTuple):
    """A name behind the sign of a placeholder, with its line."""

    name: str
    line: int


_NAMED: dict[Sign, re.Pattern[str]] = {
    ":": re.compile(r"(?<![:\w$\\]):([^\W\d]\w*)"),
    "$": re.compile(r"(?<![\w$])\$([^\W\d]\w*)"),
}
_COLONS = re.compile(rf"{_NAMED[':'].pattern}|\\?:")  # what `sa.text` would look at
_MEANT = re.compile(r"\\:([^\W\d]\w*)")
_BOUND_BY_SQLALCHEMY = re.compile(r"(?<![:\w$\\]):([\w$]+)(?![:\w$])")


def names_in(sql: str, sign: Sign) -> list[Named]:
    """The placeholders: what is named in the code."""
    return list(_named(sql, _NAMED[sign], ("code",)))


def check_quoted(who: str, sql: str, declared: Collection[str], sign: Sign) -> None:
    """Refuse a text with a declared name in quotes, where no value can be bound.

    Raises:
        DefinitionInvalid: names it and its line.
    """
    for name, line in _named(sql, _NAMED[sign], ("quoted",)):
        if name in declared:
            meant = f"; a colon that is meant is written \\:{name}" if sign == ":" else ""
            raise DefinitionInvalid(
                f"{who}: line {line} of its SQL has {sign}{name} in quotes, where no value can be bound: join it, as "
                f"in '%' || {sign}{name} || '%'{meant}"
            )


def check_clause(who: str, sql: str) -> None:
    """Refuse the text of a `sa.text()` that names a value in quotes or in a comment.

    Raises:
        DefinitionInvalid: names it and its line.
    """
    for name, line in _named(sql, _BOUND_BY_SQLALCHEMY, ("quoted", "verbatim")):
        raise DefinitionInvalid(
            f"{who}: line {line} of a text() in its select() has :{name} in quotes or a comment, where no value can be "
            f"bound: join it, as in '%' || :{name} || '%'; a colon that is meant is written \\:{name}"
        )


def _named(sql: str, pattern: re.Pattern[str], kinds: Collection[str]) -> Iterator[Named]:
    for piece in split_sql(sql):
        if piece.kind in kinds:
            for match in pattern.finditer(piece.text):
                yield Named(match[1], sql.count("\n", 0, piece.start + match.start()) + 1)


def as_clause(sql: str, declared: Collection[str]) -> str:
    r"""The text as `sa.text` takes it: every colon escaped but those of placeholders.

    `\:` is a colon in code, and in quotes before a declared name.
    """

    def escaped(piece: _Piece) -> str:
        if piece.kind == "code":
            return _COLONS.sub(lambda match: f" :{match[1]} " if match[1] else r"\:", piece.text)
        text = piece.text
        if piece.kind == "quoted":
            text = _MEANT.sub(lambda match: match[0][1:] if match[1] in declared else match[0], text)
        return text.replace(":", r"\:")

    return "".join(map(escaped, split_sql(sql)))
