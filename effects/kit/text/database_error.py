"""What a database found wrong with a statement, by the standard's name for it: `undefined_column (42703)`.

Such a name is the same for every app and holds nothing personal; a database's own text may quote a value.
"""

from __future__ import annotations

import re

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_SQLSTATE = re.compile("[0-9]{2}[0-9A-Z]{3}")
_SQLSTATES = {
    "08": "the connection was lost", "22": "a value does not fit", "23": "a constraint refuses a value",
    "40": "the transaction was rolled back", "42": "the statement, or a name in it, is wrong or not allowed",
    "53": "the server has too few resources", "57": "the server cancelled it, or is stopping",
}  # fmt: skip
_SQLITE_CODE = 1  # SQLITE_ERROR: the statement itself
_SQLITE_PHRASES = ("no such table", "no such column", "no such function", "syntax error", "incomplete input")


def database_condition(error: BaseException) -> str | None:
    """The condition's name and code, with table and column where the server names them; None for another error.

    Of SQLite, which has no such codes, the phrase that begins or ends its message.
    """
    original = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        return f"{_name(original)} ({state}){_place(original) if state.startswith('42') else ''}"
    if _is_sqlite_error(original):
        return next((phrase for phrase in _SQLITE_PHRASES if phrase in str(original)), "SQLITE_ERROR")
    name = getattr(original, "sqlite_errorname", None)
    return name if isinstance(name, str) else None


def code_words(code: str | None) -> str | None:
    """What an error code means that is an SQLSTATE, by its class; None for any other, which is a word itself."""
    return _SQLSTATES.get(code[:2]) if code is not None and _SQLSTATE.fullmatch(code) else None


def is_wrong_statement(error: BaseException) -> bool:
    """Whether the same statement fails again: an unknown table or column, a syntax error, a missing privilege."""
    original = getattr(error, "orig", None) or error
    state = getattr(original, "sqlstate", None)
    return state.startswith("42") if isinstance(state, str) else _is_sqlite_error(original)


def _is_sqlite_error(original: object) -> bool:
    return getattr(original, "sqlite_errorcode", None) == _SQLITE_CODE


def primary_message(error: BaseException) -> str:
    """The database's own sentence, for an operator's terminal: of a wrong statement, it names what is wrong in it."""
    original = getattr(error, "orig", None) or error
    message = getattr(getattr(original, "diag", None), "message_primary", None)
    return message if isinstance(message, str) else str(original)


def _name(original: object) -> str:
    """psycopg has a class for each condition."""
    return _CAPITAL.sub("_", type(original).__name__).lower()


def _place(original: object) -> str:
    diagnostics = getattr(original, "diag", None)
    names = {name: getattr(diagnostics, f"{name}_name", None) for name in ("table", "column")}
    return "".join(f", {name} {value}" for name, value in names.items() if isinstance(value, str))
