"""Parameters of lists, each with its bound."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from effects.kit.arguments import printable
from effects.web.exchange import BadRequestError
from effects.web.rendering import HIDDEN_NAME, Exact
from effects.web.visit import Visit

Row = TypeVar("Row")
Choice = TypeVar("Choice", bound=str)
PAGE_ROWS = 50
TEXT_CHARS_MAX = 255
_ID = re.compile("[1-9][0-9]{0,17}")
_WORD = re.compile(r"\w+")
_FIELDS = {"type": "job_type", "code": "error_code", "group": "group_key"}  # option → field
_text = printable(TEXT_CHARS_MAX)


def before_of(visit: Visit) -> int | None:
    """The id before which the page begins; None: the first page.

    Raises:
        BadRequestError: it is no id.
    """
    return id_of(visit, "before")


def id_of(visit: Visit, name: str) -> int | None:
    """A field of the query that is the id of a row; None where it is not set.

    Raises:
        BadRequestError: it is no id.
    """
    text = visit.query.get(name)
    if text is None:
        return None
    if not _ID.fullmatch(text):
        raise BadRequestError(f"{name} is not the id of a row")
    return int(text)


def page_of(rows: Sequence[Row], key: str = "id") -> tuple[Sequence[Row], Any]:
    """The rows of a page, and the `before` of the next; None where it is the last.

    Args:
        rows: read with a limit of `PAGE_ROWS + 1`.
        key: the field of a row that `before` is compared with.
    """
    shown = rows[:PAGE_ROWS]
    return shown, getattr(shown[-1], key) if len(rows) > PAGE_ROWS else None


def choice_of(fields: Mapping[str, str], name: str, choices: Iterable[Choice]) -> Choice | None:
    """A field that is one of these words; None where it is not set.

    Raises:
        BadRequestError: it is another word: a filter that was left aside would show, and act on, more than was meant.
    """
    text, known_words = fields.get(name), list(choices)
    if text is not None and text not in known_words:
        raise BadRequestError(f"{name} must be one of: {', '.join(known_words)}")
    return next((choice for choice in known_words if choice == text), None)


def filters_of(fields: Mapping[str, str], names: Sequence[str]) -> dict[str, Any]:
    """The filters of these names, of a query or a form; None where one is not set.

    Raises:
        BadRequestError: as `text_of`.
    """
    return {name: text_of(fields, name) for name in names}


def fields_of(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The filters by the names of the fields of a list's struct: addresses have the names of the options."""
    return {_FIELDS.get(name, name): value for name, value in filters.items()}


def chosen_of(filters: Mapping[str, str | None]) -> dict[str, Exact]:
    """Those of the filters that are set, for the links and forms of their page: as the person has sent them."""
    return {name: Exact(value) for name, value in filters.items() if value}


def text_of(fields: Mapping[str, str], name: str) -> str | None:
    """A filter that is a name.

    Raises:
        BadRequestError: it has more than 255 characters, or control characters; or as `sent_of`.
    """
    text = sent_of(fields, name)
    if text is not None and _text(text) is not None:
        raise BadRequestError(f"{name} {_text(text)}")
    return text


def word_of(fields: Mapping[str, str]) -> str | None:
    """The filter `word`: a whole word of an error's text.

    Raises:
        BadRequestError: it has another character, which the databases would read as a pattern.
    """
    word = text_of(fields, "word")
    if word is not None and not _WORD.fullmatch(word):
        raise BadRequestError("word must be one word of letters, digits and underscores")
    return word


def sent_of(fields: Mapping[str, str], name: str) -> str | None:
    """A field as it was sent; None where it is not set.

    Raises:
        BadRequestError: a part of it is what a page shows in place of a name in an address: no row has that.
    """
    text = fields.get(name)
    if text is not None and HIDDEN_NAME in text:
        raise BadRequestError(
            f"a part of {name} is hidden, as it may be a person's address: open the link as someone with the "
            "capability personal, or use the command"
        )
    return text
