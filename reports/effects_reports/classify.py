"""Which failures of a step no retry fixes. All others are tried again: nothing has left yet."""

from __future__ import annotations

import re

from effects import ConfigurationError, EnqueueError, Refused
from effects.extend.process import code_of
from effects.extend.sql import database_condition, is_wrong_statement

_DATA_EXCEPTION = re.compile("22[0-9A-Z]{3}")  # the SQLSTATEs that a row's own value causes


def refusal_of(error: Exception) -> Refused | None:
    """The refusal that an error of a step amounts to; None if another try may succeed."""
    if isinstance(error, ConfigurationError | EnqueueError):  # the definition, or a request that no longer fits it
        return Refused(str(error), code=type(error).__name__)
    code = code_of(error)
    if _DATA_EXCEPTION.fullmatch(code):
        text = "a value is not what the report's SELECT makes of it: fix the row, or leave it out"
        return Refused(f"{text}: {database_condition(error)}", code=code)
    if is_wrong_statement(error):
        text = "the database does not take the report's SELECT, and `effects reports explain NAME` shows why"
        return Refused(f"{text}: {database_condition(error)}", code=code)
    return None
