"""What messages have in common: what a value is, numbers with their nouns, statuses, causes and times."""

from __future__ import annotations

import datetime as dt
import math
import re

from effects.kit.moments import FIRST, LAST
from effects.kit.text.scrub import class_name, clean_text

_SPOKEN_VOWEL = re.compile(r"[aeio]|un(?!i)|up", re.IGNORECASE)
_CLASS_NAME_CHARS_MAX = 128
RETRYING = "retrying"  # a job of the status `failed`, which waits for its next attempt


def described(value: object) -> str:
    """What a value is, for an error: `a str`, `an int`, `the class Order`, `None`. Never the value itself."""
    if value is None:
        return "None"
    if issubclass(type(value), type):
        return f"the class {clean_text(type.__getattribute__(value, '__name__'), _CLASS_NAME_CHARS_MAX)}"
    return with_article(class_name(value))


def with_article(name: str) -> str:
    """`an int`, `a str`, `an Unset`, `a UUID`."""
    return f"{'an' if _SPOKEN_VOWEL.match(name) else 'a'} {name}"


def jobs_with(count: int, verb: str) -> str:
    """`1 job waits`, `2,000 jobs wait`, `1 job is due`, `2 jobs are due`."""
    singular, _, plural = verb.partition("/")
    return f"1 job {singular}" if count == 1 else f"{count:,} jobs {plural or singular.removesuffix('s')}"


def shown_status(status: str) -> str:
    """A job's status as people and scripts see it; the column keeps `failed`. It translates no other vocabulary."""
    return RETRYING if status == "failed" else status


def stored_status(status: str | None) -> str | None:
    """The column's value for a status as `shown_status` has it."""
    return "failed" if status == RETRYING else status


def cause_of(job_type: str, error_code: str | None, jobs: int) -> str:
    """`webhook.deliver gone (3)`: jobs of a type that ended with the same code."""
    return f"{job_type} {error_code or 'without a code'} ({jobs:,})"


def moment_text(value: dt.datetime) -> str:
    """A time in UTC to the second. One that no datetime can hold is said to be unreadable."""
    if value in (FIRST, LAST):
        return "unreadable (before year 1)" if value == FIRST else "unreadable (after year 9999)"
    return f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%SZ}"


def duration(seconds: float) -> str:
    """A length of time in its two largest units: `3 s`, `2 min 5 s`, `1 h 10 min`, `3 d 4 h`."""
    if not math.isfinite(seconds):
        return str(seconds)
    whole = max(0, round(seconds))
    units = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, unit in units:
        if whole >= size or (size == 1 and not parts):
            parts.append(f"{whole // size} {unit}")
            whole %= size
    return " ".join(parts[:2])
