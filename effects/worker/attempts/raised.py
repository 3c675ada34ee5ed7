"""What is kept and logged of an exception of a handler: its class and where it came through, never its values."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from effects.error_text import attempt_row, store_text
from effects.errors import EffectsError
from effects.model.job_type import JobType
from effects.model.outcome import OUTCOMES
from effects.model.settlement import Settlement
from effects.process.frames import CAUSES_MAX, Frame, cause_of, error_frames, handler_frames, place
from effects.secrets.keys import KeyRing
from effects.text.redact import HIDDEN, redact, secret_texts
from effects.text.scrub import class_name, clean_text

STACK_CHARS_MAX = 4096
TEXT_CHARS_MAX = 2000
_URL_PASSWORD = re.compile(r"://[^/@\s]*@")
HIDDEN_TEXT = "[its text may be personal and is not shown]"


def with_error(settlement: Settlement, error: BaseException | None) -> Settlement:
    """The settlement with the class of an exception, where it was raised, and what the log is given of it."""
    if error is None:
        return settlement
    return replace(settlement, error_type=class_name(error), stack=stack_of(error), logged_error=_logged(error))


def with_frames(settlement: Settlement, frames: Iterable[Frame]) -> Settlement:
    """The settlement of an attempt that was given up, with where its handler was at that moment."""
    stack = clean_text("\n".join(handler_frames(frames)), STACK_CHARS_MAX)
    return replace(settlement, stack=stack or None)


def _logged(error: BaseException) -> BaseException | None:
    if isinstance(error, OUTCOMES):
        return None  # an answer, no error
    return error if isinstance(error, EffectsError) else without_text(error)  # our own words are safe


class ErrorTexts:
    """Keeps the text of exceptions, for the job types that want it.

    Args:
        keys: seal it, if there are any.
        by_default: for job types that do not say.
    """

    def __init__(self, keys: KeyRing, *, by_default: bool) -> None:
        self._keys, self._by_default = keys, by_default

    def add(self, settlement: Settlement, error: BaseException, job_type: JobType[Any], payload: Any) -> Settlement:
        """The settlement with the error's text: to store, and to log if it need not be sealed."""
        kept = self._by_default if job_type.keep_error_text is None else job_type.keep_error_text
        if not kept or isinstance(error, EffectsError):  # our own words are kept as the message
            return settlement
        text = _text_of(error, job_type, payload)
        job = settlement.job
        stored = store_text(self._keys, text, attempt_row(job.id, job.lease_token))
        logged = settlement.logged_error if self._keys.ids else stand_in(error, text)
        return replace(settlement, error_text=stored, logged_error=logged)


def _text_of(error: BaseException, job_type: JobType[Any], payload: Any) -> str:
    """At most 2,000 characters, without the payload's sensitive fields and without the passwords of URLs."""
    try:
        text = redact(str(error), secret_texts(payload, job_type.sensitive))
        return clean_text(_URL_PASSWORD.sub(f"://{HIDDEN}@", text), TEXT_CHARS_MAX)
    except BaseException:  # of the exception's own methods, or of a payload whose values cannot be read
        return HIDDEN


def stack_of(error: BaseException) -> str | None:
    """Its frames, one a line, the app's first; at most 4 KiB."""
    try:
        return clean_text("\n".join(error_frames(error)), STACK_CHARS_MAX)
    except BaseException:  # of the exception's own methods
        return None


def place_made(answer: object) -> str | None:
    """The code location where an invalid outcome was created, if known."""
    try:
        return place(*answer.call_site) if isinstance(answer, OUTCOMES) else None
    except BaseException:  # of a subclass that made itself in its own way
        return None


def without_text(error: BaseException, causes_max: int = CAUSES_MAX) -> BaseException:
    """A stand-in for `exc_info` that tells no text: log handlers of the app print it. Its causes are stand-ins too."""
    named = stand_in(error, HIDDEN_TEXT)
    cause = cause_of(error)
    named.__cause__ = without_text(cause, causes_max - 1) if cause is not None and causes_max else None
    return named


def stand_in(error: BaseException, text: str) -> BaseException:
    """An exception of the same name with the same traceback, and this text."""
    kind = type(error)
    names = {"__module__": type.__getattribute__(kind, "__module__"), "__str__": lambda _: text}
    substitute: BaseException = type(class_name(error), (Exception,), names)()
    return substitute.with_traceback(BaseException.__dict__["__traceback__"].__get__(error))
