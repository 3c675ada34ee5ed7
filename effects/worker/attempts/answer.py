"""What a handler returned or raised, as it is kept.

Its answer is checked where it is taken: what passes is one of our own outcomes, with values in their range.

A wrong type or number is a programming error of that attempt. It keeps the fate that the answer names (what was done
is done, what was refused is refused), so that a mistake in a wait makes no "may have happened" of a "not done". Only
what names no fate goes by whether the effect was released.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from effects.errors import EffectsError
from effects.keys.encryption import KeyRing
from effects.keys.sealing import attempt_row, store_result, store_text
from effects.kit.frames import CAUSES_MAX, Frame, cause_of, error_frames, handler_frames, place
from effects.kit.logs import own_logger
from effects.kit.text.redact import HIDDEN, redact
from effects.kit.text.scrub import CODE_CHARS_MAX, class_name, clean_detail, clean_text
from effects.kit.text.wording import described
from effects.model.job_type import JobType
from effects.model.outcome import OUTCOMES, Done, Outcome, Pause, Refused, Retry, Snooze, Unknown
from effects.model.payload_codec import json_of, why_no_json
from effects.model.settlement import Settlement
from effects.retry import ON_UNKNOWN, RetryPolicy
from effects.settings import ErrorTextsPolicy

NO_KEYS = KeyRing("")
WAIT_SECONDS_MAX = 366 * 86_400.0
INVALID = "outcome_invalid"


class Accepted(NamedTuple):
    """A checked outcome. `problem` is what was wrong with the returned value, or None."""

    outcome: Outcome
    problem: str | None = None


class _Wrong(Exception):
    """A field's value is unusable; the text names the accepted values."""


def accept(answer: object, *, who: str, released: bool) -> Accepted:
    """Check an outcome that was returned or raised. Never raises.

    Args:
        who: the source of the value, for the text: `invoice.send: perform`.
        released: the effect may have begun.
    """
    try:
        kinds = type(answer).__mro__
        fate = kinds[0] if kinds[0] in _FIELDS else next((kind for kind in OUTCOMES if kind in kinds), None)
        return _no_outcome(answer, who, released) if fate is None else _checked(answer, fate, who)
    except BaseException as error:  # of the answer's own methods
        problem = f"{who}: its answer cannot be read: {class_name(error)}"
        return Accepted(Unknown(problem, code=INVALID) if released else Retry(problem, code=INVALID), problem)


def _no_outcome(answer: object, who: str, released: bool) -> Accepted:
    """Not even a fate. It will be as wrong at the next try, so what was not released is refused."""
    if inspect.iscoroutine(answer):
        answer.close()  # or it would warn that it was never awaited
    kept = "" if inspect.iscoroutine(answer) or inspect.isclass(answer) else "; result=True keeps what it returns"
    text = f"{who} returned {described(answer)}; it must return an outcome, such as Done(), or None{kept}"
    outcome = Unknown(text, code="no_outcome") if released else Refused(text, code="no_outcome")
    return Accepted(outcome, text)


def without_result(accepted: Accepted, who: str) -> Accepted:
    """The answer of a job type that keeps no results: one that was given is a mistake, and the effect is done."""
    outcome = accepted.outcome
    if type(outcome) is not Done or outcome.result is None:
        return accepted
    problem = f"{who} answered Done(result=…), and its job type keeps no results: declare it with result=True"
    return Accepted(Done(apply=outcome.apply, detail={INVALID: problem}), problem)


def _checked(answer: object, fate: type[Outcome], who: str) -> Accepted:
    """The answer, where it is one of ours and clean; else again, as one of ours.

    A subclass may have attributes that are not what they seem. One that was raised keeps, by its traceback, all that
    the handler had in its variables.
    """
    values: dict[str, Any] = {}
    wrong: list[str] = []
    clean = type(answer) is fate and answer.__traceback__ is None
    for name, default, check in _FIELDS[fate]:
        try:
            value = getattr(answer, name)
            values[name] = value if value is default else check(value)
            clean = clean and values[name] is value
        except _Wrong as error:
            wrong.append(f"{name} {error}")
        except BaseException as error:  # a property's, for example
            wrong.append(f"{name} cannot be read: {class_name(error)}")
    if not wrong:
        return Accepted(cast("Outcome", answer) if clean else fate(**values))
    problem = f"{who} answered a wrong {fate.__name__}: {'; '.join(wrong)}"
    return Accepted(_mended(fate, values, wrong, problem), problem)


def _mended(fate: type[Outcome], values: dict[str, Any], wrong: list[str], problem: str) -> Outcome:
    """Keep the fate without the invalid values. Without a usable wait it is a failure with the policy's delay."""
    if fate is Done:
        if "apply" in values:
            return Done(apply=values["apply"], detail={INVALID: problem}, result=values.get("result"))
        return Unknown(problem, code=INVALID)  # done, and what was to be recorded with it cannot be
    if fate in (Snooze, Pause):
        return Retry(problem, code=INVALID)
    words = "reason" if "reason" in {field.name for field in fields(fate)} else "message"
    said = values.pop(words, "")
    return fate(**{**values, words: f"{said} ({problem})".lstrip(), "code": INVALID})


# -- the fields ----------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Wrong(f"is {described(value)}; give a text")
    return clean_text(value)


def _code(value: Any) -> str:
    code = clean_text(_text(value), CODE_CHARS_MAX)
    if not code:
        raise _Wrong("is empty; give a short text")
    return code


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"is {described(value)}; give a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not 0 <= seconds < math.inf:
        raise _Wrong("is no wait; give a finite number of seconds, 0 or more")
    return min(seconds, WAIT_SECONDS_MAX)


def _seconds_or_none(value: Any) -> float | None:
    return None if value is None else _seconds(value)


def _waits(value: Any) -> tuple[float, ...]:
    if not isinstance(value, list | tuple):
        raise _Wrong(f"is {described(value)}; give a list of seconds")
    return tuple(map(_seconds, value))


def _detail(value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _Wrong(f"is {described(value)}; give a mapping")
    return clean_detail(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"is {described(value)}; give True or False")
    return value


def _apply(value: Any) -> Any:
    if value is not None and not callable(value):
        raise _Wrong(f"is {described(value)}; give a function of the connection")
    if inspect.iscoroutinefunction(value):
        raise _Wrong("is an async function; give a plain one")
    return value


def _policy(value: Any) -> RetryPolicy | None:
    if value is not None and not isinstance(value, RetryPolicy):
        raise _Wrong(f"is {described(value)}; give a RetryPolicy")
    return value


def _tries(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise _Wrong("is no count; give a whole number, 0 or more")
    return value


def _on_unknown(value: Any) -> Any:
    if value is not None and not (isinstance(value, str) and value in ON_UNKNOWN):
        raise _Wrong(f"is not one of {', '.join(ON_UNKNOWN)}")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "message": _text, "reason": _text, "code": _code, "detail": _detail, "apply": _apply,
    "result": lambda value: value,
    "seconds": _seconds, "after_seconds": _seconds_or_none, "pause_seconds": _seconds_or_none,
    "then": _waits, "policy": _policy, "tries": _tries, "on_unknown": _on_unknown, "ages": _flag, "parent": _flag,
}  # fmt: skip

# Of each fate its fields, what they hold where nothing was given, and the check of what was.
_FIELDS = {fate: [(field.name, field.default, _CHECKS[field.name]) for field in fields(fate)] for fate in OUTCOMES}


RESULT_BYTES_MAX = 65_536
_log = own_logger("effects.worker")


def with_result(settlement: Settlement, value: object, job_type: JobType[Any], keys: KeyRing) -> Settlement:
    """The settlement of a done attempt with its result as it is stored.

    The effect has happened whatever was returned: what cannot be kept changes nothing but that, and a person is told.
    """
    job, problem, stored = settlement.job, None, dict[str, Any]()
    try:
        text = json_of(value)
        size = len(text.encode())
        if size > RESULT_BYTES_MAX:
            problem = (
                f"it has {size:,} bytes as JSON and the limit is {RESULT_BYTES_MAX:,}; store the large part elsewhere "
                "and return its id"
            )
        else:
            row = attempt_row(job.id, job.lease_token)
            stored = store_result(keys, text, row, sealed=job_type.seals_result)
    except Exception as error:  # of the value's own methods too
        problem = str(error) if isinstance(error, EffectsError) else f"it is no JSON: {why_no_json(error, value)}"
    if problem is not None:
        stored = {"missing": f"{job_type.name}, {job_type.declared_at}: the result is not kept: {problem}"}
        _log.error("job.result_not_kept", extra={"job": job.id, "type": job.job_type, "reason": stored["missing"]})
    return replace(settlement, result=stored)


STACK_CHARS_MAX = 4096
TEXT_CHARS_MAX = 2000
_URL_PASSWORD = re.compile(r"://[^/@\s]*@")
_HIDDEN_TEXT = "[its text may be personal and is not shown]"


def with_error(settlement: Settlement, error: BaseException | None) -> Settlement:
    """The settlement with the class of an exception, where it was raised, and what the log is given of it."""
    if error is None:
        return settlement
    return replace(settlement, error_type=class_name(error), stack=_stack_of(error), logged_error=_logged(error))


def with_frames(settlement: Settlement, frames: Iterable[Frame]) -> Settlement:
    """The settlement of an attempt that was given up, with where its handler was at that moment."""
    stack = clean_text("\n".join(handler_frames(frames)), STACK_CHARS_MAX)
    return replace(settlement, stack=stack or None)


def _logged(error: BaseException) -> BaseException | None:
    if isinstance(error, OUTCOMES):
        return None  # an answer, no error
    return error if isinstance(error, EffectsError) else _without_text(error)  # our own words are safe


class ErrorTexts:
    """Keeps the text of exceptions, and has it logged.

    Args:
        keys: seal it, if there are any.
        policy: for job types that do not say (`keep_error_text`). Default: it is kept if it can be sealed.
        logged: it is logged in any case: a person who runs the worker reads the log.
    """

    def __init__(self, keys: KeyRing, policy: ErrorTextsPolicy | None, *, logged: bool) -> None:
        self._keys = NO_KEYS if policy == "plain" else keys
        self._by_default = bool(keys.ids) if policy is None else policy != "none"
        self._logged = logged

    def add(self, settlement: Settlement, error: BaseException, job_type: JobType[Any], payload: Any) -> Settlement:
        """The settlement with the error's text: to store, and to log if it need not be sealed."""
        kept = self._by_default if job_type.keep_error_text is None else job_type.keep_error_text
        if not (kept or self._logged) or isinstance(error, EffectsError):  # our own words are the message
            return settlement
        text, job = _text_of(error, job_type, payload), settlement.job
        if self._logged or not self._keys.ids:
            settlement = replace(settlement, logged_error=_stand_in(error, text, logged_text=text))
        if not kept:
            return settlement
        return replace(settlement, error_text=store_text(self._keys, text, attempt_row(job.id, job.lease_token)))


def _text_of(error: BaseException, job_type: JobType[Any], payload: Any) -> str:
    """At most 2,000 characters, without the payload's sensitive fields and without the passwords of URLs."""
    try:
        text = redact(str(error), job_type.secrets_of(payload))
        return clean_text(_URL_PASSWORD.sub(f"://{HIDDEN}@", text), TEXT_CHARS_MAX)
    except BaseException:  # of the exception's own methods, or of a payload whose values cannot be read
        return HIDDEN


def _stack_of(error: BaseException) -> str | None:
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


def _without_text(error: BaseException, causes_max: int = CAUSES_MAX) -> BaseException:
    """A stand-in for `exc_info` that tells no text: log handlers of the app print it. Its causes are stand-ins too."""
    named = _stand_in(error, _HIDDEN_TEXT)
    cause = cause_of(error)
    named.__cause__ = _without_text(cause, causes_max - 1) if cause is not None and causes_max else None
    return named


def _stand_in(error: BaseException, text: str, **named: str) -> BaseException:
    """An exception of the same name with the same traceback, and this text."""
    kind = type(error)
    names = {"__module__": type.__getattribute__(kind, "__module__"), "__str__": lambda _: text, **named}
    substitute: BaseException = type(class_name(error), (Exception,), names)()
    return substitute.with_traceback(BaseException.__dict__["__traceback__"].__get__(error))
